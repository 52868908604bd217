//! The systemd units: valid, confined, and with arguments and settings that the program accepts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fs, process::Command};

use weir_deploy_checks::{drain_seconds, known_settings, project, read, run, tool, weir};

/// The services that run until they are stopped.
const SERVICES: [&str; 4] = ["weir.service", "weir-api.service", "weir-scheduler.service", "weir-worker@.service"];
/// Every service. A test checks that none is missing.
const UNITS: [&str; 6] = [
    "weir.service",
    "weir-api.service",
    "weir-scheduler.service",
    "weir-worker@.service",
    "weir-backup.service",
    "weir-command@.service",
];
/// The highest exposure level in tenths: systemd calls 1.5 of 10 "OK". Most of the remaining exposure is network
/// access.
const EXPOSURE: &str = "--threshold=15";

fn systemd_analyze() -> Command {
    Command::new(tool("WEIR_TEST_SYSTEMD_ANALYZE").unwrap())
}

fn unit(name: &str) -> String {
    read(&format!("deploy/systemd/{name}")).unwrap()
}

fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_else(|| panic!("no {name}"))
}

/// The name of a template's instance.
fn instance(unit: &str) -> &str {
    if unit == "weir-command@.service" { "migrate" } else { "1" }
}

#[test]
fn every_unit_is_tested() {
    let files = fs::read_dir(project().join("deploy/systemd")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let services: BTreeSet<_> = names.filter(|name| name.ends_with(".service")).collect();
    assert_eq!(services, UNITS.map(str::to_owned).into());
}

#[test]
fn systemd_accepts_the_units() {
    let folder = tempfile::tempdir().unwrap();
    for name in UNITS.into_iter().chain(["weir-backup.timer"]) {
        // systemd checks that the program exists. A template is checked as an instance, because only an instance can
        // run.
        let here = unit(name).replace("/usr/local/bin/weir", weir().unwrap().to_str().unwrap());
        let file = folder.path().join(name.replace('@', &format!("@{}", instance(name))));
        fs::write(&file, here).unwrap();
        let output = systemd_analyze().arg("verify").arg(&file).output().unwrap();
        // For a line that it ignores, systemd only prints a warning.
        let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && printed.is_empty(), "{name}: {printed}");
    }
}

#[test]
fn units_are_confined() {
    for name in UNITS {
        let file = project().join("deploy/systemd").join(name);
        run(systemd_analyze().args(["security", "--offline=true", "--no-pager", EXPOSURE]).arg(file)).unwrap();
    }
}

#[test]
fn units_wait_for_the_drain_and_allow_enough_open_files() {
    for name in UNITS {
        let unit = unit(name);
        let stop: u64 = setting(&unit, "TimeoutStopSec").parse().unwrap();
        assert!(stop >= drain_seconds().unwrap() + 5, "{name} stops after {stop} s");
        assert!(setting(&unit, "LimitNOFILE").parse::<u64>().unwrap() >= 65_536, "{name}");
    }
}

#[test]
fn the_program_accepts_the_arguments_of_the_units() {
    for name in UNITS {
        let unit = unit(name);
        let command = setting(&unit, "ExecStart").replace("%i", instance(name));
        let (program, arguments) = command.split_once(' ').unwrap();
        assert_eq!(program, "/usr/local/bin/weir");
        run(Command::new(weir().unwrap()).args(arguments.split(' ')).arg("--help")).unwrap();
    }
}

#[test]
fn services_report_to_systemd_reload_and_survive_a_long_migration() {
    for name in SERVICES {
        let unit = unit(name);
        assert_eq!(setting(&unit, "Type"), "notify", "{name}");
        assert_eq!(setting(&unit, "TimeoutStartSec"), "6h", "{name}");
        assert_eq!(setting(&unit, "ExecReload"), "kill -HUP $MAINPID", "{name}");
        assert!(setting(&unit, "WatchdogSec").parse::<u64>().unwrap() >= 30, "{name}");
    }
}

#[test]
fn commands_have_the_settings_the_user_and_the_database_of_the_service() {
    let service = unit("weir.service");
    for name in ["weir-command@.service", "weir-backup.service"] {
        let unit = unit(name);
        for shared in ["Environment", "EnvironmentFile", "User", "DynamicUser", "StateDirectoryMode"] {
            assert_eq!(setting(&unit, shared), setting(&service, shared), "{name}: {shared}");
        }
        assert!(setting(&unit, "StateDirectory").split(' ').any(|folder| folder == "weir"), "{name}");
        // A migration must not be interrupted.
        assert_eq!(setting(&unit, "TimeoutStartSec"), "infinity", "{name}");
    }
}

#[test]
fn the_example_has_only_known_settings() {
    let known = known_settings().unwrap();
    for line in unit("weir.env.example").lines().filter(|line| line.contains('=') && !line.starts_with("# ")) {
        // A setting that is out of use is a comment without a space.
        let (name, _) = line.trim_start_matches('#').split_once('=').unwrap();
        assert!(known.iter().any(|setting| setting == name), "{name} is not a setting");
    }
}
