//! The program accepts the arguments and every variable of the manifests.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;
use weir_deploy_checks::{
    known_settings,
    manifests::{self, Composition, id, list, runs, text},
    weir,
};

/// The variables of a pod of Weir. Values from secrets are replaced by test values.
fn variables(composition: &Composition, template: &Value) -> BTreeMap<String, String> {
    let with_value = |(name, value): (String, Option<String>)| {
        let of_secret = || match &*name {
            // No process listens on port 1.
            "WEIR_DATABASE_URL" => "postgres://weir:secret@127.0.0.1:1/weir".to_owned(),
            "WEIR_REDIS_URL" => "redis://127.0.0.1:1".to_owned(),
            _ => "a-key-that-is-long-enough-for-everybody".to_owned(),
        };
        let value = value.unwrap_or_else(of_secret);
        (name, value)
    };
    composition.variables(template).into_iter().map(with_value).collect()
}

#[test]
fn every_setting_exists() {
    let known = known_settings().unwrap();
    for composition in manifests::all() {
        for (workload, template) in composition.roles() {
            // The variables of OpenTelemetry are not settings of Weir.
            for name in variables(composition, template).keys().filter(|name| !name.starts_with("OTEL_")) {
                assert!(known.contains(name), "{name} of {} in {}", id(workload), composition.name);
            }
        }
    }
}

#[test]
fn every_pod_listens_on_its_http_and_metrics_ports() {
    for composition in manifests::all() {
        for (workload, template) in composition.roles().filter(|(workload, _)| runs(workload)) {
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
    // Most pods are the same in many compositions.
    let mut starts = BTreeMap::new();
    for composition in manifests::all() {
        for (workload, template) in composition.roles() {
            let arguments = list(template, "/spec/containers/0/args").iter().filter_map(Value::as_str);
            let start = (arguments.map(str::to_owned).collect::<Vec<_>>(), variables(composition, template));
            starts.insert(start, format!("{} of {}", id(workload), composition.name));
        }
    }
    for ((arguments, mut given), pod) in starts {
        // The listeners get free ports on loopback. Weir requires API keys only for other addresses, so they are
        // checked here.
        let serves = ["api", "serve"].contains(&&*arguments[0]);
        assert!(!serves || given.contains_key("WEIR_API_KEYS"), "{pod}");
        for listener in ["WEIR_LISTEN", "WEIR_METRICS_LISTEN"] {
            given.entry(listener.to_owned()).and_modify(|address| "127.0.0.1:0".clone_into(address));
        }
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        given.entry("WEIR_ENCRYPTION_KEYS".to_owned()).and_modify(|keys| key.clone_into(keys));
        if given["WEIR_DATABASE_URL"].starts_with("sqlite:") {
            let file = given["WEIR_DATABASE_URL"].replace("/var/lib/weir/", "/no/such/folder/");
            given.insert("WEIR_DATABASE_URL".to_owned(), file);
        }
        let folder = tempfile::tempdir().unwrap();
        // Backups have a disk, which exists.
        let here = |argument: &String| argument.replace("/backup", folder.path().to_str().unwrap());
        let mut start = Command::new(weir().unwrap());
        let arguments = arguments.iter().enumerate().map(|(n, one)| if n == 0 { one.clone() } else { here(one) });
        let output = start.args(arguments).current_dir(folder.path()).env_clear().envs(&given).output().unwrap();
        // The program has accepted every setting and fails because there is no server.
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = ["cannot reach Redis", "no PostgreSQL server answers", "no/such/folder"];
        assert!(!output.status.success());
        assert!(expected.iter().any(|one| error.contains(one)), "{pod}: {error}");
    }
}
