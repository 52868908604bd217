//! The Lua scripts, one for each operation, and calls of them.
//!
//! A script consists of the constants, which come from the Rust definitions so that both sides agree, the parts that it
//! uses (shard, arguments, groups, limiter, permits, turns), and the operation itself, without the definitions that the
//! operation does not need. Calls name it by its digest. A server that does not know the digest gets the source once.

use std::{sync::LazyLock, time::Duration};

use redis::{Arg, Cmd, ToRedisArgs};
use strum::{EnumIter, IntoEnumIterator as _};
use weir_core::{
    DestinationId, Limiter, Period, RateLimit, RateLimits, Timestamp,
    adaptive::{AdaptiveRate, PaceCursor},
    claim::ClaimedDelivery,
    limit::{BUCKETS, MinInterval, NARROW_SLOT, NARROWEST_SLOT, SLOTS_PER_INTERVAL, UNLIMITED_SLOT_WIDTH},
    limiter::{
        COST_OF_ONE, DORMANT_AT_MOST, GRANT_AHEAD, LimitCursor, LimiterParts, OVERTAKEN_FOR, RETIRED_LONGER, Ring,
        WAITED_FOR,
    },
    plan::{self, CADENCE, FAST_PATH_AHEAD, LAG_DEPTH, LEAD, NEAR_SLOT, SHARES},
};
use weir_queue::{
    GroupRun, LAST_OLD_START, LONGEST_PREPARATION, LONGEST_RUN, MOST_REPORTS, REPORTS_OF_A_RUN, RESERVED_AGAIN,
    RESERVED_FOR, RUN_FALLBACK, SLOT_HORIZON, SLOW_PACE, Terms,
};

use self::assembly::assemble;
use crate::{
    RedisConfig, codec,
    keys::{Keys, Shard, group_job},
};

mod assembly;

/// How much longer than needed a job is kept, because a process may still use it a little later. A minute outlasts
/// every lease, call and slot.
const KEEP_LONGER: Duration = Duration::from_secs(60);
/// The caller's time is a lower bound, except for the drift between two quartz clocks. A server that is further behind
/// was set back.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(5);
/// The time of a shard is at most this far ahead of the time that the caller states. A script is called within a few
/// milliseconds; a process waits two seconds for the answer, and a slot that is a second late is of no use to it.
const LATE_CALL: Duration = Duration::from_secs(1);
/// No last start is further ahead of the time: a recovered one is at most [`LAST_OLD_START`] ahead. The time of a shard
/// can be behind that of the processes by the second between two statements of their time and by [`LATE_CALL`]; twice
/// that is added.
const MOST_AHEAD: Duration = LAST_OLD_START.saturating_add(Duration::from_secs(4));
/// The largest integer that Lua's numbers and the scores of sorted sets hold exactly.
const LATEST_MICROS: i64 = 1 << 53;
/// The largest number that a script accepts as a generation or as the shift of a clock: a time in the year 2112. A
/// larger one was not written by Weir.
const LATEST: i64 = 1 << 52;
/// Entries must be missing for this long before a shard is rebuilt: settlements come within a tenth of this time.
const SHORT_FOR: Duration = Duration::from_secs(1);
/// A shard with more busy destinations is not counted: counting 2,000 takes Redis about 2 ms.
const MOST_COUNTED: usize = 2_000;
/// How long the check holds that a shard's data belong to the current server process. No server restarts within this
/// time; a busy shard checks 200 times a second instead of once in each call.
const CHECKED_FOR: Duration = Duration::from_millis(5);

/// How long the job of a quiet adaptive destination is kept, with less than 4 KB: longer than a night.
const PACE_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a job waits in a turn queue at most. One that waits longer is forgotten, and a sweep wakes its destination.
const WAITING_KEPT: Duration = Duration::from_secs(60 * 60);
/// The most members that get a turn in one claim, so that no script occupies the server for long.
const MOST_TURNS: usize = 64;

/// The most limit keys that an edit of their destination makes due in one call, so that no script occupies the server for
/// long.
const MOST_RUN_BY_AN_EDIT: usize = 200;

/// One operation on a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter)]
pub(crate) enum Operation {
    Begin,
    Wake,
    ChangeTerms,
    Hold,
    Claim,
    Publish,
    Admit,
    TakeSlot,
    Reserve,
    GiveBack,
    GroupSince,
    Settle,
    Holders,
    Orphaned,
    Withdraw,
    Close,
    Entries,
    Tidy,
    Depths,
    Progress,
    Exchange,
    Report,
    Paces,
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".lua"))
    };
}

const ARGUMENTS: &str = lua!("arguments");
const LIMITER: &str = concat!(lua!("groups"), "\n", lua!("ring"), "\n", lua!("limiter"));
const TURNS: &str = lua!("turns");
const UNTAKEN: &str = lua!("untaken");

/// The parts that scripts use besides the shard and the arguments.
const PLAIN: &[&str] = &[];
const LIMITING: &[&str] = &[LIMITER];
const ADMITTING: &[&str] = &[LIMITER, lua!("permits"), TURNS];
const TAKING_TURNS: &[&str] = &[LIMITER, TURNS];
const PUBLISHING: &[&str] = &[LIMITER, lua!("permits"), lua!("recovery"), TURNS];
const RESERVING: &[&str] = &[LIMITER, lua!("recovery"), TURNS];
const COUNTING: &[&str] = &[UNTAKEN];
const WATCHING: &[&str] = &[LIMITER, UNTAKEN];

impl Operation {
    /// The parts of its script, and the operation itself.
    fn source(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Begin => (PLAIN, lua!("begin")),
            Self::Wake => (PLAIN, lua!("wake")),
            Self::ChangeTerms => (LIMITING, lua!("change_terms")),
            Self::Hold => (LIMITING, lua!("hold")),
            Self::Claim => (TAKING_TURNS, lua!("claim")),
            Self::Publish => (PUBLISHING, lua!("publish")),
            Self::Admit => (ADMITTING, lua!("admit")),
            Self::TakeSlot => (LIMITING, lua!("take_slot")),
            Self::Reserve => (RESERVING, lua!("reserve")),
            Self::GiveBack => (TAKING_TURNS, lua!("give_back")),
            Self::GroupSince => (TAKING_TURNS, lua!("group_since")),
            Self::Settle => (TAKING_TURNS, lua!("settle")),
            Self::Holders => (PLAIN, lua!("holders")),
            Self::Orphaned => (PLAIN, lua!("orphaned")),
            Self::Withdraw => (PLAIN, lua!("withdraw")),
            Self::Close => (LIMITING, lua!("close")),
            Self::Entries => (PLAIN, lua!("entries")),
            Self::Tidy => (PLAIN, lua!("tidy")),
            Self::Depths => (COUNTING, lua!("depths")),
            Self::Progress => (WATCHING, lua!("progress")),
            Self::Exchange => (PLAIN, lua!("exchange")),
            Self::Report => (PLAIN, lua!("report")),
            Self::Paces => (PLAIN, lua!("paces")),
        }
    }

    /// Whether a delivery that could be sent now waits for the answer.
    pub(crate) fn is_urgent(self) -> bool {
        matches!(self, Self::Admit | Self::TakeSlot)
    }

    fn script(self) -> &'static Script {
        static SCRIPTS: LazyLock<Vec<Script>> = LazyLock::new(|| Operation::iter().map(Script::of).collect());
        &SCRIPTS[self as usize]
    }
}

struct Script {
    source: String,
    digest: String,
}

impl Script {
    fn of(operation: Operation) -> Self {
        let (parts, own) = operation.source();
        let source = assemble(&[&constants(), lua!("shard"), ARGUMENTS], &[parts, &[own]].concat());
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }
}

/// The constants of the scripts. Times are in microseconds; tables by period are in the order of [`Period::NAMED`].
fn constants() -> String {
    let of_periods =
        |of: fn(Period) -> Duration| Period::NAMED.map(|period| of(period).as_micros().to_string()).join(", ");
    let (windows, widest) = (of_periods(Period::window), of_periods(Period::widest_slot));
    let mut text = format!("local WINDOW = {{ {windows} }}\nlocal WIDEST_SLOT = {{ {widest} }}\n");
    // Durations, in microseconds.
    for (name, duration) in [
        ("UNLIMITED_SLOT_WIDTH", UNLIMITED_SLOT_WIDTH),
        ("CADENCE", CADENCE),
        ("LEAD", LEAD),
        ("NEAR_SLOT", NEAR_SLOT),
        ("FAST_PATH_AHEAD", FAST_PATH_AHEAD),
        ("RUN_FALLBACK", RUN_FALLBACK),
        ("SLOT_HORIZON", SLOT_HORIZON),
        ("RETIRED_LONGER", RETIRED_LONGER),
        ("OVERTAKEN_FOR", OVERTAKEN_FOR),
        ("WAITED_FOR", WAITED_FOR),
        ("NARROW_SLOT", NARROW_SLOT),
        ("NARROWEST_SLOT", NARROWEST_SLOT),
        ("GRANT_AHEAD", GRANT_AHEAD),
        ("LONGEST_PREPARATION", LONGEST_PREPARATION),
        ("LONGEST_RUN", LONGEST_RUN),
        ("MOST_AHEAD", MOST_AHEAD),
        ("CLOCK_TOLERANCE", CLOCK_TOLERANCE),
        ("LATE_CALL", LATE_CALL),
        ("CHECKED_FOR", CHECKED_FOR),
        ("SHORT_FOR", SHORT_FOR),
        ("SLOW_PACE", SLOW_PACE),
        ("PACE_KEPT", PACE_KEPT),
        ("WAITING_KEPT", WAITING_KEPT),
    ] {
        text += &format!("local {name} = {}\n", duration.as_micros());
    }
    // Plain numbers.
    for (name, number) in [
        ("SHARES", SHARES as usize),
        ("COST_OF_ONE", COST_OF_ONE as usize),
        ("SLOTS_PER_INTERVAL", SLOTS_PER_INTERVAL as usize),
        ("MOST_PERMITS_AHEAD", plan::MOST_AHEAD as usize),
        ("MAX_PER_RUN", plan::MAX_PER_RUN as usize),
        ("MOST_TURNS", MOST_TURNS),
        ("LAG_DEPTH", LAG_DEPTH),
        ("DELIVERY_HEAD", codec::FLOW_HEAD_LEN),
        ("MOST_COUNTED", MOST_COUNTED),
        ("MOST_REPORTS", MOST_REPORTS),
        ("REPORTS_OF_A_RUN", REPORTS_OF_A_RUN),
        ("LATEST", LATEST as usize),
    ] {
        text += &format!("local {name} = {number}\n");
    }
    // Of callers outside Weir, with the functions for them in one table: a script has few names left.
    let (kept, again) = (RESERVED_FOR.as_micros(), RESERVED_AGAIN.as_micros());
    text += &format!("local CALLERS = {{ KEPT = {kept}, AGAIN = {again} }}\n");
    // The same for limits of the window shape.
    text += &format!("local RINGS = {{ BUCKETS = {BUCKETS}, DORMANT_AT_MOST = {DORMANT_AT_MOST} }}\n");
    // The same for the flows of limit keys.
    text += &format!("local FLOWS = {{ PART = {MOST_RUN_BY_AN_EDIT}, OF_KEYS = 'keys' }}\n");
    // In milliseconds, the unit in which keys expire.
    text + &format!("local KEEP_LONGER_MS = {}\n", KEEP_LONGER.as_millis()) + lua!("periods")
}

/// A call of a script on a shard.
pub(crate) struct Call {
    pub(crate) shard: Shard,
    /// The latest generation of the shard that this process knew; 0 when it knew none.
    pub(crate) generation: u64,
    pub(crate) operation: Operation,
    command: Cmd,
    /// The terms that it names, in their order.
    terms: Vec<Terms>,
}

impl Call {
    /// `now` is a lower bound of the time by the shard's clock, in microseconds; 0 when it is not known.
    pub(crate) fn new(keys: &Keys, shard: Shard, operation: Operation, now: i64, generation: u64) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&operation.script().digest).arg(1).arg(keys.shard(shard));
        command.arg(now).arg(keys.installation()).arg(generation);
        Self { shard, generation, operation, command, terms: Vec::new() }
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn destination(&mut self, id: DestinationId) -> &mut Self {
        self.arg(id.to_string())
    }

    /// An instant before which nothing may happen, rounded up.
    pub(crate) fn not_before(&mut self, time: Timestamp) -> &mut Self {
        self.arg(micros_up(time))
    }

    /// An instant from which on nothing may happen, rounded down.
    pub(crate) fn deadline(&mut self, time: Timestamp) -> &mut Self {
        self.arg((time.as_nanos() / 1_000).min(LATEST_MICROS))
    }

    pub(crate) fn limits(&mut self, limits: &RateLimits) -> &mut Self {
        self.arg(limits.as_slice().len());
        for limit in limits.as_slice() {
            self.limit(limit);
        }
        self.interval(limits.min_interval())
    }

    pub(crate) fn limiter(&mut self, limiter: &Limiter) -> &mut Self {
        let parts = LimiterParts::from(limiter);
        let last_start = parts.last_start.unwrap_or(Timestamp::MIN);
        self.not_before(last_start).not_before(parts.held_until);
        self.interval(parts.min_interval);
        self.arg(parts.cursors.len() + parts.rings.len());
        // The shortest period first, as in the limits.
        let (mut cursors, mut rings) = (parts.cursors.iter().peekable(), parts.rings.iter().peekable());
        let is_first = |cursor: &LimitCursor, ring: Option<&&Ring>| {
            ring.is_none_or(|ring| cursor.limit.period < ring.limit.period)
        };
        loop {
            if let Some(LimitCursor { limit, since, spent, .. }) =
                cursors.next_if(|cursor| is_first(cursor, rings.peek()))
            {
                self.limit(limit).not_before(*since).arg(spent);
            } else if let Some(ring) = rings.next() {
                self.ring(ring, last_start);
            } else {
                break;
            }
        }
        self.arg(parts.dormant.len());
        for ring in &parts.dormant {
            self.ring(ring, last_start).not_before(ring.until.unwrap_or(Timestamp::MIN));
        }
        self
    }

    fn ring(&mut self, Ring { limit, buckets, released, .. }: &Ring, last_start: Timestamp) -> &mut Self {
        self.limit(limit).not_before(last_start).arg(1).arg(*released);
        self.arg(buckets.len());
        for (bucket, slots) in buckets {
            self.arg(*bucket).arg(*slots);
        }
        self
    }

    /// A group, as `recovery.lua` reads it.
    pub(crate) fn group(&mut self, GroupRun { terms, recovered }: &GroupRun, now: Timestamp) -> &mut Self {
        self.terms(&Terms::of_group(terms, now)).arg(u8::from(recovered.is_some()));
        match recovered {
            Some(recovered) => self.limiter(recovered),
            None => self,
        }
    }

    /// Terms as limiter.lua reads them: 0 and all of them, or the number of the same ones that the call has already.
    pub(crate) fn terms(&mut self, terms: &Terms) -> &mut Self {
        if let Some(index) = self.terms.iter().position(|known| known == terms) {
            return self.arg(index + 1);
        }
        self.terms.push(terms.clone());
        let &Terms {
            version,
            suspended,
            max_in_flight,
            is_adaptive,
            held_until,
            released_at,
            until,
            group,
            outer,
            weight,
            of_keys,
            ref limits,
        } = terms;
        self.arg(0).version(version).arg(u8::from(suspended)).arg(max_in_flight);
        self.not_before(held_until).not_before(released_at).limits(limits).arg(u8::from(is_adaptive));
        self.not_before(until.unwrap_or(Timestamp::MIN));
        let job = |group: Option<_>| group.map_or_else(String::new, |group| group_job(group).to_string());
        self.arg(job(group)).arg(weight).arg(u8::from(of_keys)).arg(job(outer))
    }

    /// The pace of a run: the numbers by which slots are granted, and its state.
    pub(crate) fn pace(&mut self, rate: &AdaptiveRate, now: Timestamp) -> &mut Self {
        let PaceCursor { not_before, spacing, window, generation, .. } = rate.cursor(now);
        let state = serde_json::to_string(rate).unwrap_or_default();
        self.not_before(not_before).arg(micros(spacing)).arg(window).arg(generation).arg(state)
    }

    /// The version of a destination's terms.
    pub(crate) fn version(&mut self, version: Timestamp) -> &mut Self {
        self.not_before(version)
    }

    pub(crate) fn deliveries(&mut self, deliveries: &[ClaimedDelivery], config: &RedisConfig) -> &mut Self {
        self.arg(deliveries.len());
        for delivery in deliveries {
            self.deadline(delivery.expires_at).arg(codec::encode(
                delivery,
                config.largest_inline_body,
                &config.keyring,
            ));
        }
        self
    }

    fn limit(&mut self, limit: &RateLimit) -> &mut Self {
        self.arg(limit.limit.get()).arg(codec::period_code(limit)).arg(limit.burst.get()).arg(micros(limit.margin()))
    }

    /// 0 for no minimum interval.
    fn interval(&mut self, interval: Option<MinInterval>) -> &mut Self {
        self.arg(interval.map_or(0, |interval| micros(interval.as_duration())))
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.command
    }

    /// The same call with the script's source, for a server that does not know the digest.
    pub(crate) fn in_full(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.operation.script().source);
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn micros_up(time: Timestamp) -> i64 {
    // `div_ceil` would overflow for the latest times.
    let micros = time.as_nanos() / 1_000 + i64::from(time.as_nanos() % 1_000 > 0);
    micros.min(LATEST_MICROS)
}

#[cfg(test)]
mod tests;
