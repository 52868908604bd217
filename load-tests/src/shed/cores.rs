//! Cores of their own for the engine and its servers: a client that floods takes processor time of another machine in
//! production, and here that of other cores.

use anyhow::Context as _;

/// The cores that this process may use, in two parts. With one core both parts are that core.
pub(super) struct Cores {
    engine: Vec<usize>,
    client: Vec<usize>,
}

impl Cores {
    pub(super) fn divided() -> anyhow::Result<Self> {
        let mut engine = os::allowed().context("the cores of this process")?;
        let client = if engine.len() > 1 { engine.split_off(engine.len().div_ceil(2)) } else { engine.clone() };
        Ok(Self { engine, client })
    }

    pub(super) fn are_apart(&self) -> bool {
        self.engine != self.client
    }

    /// From here on, processes that this one starts have the cores of the engine.
    pub(super) fn start_engine(&self) -> anyhow::Result<()> {
        os::keep_on(&self.engine).context("could not move to the cores of the engine")
    }

    /// Keeps this process, but not those it has started, on the cores of the client.
    pub(super) fn be_client(&self) -> anyhow::Result<()> {
        os::keep_on(&self.client).context("could not move to the cores of the client")
    }
}

#[cfg(target_os = "linux")]
mod os {
    use nix::{
        sched::{CpuSet, sched_getaffinity, sched_setaffinity},
        unistd::Pid,
    };

    pub(super) fn allowed() -> anyhow::Result<Vec<usize>> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        Ok((0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect())
    }

    /// All threads of this process. Those that they start later inherit it.
    pub(super) fn keep_on(cores: &[usize]) -> anyhow::Result<()> {
        let mut set = CpuSet::new();
        for core in cores {
            set.set(*core)?;
        }
        for task in std::fs::read_dir("/proc/self/task")? {
            let thread = task?.file_name().to_string_lossy().parse()?;
            match sched_setaffinity(Pid::from_raw(thread), &set) {
                // A thread may end meanwhile.
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Elsewhere everything shares all cores.
#[cfg(not(target_os = "linux"))]
mod os {
    pub(super) fn allowed() -> anyhow::Result<Vec<usize>> {
        Ok(vec![0])
    }

    pub(super) fn keep_on(_: &[usize]) -> anyhow::Result<()> {
        Ok(())
    }
}
