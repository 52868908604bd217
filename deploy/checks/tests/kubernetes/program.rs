//! The program accepts the arguments and every variable of the manifests.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;
use weir_deploy_checks::{
    known_settings,
    manifests::{self, Composition, id, list, text},
    weir,
};

/// The variables of a pod of Weir. Values from secrets are replaced by test values.
fn variables(composition: &Composition, template: &Value) -> BTreeMap<String, String> {
    let container = &template["spec"]["containers"][0];
    let mut all = BTreeMap::new();
    for from in list(container, "/envFrom") {
        let named = |config: &&Value| config["metadata"]["name"] == from["configMapRef"]["name"];
        let config = composition.of_kind("ConfigMap").find(named).unwrap();
        let data = config["data"].as_object().unwrap();
        all.extend(data.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())));
    }
    for variable in list(container, "/env") {
        let name = text(variable, "/name");
        let value = variable["value"].as_str().unwrap_or(match name {
            // No process listens on port 1.
            "WEIR_DATABASE_URL" => "postgres://weir:secret@127.0.0.1:1/weir",
            "WEIR_REDIS_URL" => "redis://127.0.0.1:1",
            _ => "a-key-that-is-long-enough-for-everybody",
        });
        all.insert(name.to_owned(), value.to_owned());
    }
    all
}

#[test]
fn every_setting_exists() {
    let known = known_settings().unwrap();
    for composition in manifests::all() {
        for (workload, template) in composition.roles() {
            for name in variables(composition, template).keys() {
                assert!(known.contains(name), "{name} of {} in {}", id(workload), composition.name);
            }
        }
    }
}

#[test]
fn every_pod_listens_on_its_http_and_metrics_ports() {
    for composition in manifests::all() {
        for (workload, template) in
            composition.roles().filter(|(_, template)| text(template, "/spec/containers/0/args/0") != "migrate")
        {
            let given = variables(composition, template);
            assert_eq!(given["WEIR_LISTEN"], "0.0.0.0:8080", "{}", id(workload));
            assert_eq!(given["WEIR_METRICS_LISTEN"], "0.0.0.0:9464", "{}", id(workload));
            let ports: BTreeMap<_, _> = list(template, "/spec/containers/0/ports")
                .iter()
                .map(|port| (text(port, "/name"), port["containerPort"].as_u64()))
                .collect();
            assert_eq!(ports, BTreeMap::from([("http", Some(8080)), ("metrics", Some(9464))]));
        }
    }
}

#[test]
fn the_program_starts_with_the_arguments_and_variables_of_every_pod() {
    for composition in manifests::all() {
        for (workload, template) in composition.roles() {
            let mut given = variables(composition, template);
            // The listeners get free ports on loopback. Weir requires API keys only for other addresses, so they are
            // checked here.
            let role = text(template, "/spec/containers/0/args/0");
            assert!(!["api", "serve"].contains(&role) || given.contains_key("WEIR_API_KEYS"), "{}", id(workload));
            for listener in ["WEIR_LISTEN", "WEIR_METRICS_LISTEN"] {
                given.entry(listener.to_owned()).and_modify(|address| "127.0.0.1:0".clone_into(address));
            }
            if given["WEIR_DATABASE_URL"].starts_with("sqlite:") {
                let file = given["WEIR_DATABASE_URL"].replace("/var/lib/weir/", "/no/such/folder/");
                given.insert("WEIR_DATABASE_URL".to_owned(), file);
            }
            let arguments = list(template, "/spec/containers/0/args").iter().filter_map(Value::as_str);
            let folder = tempfile::tempdir().unwrap();
            let mut start = Command::new(weir().unwrap());
            start.args(arguments).current_dir(folder.path()).env_clear().envs(&given);
            let output = start.output().unwrap();
            // The program has accepted every setting and fails because there is no server.
            let error = String::from_utf8_lossy(&output.stderr);
            let expected = ["cannot reach Redis", "no PostgreSQL server answers", "no/such/folder"];
            assert!(!output.status.success());
            let is_expected = expected.iter().any(|one| error.contains(one));
            assert!(is_expected, "{} of {}: {error}", id(workload), composition.name);
        }
    }
}
