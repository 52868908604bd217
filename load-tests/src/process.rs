//! CPU time and memory of a process, from `/proc`.

use anyhow::Context;

/// Ticks a second in `/proc/PID/stat`: 100 on every Linux that Rust runs on; the frequency of the kernel's timer does
/// not matter.
const TICKS_PER_SECOND: f64 = 100.0;

/// The CPU time of a process so far, in seconds.
pub(crate) fn cpu_s_of(process: u32) -> anyhow::Result<f64> {
    Ok(Stat::of(process).with_context(|| format!("process {process} does not exist"))?.own_s)
}

/// The CPU time of a process and its children so far, including children that have ended.
pub(crate) fn cpu_s_of_family(parent: u32) -> anyhow::Result<f64> {
    let own = Stat::of(parent).with_context(|| format!("process {parent} is gone"))?;
    let processes = std::fs::read_dir("/proc")?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children = numbers.filter_map(Stat::of).filter(|stat| stat.parent == parent);
    Ok(own.own_s + own.ended_children_s + children.map(|child| child.own_s).sum::<f64>())
}

pub(crate) fn own_cpu_s() -> anyhow::Result<f64> {
    cpu_s_of(std::process::id())
}

#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    own_s: f64,
    ended_children_s: f64,
}

impl Stat {
    fn of(process: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// Fields count from 1. The second is the name in parentheses, which may contain spaces.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let seconds = |field: usize| Some(fields.get(field - 3)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own_s: seconds(14)? + seconds(15)?,
            ended_children_s: seconds(16)? + seconds(17)?,
        })
    }
}

/// The resident memory of a process, in MiB.
pub(crate) fn rss_mib_of(process: u32) -> anyhow::Result<f64> {
    memory_of(process, "VmRSS:")
}

/// The peak resident memory of a process so far, in MiB.
pub(crate) fn peak_mib_of(process: u32) -> anyhow::Result<f64> {
    memory_of(process, "VmHWM:")
}

fn memory_of(process: u32, name: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("process {process} does not exist"))?;
    mib_in(&status, name).with_context(|| format!("{path} has an unknown format"))
}

fn mib_in(status: &str, name: &str) -> Option<f64> {
    let kib = status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    Some(kib.parse::<f64>().ok()? / 1_024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_times_of_a_process_and_its_children_are_read_from_stat() {
        let stat = "42 (post (gres) x) S 7 42 42 0 -1 4194304 100 0 0 0 250 50 30 20 20 0 8 0 100 1000 10";
        assert_eq!(Stat::parse(stat), Some(Stat { parent: 7, own_s: 3.0, ended_children_s: 0.5 }));
        assert_eq!(Stat::parse("42"), None);
        assert!(cpu_s_of_family(std::process::id()).unwrap() >= 0.0);
    }

    #[test]
    fn memory_is_read_from_status() {
        assert_eq!(mib_in("Name:\tweir\nVmRSS:\t    2048 kB\nThreads:\t8\n", "VmRSS:"), Some(2.0));
        assert_eq!(mib_in("Name:\tweir", "VmRSS:"), None);
        // In this order, because the memory of the process grows meanwhile.
        let resident = rss_mib_of(std::process::id()).unwrap();
        assert!(peak_mib_of(std::process::id()).unwrap() >= resident);
    }
}
