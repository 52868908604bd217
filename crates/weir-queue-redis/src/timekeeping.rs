//! Keeps the time of the shards: verifies the time of this process, and corrects shards whose server's clock was set.
//!
//! A server's clock may be set at any moment, also directly before a process reads it. So a process takes the time of a
//! shard only when a running process *confirms* it: the running process compares the shard with the time that it carries,
//! and if they agree, writes the compared time to the shard. A process that starts reads the shard again and again. If
//! the time ran evenly between two readings, and the confirmed time lies between them, both readings are right. If nobody
//! confirms, nobody runs, and the first process decides: only one can write the next confirmation.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use weir_core::Clock as _;
use weir_queue::QueueResult;

use crate::{
    client::{ShardClient, unexpected},
    clock::{Bounds, Offset},
    keys::Shard,
    scripts::{Call, Operation},
};

/// How often the clock is set and the time confirmed. Two quartz clocks drift apart by 0.1 ms in a second at most, a
/// hundredth of the narrowest slot.
const CLOCK_EVERY: Duration = Duration::from_secs(1);
/// How soon after a correction the time is compared again, so that it is confirmed.
const CHECK_CORRECTION_AFTER: Duration = Duration::from_millis(20);
/// Exchanges with a server for each setting of its offset. Their bounds are intersected, so one exchange in four
/// without a delay is enough.
const EXCHANGES: usize = 4;
/// How often a process that is not verified reads the time. An even time with a step to and fro within this time would
/// not be noticed.
const READ_EVERY: Duration = Duration::from_millis(50);
/// Running processes confirm the time within this: each does so every second.
const CONFIRMED_WITHIN: Duration = CLOCK_EVERY.saturating_mul(2);
/// On a Redis on which nobody has stated a time, the wait is shorter. Either it is new, or it has lost its data, and then
/// running processes state the time with their next calls.
const STATED_WITHIN: Duration = Duration::from_millis(300);
/// A Redis whose clock is this many nanoseconds ahead of the wall clock when a process starts alone may have been set
/// forward since the last process wrote a cursor.
const WALL_DOUBT: i64 = 1_000_000_000;
/// A smaller correction, in microseconds, is not reported: it comes from a clock that is slewed fast.
const REPORTED_STEP: i64 = 100_000;
/// A start that takes longer is reported.
const SLOW_START: Duration = Duration::from_secs(5);

/// The answer of `begin.lua`. Times are in microseconds.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// The time of the shard and the clock of its server.
    time: i64,
    server: i64,
    /// The latest time that a process had stated; 0 for none.
    heard: i64,
    /// The latest time of the shard that a process has confirmed; 0 for none.
    confirmed: i64,
}

impl Begun {
    fn shift(&self) -> i64 {
        self.time - self.server
    }
}

/// What a call of `begin.lua` does besides telling the time.
#[derive(Debug, Clone, Copy)]
enum Change {
    Nothing,
    /// Replaces the shift of the shard, unless it has changed meanwhile.
    Shift {
        from: i64,
        to: i64,
    },
    /// Confirms a time. `after`: only if this was the latest that was confirmed.
    Confirm {
        time: i64,
        after: Option<i64>,
    },
}

/// What this process has found out about a shard's time before it is verified.
struct Candidate {
    shard: Shard,
    /// The time, over readings between which it ran evenly.
    even: Offset,
    /// The first of these readings.
    since: i64,
    /// The latest confirmation that was seen, and when it was seen first, by the monotonic clock.
    confirmed: i64,
    seen_at: i64,
    is_confirmed: bool,
}

impl ShardClient {
    /// The shards whose time is read: in a Cluster each has the clock of its node.
    fn clocks(&self) -> Vec<Shard> {
        if self.connection.dialer().is_cluster() { Shard::all().collect() } else { vec![Shard::REFERENCE] }
    }

    /// Sets the clock at the start of the process: afterwards the time is verified, and the generations are known.
    pub(crate) async fn start_clock(&self) -> QueueResult<()> {
        self.verify_clock().await?;
        self.set_clock().await.map(drop)
    }

    /// Waits until the time of this process is verified.
    async fn verify_clock(&self) -> QueueResult<()> {
        let began = self.clock.monotonic();
        let mut is_reported = false;
        let mut candidates: Vec<Candidate> =
            self.clocks().into_iter().map(|shard| Candidate::new(shard, began)).collect();
        loop {
            try_join_all(candidates.iter_mut().map(|candidate| self.examine(candidate))).await?;
            if candidates.iter().all(|candidate| candidate.is_confirmed) && self.take_time(&candidates) {
                return Ok(());
            }
            if self.clock.monotonic() - began > SLOW_START.as_nanos() as i64 && !is_reported {
                is_reported = true;
                tracing::warn!("the clock of Redis is set again and again; nothing is sent until it runs evenly");
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Reads the time once more.
    async fn examine(&self, candidate: &mut Candidate) -> QueueResult<()> {
        let (begun, time) = self.read_time(candidate.shard, Change::Nothing).await?;
        let now = self.clock.monotonic();
        candidate.learn(begun, time, now);
        let nobody_has_stated = begun.heard == 0 && begun.confirmed == 0;
        let ahead = begun.time - begun.heard.max(self.clock.wall().as_nanos() / 1_000);
        let is_doubtful = ahead * 1_000 > WALL_DOUBT;
        let wait = if nobody_has_stated && !is_doubtful { STATED_WITHIN } else { CONFIRMED_WITHIN };
        if candidate.is_confirmed || now - candidate.seen_at < wait.as_nanos() as i64 {
            return Ok(());
        }
        // Nobody runs. A clock of Redis that is ahead is not trusted: the time continues at the wall clock, but not before
        // the last time that a process has stated.
        if is_doubtful {
            tracing::warn!("the clock of Redis is ahead of this machine's; the time continues by this machine's");
            let shift = Change::Shift { from: begun.shift(), to: begun.shift() - ahead };
            return self.read_time(candidate.shard, shift).await.map(drop);
        }
        let confirm = Change::Confirm { time: begun.time, after: Some(begun.confirmed) };
        let (answer, _) = self.read_time(candidate.shard, confirm).await?;
        candidate.is_confirmed = answer.confirmed == begun.time;
        Ok(())
    }

    /// From now on this process carries the time, if the time that it has told is not later.
    fn take_time(&self, candidates: &[Candidate]) -> bool {
        let now = self.clock.monotonic();
        let time = |shard: Shard| candidates.iter().find(|candidate| candidate.shard == shard);
        for shard in Shard::all() {
            // On a single server all shards have one clock.
            if let Some(bounds) = time(shard).or(candidates.first()).and_then(|candidate| candidate.even.bounds(now)) {
                self.clock.take(shard, bounds);
            }
        }
        self.clock.finish_verification()
    }

    /// Sets the clock every second, and at once when it is in doubt. Never returns.
    pub(crate) async fn run_clock(self: Arc<Self>) {
        let mut wait = CLOCK_EVERY;
        loop {
            // Wait for the next second, or until the clock is in doubt. The clock is set in either case.
            let _ = tokio::time::timeout(wait, self.clock.doubt.notified()).await;
            wait = CLOCK_EVERY;
            let set = async {
                if !self.clock.is_verified() {
                    tracing::warn!(
                        "this process was behind the time of the others; it sends nothing until it knows the time"
                    );
                    self.verify_clock().await?;
                }
                self.set_clock().await
            };
            match set.await {
                Ok(true) => {}
                Ok(false) => wait = CHECK_CORRECTION_AFTER,
                Err(error) => {
                    tracing::debug!(%error, "could not set the clock; it keeps its offset");
                    self.registry.doubt();
                }
            }
        }
    }

    /// Compares the time of every shard with that of this process, and learns its generation. Corrects the shards that
    /// were set. If none was, confirms the time and returns `true`.
    async fn set_clock(&self) -> QueueResult<bool> {
        let measured = if self.connection.dialer().is_cluster() {
            try_join_all(Shard::all().map(|shard| self.measure(shard))).await?
        } else {
            // Each shard begins. All have one clock, which is measured once.
            let begun = self.begin_all().await?;
            let (_, reference, server) = self.measure(Shard::REFERENCE).await?;
            let of = |(shard, begun)| (shard, if shard == Shard::REFERENCE { reference } else { begun }, server);
            Shard::all().zip(begun).map(of).collect()
        };
        let (mut corrections, mut most) = (Vec::new(), 0);
        for (shard, begun, server) in &measured {
            self.clock.set_server(*shard, *server);
            if let Some(ahead) = self.clock.check(*shard, server.shifted(begun.shift())) {
                most = most.max(ahead.abs());
                let shift = Change::Shift { from: begun.shift(), to: begun.shift() - ahead };
                corrections.push(self.begin(*shard, shift));
            }
        }
        // Another process has stated a time that is ahead.
        if !self.clock.is_verified() {
            return Ok(false);
        }
        if corrections.is_empty() {
            let confirmed = measured.iter().filter(|(shard, ..)| self.clocks().contains(shard));
            let confirm = |(shard, begun, _): &(Shard, Begun, Bounds)| {
                self.begin(*shard, Change::Confirm { time: begun.time, after: None })
            };
            self.send(confirmed.map(confirm).collect()).await?;
            return Ok(true);
        }
        if most > REPORTED_STEP {
            tracing::warn!(
                milliseconds = most / 1_000,
                "the clock of Redis was set; Weir keeps the time from before the change"
            );
        }
        self.send(corrections).await?;
        Ok(false)
    }

    /// The offset of the clock of a shard's server, and the last answer.
    async fn measure(&self, shard: Shard) -> QueueResult<(Shard, Begun, Bounds)> {
        let (mut last, time) = self.read_time(shard, Change::Nothing).await?;
        let mut server = time.shifted(-last.shift());
        for _ in 1..EXCHANGES {
            let (begun, time) = self.read_time(shard, Change::Nothing).await?;
            server = server.and(time.shifted(-begun.shift()));
            last = begun;
        }
        Ok((shard, last, server))
    }

    /// Reads the time of a shard once: the answer, and the bounds of its offset.
    async fn read_time(&self, shard: Shard, change: Change) -> QueueResult<(Begun, Bounds)> {
        let call = self.begin(shard, change);
        let asked_at = self.clock.monotonic();
        let answers = self.send(vec![call]).await?;
        let answered_at = self.clock.monotonic();
        let &[begun] = &answers[..] else { return Err(unexpected()) };
        self.clock.hear(shard, begun.heard, answered_at);
        Ok((begun, Bounds::of(asked_at, begun.time, answered_at)))
    }

    async fn begin_all(&self) -> QueueResult<Vec<Begun>> {
        let begun = self.send(Shard::all().map(|shard| self.begin(shard, Change::Nothing)).collect()).await?;
        // What was stated to one shard holds for all, because they have one clock.
        let heard = begun.iter().map(|begun| begun.heard).max().unwrap_or_default();
        self.clock.hear(Shard::REFERENCE, heard, self.clock.monotonic());
        Ok(begun)
    }

    async fn send(&self, calls: Vec<Call>) -> QueueResult<Vec<Begun>> {
        let mut begun = Vec::with_capacity(calls.len());
        for answered in self.call_all(&calls).await {
            let mut values = answered?.values;
            let mut next = || values.next_int().ok_or_else(unexpected);
            begun.push(Begun { time: next()?, server: next()?, heard: next()?, confirmed: next()? });
        }
        Ok(begun)
    }

    /// A call that makes sure that the shard has a generation and its delivery queue.
    pub(crate) fn begin_shard(&self, shard: Shard) -> Call {
        self.begin(shard, Change::Nothing)
    }

    fn begin(&self, shard: Shard, change: Change) -> Call {
        let ((from, to), (time, after)) = match change {
            Change::Nothing => ((0, 0), (0, -1)),
            Change::Shift { from, to } => ((from, to), (0, -1)),
            Change::Confirm { time, after } => ((0, 0), (time, after.unwrap_or(-1))),
        };
        let mut call = self.new_call(shard, Operation::Begin);
        call.arg(from).arg(to).arg(time).arg(after).arg(0);
        call
    }
}

impl Candidate {
    fn new(shard: Shard, now: i64) -> Self {
        Self { shard, even: Offset::default(), since: 0, confirmed: -1, seen_at: now, is_confirmed: false }
    }

    fn learn(&mut self, begun: Begun, time: Bounds, now: i64) {
        if !self.even.is_set() || self.even.contradiction(time, now).is_some() {
            self.even = Offset::default();
            self.since = begun.time;
            self.is_confirmed = false;
        }
        self.even.follow(time, now);
        // What was confirmed before this process came is not news.
        if self.confirmed >= 0 && self.confirmed != begun.confirmed {
            self.seen_at = now;
            self.is_confirmed = (self.since..=begun.time).contains(&begun.confirmed);
        }
        self.confirmed = begun.confirmed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings of a shard, each 50 ms after the one before: how far its time is ahead of the right one, and the latest
    /// confirmation. Returns whether the time is confirmed after each.
    fn readings(of: &[(i64, i64)]) -> Vec<bool> {
        let mut candidate = Candidate::new(Shard::REFERENCE, 1);
        let mut is_confirmed = Vec::new();
        for (reading, &(ahead, confirmed)) in (1_i64..).zip(of) {
            let now = reading * 50_000;
            let begun = Begun { time: now + ahead, server: now, heard: 0, confirmed };
            let time = Bounds::of(now * 1_000 - 50_000, begun.time, now * 1_000 + 50_000);
            candidate.learn(begun, time, now * 1_000);
            is_confirmed.push(candidate.is_confirmed);
        }
        is_confirmed
    }

    #[test]
    fn a_time_between_two_even_readings_confirms_them() {
        assert_eq!(readings(&[(0, 7), (0, 7), (0, 130_000), (0, 130_000)]), [false, false, true, true]);
        assert_eq!(readings(&[(0, 50_000), (0, 50_000)]), [false, false], "it was confirmed before the first reading");
    }

    #[test]
    fn a_time_from_before_or_after_a_step_confirms_nothing() {
        let hour = 3_600_000_000;
        // The clock was set before the first reading, and the confirmation is older.
        assert_eq!(readings(&[(hour, 7), (hour, 60_000), (hour, 60_000)]), [false; 3]);
        assert_eq!(readings(&[(-hour, 7), (-hour, 60_000)]), [false; 2]);
        // It is corrected afterwards, and what was confirmed then lies before the second reading.
        assert_eq!(readings(&[(hour, 7), (0, 7), (0, 90_000), (0, 170_000)]), [false, false, false, true]);
        // It is set after the confirmation.
        assert_eq!(readings(&[(0, 7), (0, 7), (0, 130_000), (hour, 130_000)]), [false, false, true, false]);
    }
}
