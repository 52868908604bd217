//! The systemd units: valid, confined, and with arguments and settings that the program accepts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command};

use weir_deploy_checks::{drain_seconds, known_settings, project, read, run, tool, weir};

const UNITS: [&str; 3] = ["weir-api.service", "weir-scheduler.service", "weir-worker@.service"];
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

#[test]
fn systemd_accepts_the_units() {
    let folder = tempfile::tempdir().unwrap();
    for name in UNITS {
        // systemd checks that the program exists. A template is checked as an instance, because only an instance can
        // run.
        let here = unit(name).replace("/usr/local/bin/weir", weir().unwrap().to_str().unwrap());
        let file = folder.path().join(name.replace('@', "@1"));
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
        let command = setting(&unit, "ExecStart").replace("%i", "1");
        let (program, arguments) = command.split_once(' ').unwrap();
        assert_eq!(program, "/usr/local/bin/weir");
        run(Command::new(weir().unwrap()).args(arguments.split(' ')).arg("--help")).unwrap();
    }
}

#[test]
fn the_example_has_only_known_settings() {
    let known = known_settings().unwrap();
    for line in unit("weir.env.example").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, _) = line.split_once('=').unwrap();
        assert!(known.iter().any(|setting| setting == name), "{name} is not a setting");
    }
}
