//! A roll-out: for some time pods of two versions run side by side, from two ReplicaSets of one Deployment. Both must be
//! reached, scraped, protected and configured, each by its own version.

use std::{fs, process::Command};

use serde_json::Value;
use weir_deploy_checks::{
    manifests::{self, id, kind, list, runs, text},
    project, run, tool,
};

/// The next version of a composition: another image, and one more setting.
fn next_of_kustomize(overlay: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
    let overlay = project().canonicalize().unwrap().join("k8s/overlays").join(overlay);
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: weir\nresources:\n  - {up}{}\n\
         images:\n  - {{ name: weir, newTag: 9.9.9 }}\n\
         configMapGenerator:\n  - name: weir-config\n    behavior: merge\n    literals: [WEIR_MAX_DESTINATIONS=5]\n",
        overlay.display().to_string().trim_start_matches('/')
    );
    fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    parse(&run(Command::new(tool("WEIR_TEST_KUBECTL").unwrap()).arg("kustomize").arg(folder.path())).unwrap())
}

fn next_of_chart(values: &str) -> Vec<Value> {
    let chart = project().join(manifests::CHART);
    let mut template = Command::new(tool("WEIR_TEST_HELM").unwrap());
    template.args(["template", "weir", "--namespace", "weir", "--set", "image.tag=9.9.9"]);
    template.args(["--set", "config.WEIR_MAX_DESTINATIONS=5", "--values"]);
    template.arg(chart.join(format!("ci/{values}.yaml"))).arg(&chart);
    parse(&run(&mut template).unwrap())
}

fn parse(text: &str) -> Vec<Value> {
    weir_deploy_checks::documents(text).unwrap()
}

fn versions() -> Vec<(&'static str, Vec<Value>)> {
    let of_kustomize = ["local", "minimal", "production"].map(|name| (name, next_of_kustomize(name)));
    let of_chart = [("chart: production", "production"), ("chart: embedded", "embedded")];
    of_kustomize.into_iter().chain(of_chart.map(|(name, values)| (name, next_of_chart(values)))).collect()
}

#[test]
fn an_upgrade_changes_nothing_that_kubernetes_refuses_to_change() {
    for (name, next) in versions() {
        for (workload, _) in manifests::named(name).workloads().filter(|(workload, _)| runs(workload)) {
            let next = next.iter().find(|object| id(object) == id(workload)).unwrap();
            for field in ["/spec/selector", "/spec/serviceName", "/spec/volumeClaimTemplates"] {
                assert_eq!(next.pointer(field), workload.pointer(field), "{name}: {field} of {}", id(workload));
            }
        }
    }
}

#[test]
fn pods_of_both_versions_are_served_scraped_and_protected() {
    for (name, next) in versions() {
        let now = manifests::named(name);
        for (workload, template) in now.roles().filter(|(workload, _)| runs(workload)) {
            let next = next.iter().find(|object| id(object) == id(workload)).unwrap();
            // Services, budgets, policies, monitors and spreads select by labels, so the labels stay.
            assert_eq!(
                next["spec"]["template"]["metadata"]["labels"],
                template["metadata"]["labels"],
                "{}",
                id(workload)
            );
            assert_ne!(next["spec"]["template"], *template, "{name}: the edit reaches {}", id(workload));
            if kind(workload) == "Deployment" {
                // The new pods come first, and each version is spread on its own.
                assert_eq!(workload["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0, "{}", id(workload));
                for constraint in list(template, "/spec/topologySpreadConstraints") {
                    assert_eq!(constraint["matchLabelKeys"][0], "pod-template-hash", "{}", id(workload));
                }
            }
        }
    }
}

#[test]
fn an_old_pod_that_starts_again_has_the_settings_of_its_own_version() {
    for (name, next) in versions() {
        let now = manifests::named(name);
        for (workload, template) in now.roles().filter(|(workload, _)| runs(workload)) {
            assert!(!now.variables(template).contains_key("WEIR_MAX_DESTINATIONS"));
            // What the old pod refers to is not written by the new version, which an old program might refuse.
            for from in list(template, "/spec/containers/0/envFrom") {
                let config = text(from, "/configMapRef/name");
                let written =
                    next.iter().any(|object| kind(object) == "ConfigMap" && text(object, "/metadata/name") == config);
                assert!(!written, "{name}: {config} of {}", id(workload));
            }
        }
    }
}

#[test]
fn a_migration_job_can_be_made_again() {
    let mut jobs = 0;
    for composition in manifests::all() {
        for job in composition.of_kind("Job") {
            let about = &job["metadata"]["annotations"];
            if composition.is_of_chart() {
                assert_eq!(about["helm.sh/hook"], "pre-install,pre-upgrade");
                assert_eq!(about["helm.sh/hook-delete-policy"], "before-hook-creation");
            } else {
                assert_eq!(about["argocd.argoproj.io/hook"], "PreSync");
                assert_eq!(about["argocd.argoproj.io/hook-delete-policy"], "BeforeHookCreation");
                assert_eq!(about["kustomize.toolkit.fluxcd.io/force"], "enabled");
            }
            // At the first release it runs before the account exists. It stays after its end, or Flux would make it again.
            assert!(job["spec"]["template"]["spec"]["serviceAccountName"].is_null());
            assert!(job["spec"]["ttlSecondsAfterFinished"].is_null());
            jobs += 1;
        }
    }
    assert!(jobs >= 6, "{jobs}");
}
