//! How much of the machine there was. A virtual machine loses time to others, a container to its quota, and slots that open in that
//! time are lost with it: nothing that Weir did or could mend. So how well a limit is used, and how soon something arrives, is judged
//! where the machine was there; what no machine may break, as that a limit is held, is judged always.

use std::{
    fs,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Judged is what lost no more of its time to others.
const LOST_AT_MOST: f64 = 0.01;
const BEAT: Duration = Duration::from_millis(1);
/// A beat that is later than a slot is wide: a send would have missed its own.
const STILL: Duration = Duration::from_millis(10);

/// The CPU time of the machine, in ticks.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    /// None where the system does not tell.
    fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line: user, nice, system, idle, waiting for the disk, two kinds of interrupts, stolen.
    fn read(stat: &str) -> Option<Self> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let times: Vec<u64> = times.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { stolen: *times.get(7)?, all: times.iter().sum() })
    }
}

/// A machine that is watched from the moment this was made.
pub(crate) struct Machine {
    began: Instant,
    ticks: Option<Ticks>,
    /// Nanoseconds in which a thread that has next to nothing to do did not get to do it.
    still: Arc<AtomicU64>,
}

impl Machine {
    pub(crate) fn watched() -> Self {
        let still = Arc::default();
        let watched = Arc::downgrade(&still);
        thread::spawn(move || note_stillness(&watched));
        Self { began: super::now(), ticks: Ticks::now(), still }
    }

    /// The share of its time that others had, as the hypervisor or as the watch has it.
    fn lost(&self) -> f64 {
        let still = Duration::from_nanos(self.still.load(Ordering::Relaxed));
        self.stolen().max(still.as_secs_f64() / self.began.elapsed().as_secs_f64())
    }

    fn stolen(&self) -> f64 {
        let (Some(before), Some(after)) = (self.ticks, Ticks::now()) else { return 0.0 };
        (after.stolen - before.stolen) as f64 / (after.all - before.all).max(1) as f64
    }

    pub(crate) fn was_there(&self) -> bool {
        self.lost() <= LOST_AT_MOST
    }

    /// What was seen is as good as it should be, if the machine was there.
    pub(crate) fn judge(&self, is_good: bool, seen: &str) {
        let lost = self.lost();
        if self.was_there() {
            assert!(is_good, "{seen}; others had {lost:.3} of the machine");
        } else {
            println!("{seen}; not judged, as others had {lost:.3} of the machine");
        }
    }

    /// At least so much of a limit was used, likewise.
    pub(crate) fn judge_use(&self, what: &str, used: f64, least: f64) {
        self.judge(used >= least, &format!("{what}: used {used:.4} of at least {least}"));
    }
}

fn note_stillness(still: &Weak<AtomicU64>) {
    let mut from = super::now();
    while let Some(still) = still.upgrade() {
        thread::sleep(BEAT);
        let until = super::now();
        let late = (until - from).saturating_sub(BEAT);
        if late >= STILL {
            still.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
        }
        from = until;
    }
}
