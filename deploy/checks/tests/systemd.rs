//! The units: systemd understands them, they are confined, and the program takes what they give it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command};

use weir_deploy_checks::{drain_seconds, known_settings, project, read, run, tool, weir};

const UNITS: [&str; 3] = ["weir-api.service", "weir-scheduler.service", "weir-worker@.service"];
/// In tenths, of ten: 1.5 is called OK. What is left is that Weir talks to the network.
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
fn systemd_finds_no_fault_in_the_units() {
    let folder = tempfile::tempdir().unwrap();
    for name in UNITS {
        // It looks whether the program is there. An instance, since a template alone is not run.
        let here = unit(name).replace("/usr/local/bin/weir", weir().unwrap().to_str().unwrap());
        let file = folder.path().join(name.replace('@', "@1"));
        fs::write(&file, here).unwrap();
        let output = systemd_analyze().arg("verify").arg(&file).output().unwrap();
        // A line that systemd ignores is a warning to it, and no failure.
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{name}: {said}");
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
fn units_wait_until_a_process_has_drained_and_leave_it_enough_files() {
    for name in UNITS {
        let unit = unit(name);
        let stop: u64 = setting(&unit, "TimeoutStopSec").parse().unwrap();
        assert!(stop >= drain_seconds().unwrap() + 5, "{name} stops after {stop} s");
        assert!(setting(&unit, "LimitNOFILE").parse::<u64>().unwrap() >= 65_536, "{name}");
    }
}

#[test]
fn the_program_takes_the_arguments_of_the_units() {
    for name in UNITS {
        let unit = unit(name);
        let command = setting(&unit, "ExecStart").replace("%i", "1");
        let (program, arguments) = command.split_once(' ').unwrap();
        assert_eq!(program, "/usr/local/bin/weir");
        run(Command::new(weir().unwrap()).args(arguments.split(' ')).arg("--help")).unwrap();
    }
}

#[test]
fn the_example_names_settings_that_exist() {
    let known = known_settings().unwrap();
    for line in unit("weir.env.example").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, _) = line.split_once('=').unwrap();
        assert!(known.iter().any(|setting| setting == name), "{name} is no setting");
    }
}
