//! Bounds repeated warnings and errors: a few in the first minute from each place of the code, then one a minute while they
//! go on, and a count of the others. A fault that lasts would otherwise fill the disk, and hide the lines that matter.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{Metadata, callsite::Identifier};

const WINDOW: Duration = Duration::from_secs(60);

/// The lines of each place of the code. There are as many places as the code has, so the map is bounded.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<HashMap<Identifier, Repeated>>);

/// What one place of the code has written of late.
#[derive(Debug)]
struct Repeated {
    /// The module and the line, for people.
    name: String,
    since: Instant,
    /// How many more lines of this minute are written.
    left: u32,
    suppressed: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// So many lines of the last minute were not written.
    Write {
        suppressed: u64,
    },
    Suppress,
}

impl Repeats {
    /// A few, so that several destinations or requests show that more than one is concerned.
    pub(super) const PER_MINUTE: u32 = 5;

    pub(super) fn judge(&self, metadata: &'static Metadata<'static>) -> Verdict {
        let name = || format!("{}:{}", metadata.target(), metadata.line().unwrap_or_default());
        self.judge_at(metadata.callsite(), name, Instant::now())
    }

    fn judge_at(&self, callsite: Identifier, name: impl FnOnce() -> String, now: Instant) -> Verdict {
        let mut lines = self.0.lock();
        let repeated = lines.entry(callsite).or_insert_with(|| Repeated {
            name: name(),
            since: now,
            left: Self::PER_MINUTE,
            suppressed: 0,
        });
        if now.duration_since(repeated.since) >= WINDOW {
            // What repeated in the last minute is known by now. An agent that fails every second would write its lines
            // of each minute one after the other.
            let goes_on = repeated.suppressed > 0 && now.duration_since(repeated.since) < 2 * WINDOW;
            (repeated.since, repeated.left) = (now, if goes_on { 1 } else { Self::PER_MINUTE });
        }
        let Some(left) = repeated.left.checked_sub(1) else {
            repeated.suppressed += 1;
            return Verdict::Suppress;
        };
        repeated.left = left;
        Verdict::Write { suppressed: std::mem::take(&mut repeated.suppressed) }
    }

    /// The places with lines that were not written, and that wrote nothing since: their counts would be lost.
    pub(super) fn ended(&self) -> Vec<(String, u64)> {
        self.ended_at(Instant::now())
    }

    fn ended_at(&self, now: Instant) -> Vec<(String, u64)> {
        let mut lines = self.0.lock();
        let ended = lines
            .values_mut()
            .filter(|repeated| repeated.suppressed > 0 && now.duration_since(repeated.since) >= WINDOW);
        ended.map(|repeated| (repeated.name.clone(), std::mem::take(&mut repeated.suppressed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Callsite, Metadata, subscriber::Interest};

    use super::*;

    struct Here;

    impl Callsite for Here {
        fn set_interest(&self, _: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nothing asks for it")
        }
    }

    static HERE: Here = Here;

    #[test]
    fn a_few_lines_a_minute_are_written_and_the_others_are_counted() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let judge = |seconds| {
            let at = start + Duration::from_secs(seconds);
            repeats.judge_at(Identifier(&HERE), || "here".to_owned(), at)
        };
        for _ in 0..Repeats::PER_MINUTE {
            assert_eq!(judge(0), Verdict::Write { suppressed: 0 });
        }
        for second in 1..60 {
            assert_eq!(judge(second), Verdict::Suppress);
        }
        assert_eq!(judge(60), Verdict::Write { suppressed: 59 });
        assert_eq!(judge(61), Verdict::Suppress, "it goes on: one line a minute is enough");
        for _ in 0..6 {
            judge(62);
        }
        let ended = |seconds| repeats.ended_at(start + Duration::from_secs(seconds));
        assert_eq!(ended(119), [], "the next line may still say it");
        assert_eq!(ended(120), [("here".to_owned(), 7)]);
        assert_eq!(ended(180), []);
        for _ in 0..Repeats::PER_MINUTE {
            assert_eq!(judge(300), Verdict::Write { suppressed: 0 }, "it was over, and begins again");
        }
    }
}
