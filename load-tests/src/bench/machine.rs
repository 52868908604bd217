//! The machine and the versions, from the kernel and the tools.

use std::{path::Path, process::Command};

use serde::{Deserialize, Serialize};

/// The machine on which the figures were measured, and the versions of the software.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    /// Of Weir, the compiler and the servers.
    pub(crate) versions: Vec<String>,
}

impl Machine {
    pub(crate) fn look(weir: &Path) -> Self {
        let cpu = read("/proc/cpuinfo");
        let of = |name: &str| cpu.lines().find(|line| line.starts_with(name))?.split_once(':');
        let memory = read("/proc/meminfo");
        let kib =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let versions = [
            first_line(Command::new(weir).arg("--version")).unwrap_or_else(|| "weir".to_owned()) + &commit(),
            first_line(Command::new("rustc").arg("--version")).unwrap_or_else(|| "rustc unknown".to_owned()),
        ];
        Self {
            cpu: of("model name").map_or("unknown", |(_, model)| model.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib.unwrap_or(0.0_f64) / 1_048_576.0,
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            versions: versions.to_vec(),
        }
    }

    /// Adds or replaces versions. Each topic may be measured in its own run.
    pub(crate) fn with_versions(mut self, more: impl IntoIterator<Item = String>) -> Self {
        for version in more {
            let name = |of: &str| of.split(' ').next().unwrap_or_default().to_owned();
            self.versions.retain(|known| name(known) != name(&version));
            self.versions.push(version);
        }
        self
    }
}

/// The checked-out commit, and whether the source has other changes.
fn commit() -> String {
    let Some(commit) = first_line(Command::new("git").args(["rev-parse", "--short=10", "HEAD"])) else {
        return String::new();
    };
    let changed = first_line(Command::new("git").args(["status", "--porcelain", "--", "crates", "Cargo.lock"]));
    format!(" (commit {commit}{})", if changed.is_some() { " with changes" } else { "" })
}

/// The version of SQLite that wrote a database, from its header.
pub(crate) fn sqlite_version(database: &Path) -> Option<String> {
    let head = std::fs::read(database).ok()?;
    let number = u32::from_be_bytes(head.get(96..100)?.try_into().ok()?);
    (number > 0).then(|| format!("SQLite {}.{}.{}", number / 1_000_000, number / 1_000 % 1_000, number % 1_000))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.lines().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_replaces_an_older_one_of_the_same_program() {
        let machine =
            Machine { versions: vec!["weir 0.1.0".to_owned(), "Redis 7.0.1".to_owned()], ..Machine::default() };
        let machine = machine.with_versions(["Redis 7.2.0".to_owned(), "SQLite 3.50.4".to_owned()]);
        assert_eq!(machine.versions, ["weir 0.1.0", "Redis 7.2.0", "SQLite 3.50.4"]);
    }
}
