//! How much CPU time the machine lost. A virtual machine loses time to others, a container to its quota. Weir cannot
//! use slots that open in that time. So the use of a limit and latencies are judged only when the machine lost little
//! time. Promises that must hold on every machine, such as the limit itself, are always judged.

use std::{
    fs,
    io::Write as _,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Figures are judged only up to this share of lost time.
const LOST_AT_MOST: f64 = 0.01;
const BEAT: Duration = Duration::from_millis(1);
/// A delay as long as a slot: a send would have missed its slot.
const STALL: Duration = Duration::from_millis(10);

/// The CPU time of the machine, in ticks.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    /// `None` when the system does not report it.
    fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal.
    fn read(stat: &str) -> Option<Self> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let times: Vec<u64> = times.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { stolen: *times.get(7)?, all: times.iter().sum() })
    }
}

/// Measures the lost time from its creation on.
pub(crate) struct Machine {
    began: Instant,
    ticks: Option<Ticks>,
    /// The total delay, in nanoseconds, of a thread that only sleeps.
    stalled: Arc<AtomicU64>,
}

impl Machine {
    pub(crate) fn watched() -> Self {
        let stalled = Arc::default();
        let watched = Arc::downgrade(&stalled);
        thread::spawn(move || record_stalls(&watched));
        Self { began: super::now(), ticks: Ticks::now(), stalled }
    }

    /// The share of lost time: the larger of the hypervisor's count and the stalls.
    fn lost(&self) -> f64 {
        let stalled = Duration::from_nanos(self.stalled.load(Ordering::Relaxed));
        self.stolen().max(stalled.as_secs_f64() / self.began.elapsed().as_secs_f64())
    }

    fn stolen(&self) -> f64 {
        let (Some(before), Some(after)) = (self.ticks, Ticks::now()) else { return 0.0 };
        (after.stolen - before.stolen) as f64 / (after.all - before.all).max(1) as f64
    }

    pub(crate) fn was_undisturbed(&self) -> bool {
        self.lost() <= LOST_AT_MOST
    }

    /// Asserts that a figure is good, if the machine lost little time.
    pub(crate) fn judge(&self, is_good: bool, seen: &str) {
        let lost = self.lost();
        let is_judged = lost <= LOST_AT_MOST;
        count(is_judged);
        if is_judged {
            assert!(is_good, "{seen}; the machine lost {lost:.3} of its time");
        } else {
            println!("{seen}; not judged, because the machine lost {lost:.3} of its time");
        }
    }

    /// Asserts that enough of a limit was used, if the machine lost little time.
    pub(crate) fn judge_use(&self, what: &str, used: f64, least: f64) {
        self.judge(used >= least, &format!("{what}: used {used:.4}, where at least {least} was expected"));
    }
}

/// Reports an assertion to `cargo xtask test`, which counts the assertions that were not judged.
fn count(judged: bool) {
    let Some(path) = std::env::var_os("WEIR_TEST_JUDGEMENTS") else { return };
    let mut file = fs::OpenOptions::new().append(true).open(path).expect("the file of the judgements");
    file.write_all(if judged { b"judged\n" } else { b"not judged\n" }).expect("a line is written");
}

fn record_stalls(stalled: &Weak<AtomicU64>) {
    let mut from = super::now();
    while let Some(stalled) = stalled.upgrade() {
        thread::sleep(BEAT);
        let until = super::now();
        let late = (until - from).saturating_sub(BEAT);
        if late >= STALL {
            stalled.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
        }
        from = until;
    }
}
