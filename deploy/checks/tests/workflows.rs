//! The workflows: valid, with the least permissions, and with pinned actions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command};

use serde_json::Value;
use weir_deploy_checks::{manifests::list, project, run, tool, yaml};

fn workflows() -> Vec<(String, Value)> {
    let folder = project().join(".github/workflows");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| (name.clone(), yaml(&format!(".github/workflows/{name}")).unwrap())).collect()
}

fn jobs(workflow: &Value) -> impl Iterator<Item = (&String, &Value)> {
    workflow["jobs"].as_object().unwrap().iter()
}

#[test]
fn workflows_follow_the_schema() {
    for (name, _) in workflows() {
        let mut check = Command::new(tool("WEIR_TEST_CHECK_JSONSCHEMA").unwrap());
        let file = project().join(".github/workflows").join(name);
        run(check.args(["--builtin-schema", "vendor.github-workflows"]).arg(file)).unwrap();
    }
}

#[test]
fn workflows_have_read_permission_and_jobs_add_what_they_need() {
    for (name, workflow) in workflows() {
        let rights = workflow["permissions"].as_object().unwrap();
        assert!(rights.iter().all(|(right, level)| right == "contents" && level == "read"), "{name}: {rights:?}");
        for (job, about) in jobs(&workflow) {
            let writes = about["permissions"].as_object().into_iter().flatten().filter(|(_, level)| *level == "write");
            // Only the job that makes the page of the release may write it.
            let allowed: &[&str] = if job == "files" { &["contents"] } else { &["attestations", "id-token"] };
            assert!(writes.into_iter().all(|(right, _)| allowed.contains(&right.as_str())), "{name}: {job}");
        }
    }
}

#[test]
fn every_action_is_pinned_by_commit_and_no_checkout_keeps_its_token() {
    for (name, workflow) in workflows() {
        for step in jobs(&workflow).flat_map(|(_, job)| list(job, "/steps")) {
            let Some(uses) = step["uses"].as_str() else { continue };
            let (action, commit) = uses.split_once('@').unwrap();
            assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}: {uses}");
            if action == "actions/checkout" {
                assert_eq!(step["with"]["persist-credentials"], false, "{name}");
            }
        }
    }
}

/// A shell goes on after a command that fails behind `!`, whatever its options are.
#[test]
fn no_step_relies_on_a_negated_command() {
    for (name, workflow) in workflows() {
        for step in jobs(&workflow).flat_map(|(_, job)| list(job, "/steps")) {
            let negated =
                step["run"].as_str().into_iter().flat_map(str::lines).find(|line| line.trim_start().starts_with("! "));
            assert_eq!(negated, None, "{name}");
        }
    }
}

#[test]
fn every_job_has_a_timeout() {
    for (name, workflow) in workflows() {
        for (job, about) in jobs(&workflow) {
            assert!(about["timeout-minutes"].is_u64() || about["uses"].is_string(), "{name}: {job}");
        }
    }
}

#[test]
fn a_release_is_tested_built_and_scanned_before_it_is_published() {
    let release = yaml(".github/workflows/release.yaml").unwrap();
    assert_eq!(list(&release, "/jobs/publish/needs"), ["build", "packages"]);
    assert_eq!(release["jobs"]["packages"]["needs"], "test");
    assert_eq!(release["jobs"]["files"]["needs"], "publish");
    assert_eq!(list(&release, "/jobs/build/needs"), ["test", "bases"]);
    let build = list(&release, "/jobs/build/steps");
    let at =
        |start: &str| build.iter().position(|step| step["uses"].as_str().is_some_and(|uses| uses.starts_with(start)));
    let (built, scanned) = (at("docker/build-push-action@").unwrap(), at("anchore/scan-action@").unwrap());
    assert!(built < scanned);
    let with = &build[built]["with"];
    assert_eq!((&with["sbom"], &with["provenance"]), (&Value::Bool(true), &Value::from("mode=max")));
    assert!(with["outputs"].as_str().unwrap().contains("push-by-digest=true") && with.get("tags").is_none());
}

#[test]
fn the_static_binary_of_each_platform_is_checked_and_tried_before_it_is_packed() {
    let release = yaml(".github/workflows/release.yaml").unwrap();
    let packages = &release["jobs"]["packages"];
    let platforms = list(packages, "/strategy/matrix/include").iter().map(|entry| {
        let of = |name: &str| entry[name].as_str().unwrap();
        (of("platform"), of("runner").ends_with("-arm"), of("target"))
    });
    // Each is built on a machine of its own kind: musl's compiler makes binaries for its own machine only.
    assert_eq!(
        platforms.collect::<Vec<_>>(),
        [("amd64", false, "x86_64-unknown-linux-musl"), ("arm64", true, "aarch64-unknown-linux-musl")]
    );

    let scripts: String = list(packages, "/steps").iter().filter_map(|step| step["run"].as_str()).collect();
    let after = |position: usize, text: &str| {
        let found = scripts[position..].find(text).unwrap_or_else(|| panic!("no `{text}` after {position}: {scripts}"));
        position + found + text.len()
    };
    let steps = [
        "--target ${{ matrix.target }}",
        "musl-tools",
        "cargo build --release --locked --package weir --target ${{ matrix.target }}",
        "INTERP; then exit 1; fi",
        "\"$binary\" demo",
        "tar --create",
        "deploy/deb/build.sh",
        "dpkg --install",
    ];
    steps.into_iter().fold(0, after);
}
