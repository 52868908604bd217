//! The set-up of Docker Compose: valid, hardened, complete.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command};

use serde_json::Value;
use weir_deploy_checks::{
    drain_seconds, known_settings,
    manifests::{list, text},
    project, read, run, tool, yaml,
};

const COMPOSE: &str = "deploy/compose/compose.yaml";

fn services() -> Vec<(String, Value)> {
    let compose = yaml(COMPOSE).unwrap();
    let services = compose["services"].as_object().unwrap();
    services.iter().map(|(name, service)| (name.clone(), merged(service))).collect()
}

/// Replaces a YAML merge key (`<<`) by its values. A value next to the merge key takes precedence. The schema check
/// does not need this, but the tests below do.
fn merged(value: &Value) -> Value {
    let Some(object) = value.as_object() else { return value.clone() };
    let mut all = object.get("<<").map(merged).and_then(|base| base.as_object().cloned()).unwrap_or_default();
    all.extend(object.iter().filter(|(key, _)| *key != "<<").map(|(key, value)| (key.clone(), merged(value))));
    Value::Object(all)
}

#[test]
fn compose_files_follow_the_specification() {
    let mut check = Command::new(tool("WEIR_TEST_CHECK_JSONSCHEMA").unwrap());
    run(check.args(["--builtin-schema", "vendor.compose-spec"]).arg(project().join(COMPOSE))).unwrap();
}

#[test]
fn prometheus_accepts_its_configuration_with_the_rules() {
    // Both files are in one folder, like in the container.
    let folder = tempfile::tempdir().unwrap();
    fs::copy(project().join("deploy/compose/prometheus.yml"), folder.path().join("prometheus.yml")).unwrap();
    fs::copy(project().join("deploy/prometheus/rules.yaml"), folder.path().join("rules.yaml")).unwrap();
    let mut check = Command::new(tool("WEIR_TEST_PROMTOOL").unwrap());
    run(check.args(["check", "config"]).arg(folder.path().join("prometheus.yml"))).unwrap();
}

#[test]
fn prometheus_has_the_same_job_names_as_in_kubernetes() {
    let prometheus = yaml("deploy/compose/prometheus.yml").unwrap();
    for role in ["api", "scheduler", "worker"] {
        let jobs = list(&prometheus, "/scrape_configs");
        let job = jobs.iter().find(|job| text(job, "/job_name") == format!("weir-{role}")).unwrap();
        let found = &job["dns_sd_configs"][0];
        assert_eq!((found["names"][0].as_str(), found["port"].as_u64()), (Some(role), Some(9464)), "{role}");
    }
}

#[test]
fn every_container_is_hardened_and_has_a_health_check() {
    for (name, service) in services() {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"][0], "ALL", "{name}");
        assert_eq!(service["security_opt"][0], "no-new-privileges:true", "{name}");
        assert!(service["healthcheck"]["test"].is_array(), "{name}");
    }
}

#[test]
fn mounted_files_exist() {
    for (name, service) in services() {
        for volume in
            list(&service, "/volumes").iter().filter_map(Value::as_str).filter(|volume| volume.starts_with('.'))
        {
            let source = project().join("deploy/compose").join(volume.split(':').next().unwrap());
            assert!(source.is_file(), "{name} mounts {}", source.display());
        }
    }
}

#[test]
fn roles_have_known_settings_and_enough_time_to_stop() {
    let known = known_settings().unwrap();
    for (name, service) in services() {
        if text(&service, "/image") != "weir:compose" {
            continue;
        }
        for setting in service["environment"].as_object().unwrap().keys() {
            assert!(known.contains(setting), "{name}: {setting} is not a setting");
        }
        let grace: u64 = text(&service, "/stop_grace_period").trim_end_matches('s').parse().unwrap();
        assert!(grace >= drain_seconds().unwrap() + 5, "{name}");
        assert_eq!(list(&service, "/command"), [name.as_str()]);
    }
}

#[test]
fn every_variable_is_in_the_example_and_none_has_a_value_there() {
    let (compose, example) = (read(COMPOSE).unwrap(), read("deploy/compose/.env.example").unwrap());
    let given: Vec<_> = example.lines().filter(|line| !line.starts_with('#')).collect();
    for variable in compose.split("${").skip(1).filter_map(|rest| rest.split([':', '}']).next()) {
        assert!(given.contains(&format!("{variable}=").as_str()), "{variable} is not in .env.example");
    }
    assert!(given.iter().all(|line| line.ends_with('=')), "{example}");
}
