//! The Lua scripts, one for each operation, and calls of them.
//!
//! A script is put together from what it needs: the constants, which come from the Rust definitions so that both sides agree,
//! the shard, the limiter, and the operation itself. Calls name it by its digest; a server that does not know it gets it in
//! full, once.

use std::{sync::LazyLock, time::Duration};

use redis::{Arg, Cmd, ToRedisArgs};
use weir_core::{
    DestinationId, Limiter, Period, RateLimit, Timestamp,
    claim::ClaimedDelivery,
    lane::EXPRESS_AHEAD,
    limiter::{LimiterParts, UNLIMITED_SLOT_WIDTH},
    plan::{CADENCE, LAG_DEPTH, LEAD, SHARES},
};
use weir_queue::{RUN_FALLBACK, SLOT_HORIZON, WARM_FOR};

use crate::{
    keys::{Keys, Shard},
    wire,
};

/// How much longer than needed a job is kept: what a process has in its hands may name it a little later.
const KEPT: Duration = Duration::from_secs(60);
/// How far the warmth of a destination may lag behind its last send.
const WARM_STEP: Duration = Duration::from_millis(250);
/// What Lua's numbers and the scores of sorted sets hold exactly.
const LATEST_MICROS: i64 = 1 << 53;
/// How long a shard's data are known to be of this server process once they were checked.
const CHECKED_FOR: Duration = Duration::from_millis(5);

/// One operation on a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Begin,
    Wake,
    Edit,
    Hold,
    Claim,
    Publish,
    Admit,
    TakeSlot,
    Report,
    Tidy,
    Depths,
}

struct Script {
    source: String,
    digest: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let source = parts.join("\n");
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".lua"))
    };
}

const ARGUMENTS: &str = lua!("arguments");
const LIMITER: &str = lua!("limiter");

/// In the order of [`Operation`].
static SCRIPTS: LazyLock<[Script; 11]> = LazyLock::new(|| {
    let constants = constants();
    let plain = |operation| Script::new(&[&constants, lua!("shard"), ARGUMENTS, operation]);
    let limiting = |operation| Script::new(&[&constants, lua!("shard"), ARGUMENTS, LIMITER, operation]);
    let issuing = |operation| Script::new(&[&constants, lua!("shard"), ARGUMENTS, LIMITER, lua!("permits"), operation]);
    [
        plain(lua!("begin")),
        plain(lua!("wake")),
        plain(lua!("edit")),
        limiting(lua!("hold")),
        plain(lua!("claim")),
        issuing(lua!("publish")),
        issuing(lua!("admit")),
        limiting(lua!("take_slot")),
        plain(lua!("report")),
        plain(lua!("tidy")),
        plain(lua!("depths")),
    ]
});

/// Numbers the scripts share with the rest of Weir, in microseconds; periods go by their place in [`Period::ALL`].
fn constants() -> String {
    let of_periods =
        |of: fn(Period) -> Duration| Period::ALL.map(|period| of(period).as_micros().to_string()).join(", ");
    let spans = of_periods(|period| period.window() + period.slot_width());
    let widths = of_periods(Period::slot_width);
    let mut text = format!("local SPAN = {{ {spans} }}\nlocal SLOT_WIDTH = {{ {widths} }}\n");
    for (name, duration) in [
        ("UNLIMITED_SLOT_WIDTH", UNLIMITED_SLOT_WIDTH),
        ("CADENCE", CADENCE),
        ("LEAD", LEAD),
        ("EXPRESS_AHEAD", EXPRESS_AHEAD),
        ("RUN_FALLBACK", RUN_FALLBACK),
        ("SLOT_HORIZON", SLOT_HORIZON),
        ("WARM_FOR", WARM_FOR),
        ("WARM_STEP", WARM_STEP),
        ("CHECKED_FOR", CHECKED_FOR),
    ] {
        text += &format!("local {name} = {}\n", duration.as_micros());
    }
    text + &format!("local KEPT_MS = {}\nlocal SHARES = {SHARES}\nlocal LAG_DEPTH = {LAG_DEPTH}\n", KEPT.as_millis())
}

/// A call of a script on a shard.
pub(crate) struct Call {
    pub(crate) shard: Shard,
    operation: Operation,
    command: Cmd,
}

impl Call {
    pub(crate) fn new(keys: &Keys, shard: Shard, operation: Operation) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&SCRIPTS[operation as usize].digest).arg(1).arg(keys.shard(shard));
        Self { shard, operation, command }
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn destination(&mut self, id: DestinationId) -> &mut Self {
        self.arg(id.to_string())
    }

    /// Before this instant nothing may happen: rounded up.
    pub(crate) fn not_before(&mut self, time: Timestamp) -> &mut Self {
        self.arg(micros_up(time))
    }

    /// From this instant on nothing may happen: rounded down.
    pub(crate) fn deadline(&mut self, time: Timestamp) -> &mut Self {
        self.arg((time.as_nanos() / 1_000).min(LATEST_MICROS))
    }

    pub(crate) fn limits(&mut self, limits: &[RateLimit]) -> &mut Self {
        self.arg(limits.len());
        for limit in limits {
            self.limit(limit);
        }
        self
    }

    pub(crate) fn limiter(&mut self, limiter: &Limiter) -> &mut Self {
        let parts = LimiterParts::from(limiter);
        self.not_before(parts.last_start.unwrap_or(Timestamp::MIN)).not_before(parts.held_until);
        self.arg(parts.lanes.len());
        for (limit, cursor) in &parts.lanes {
            self.limit(limit).not_before(*cursor);
        }
        self
    }

    /// With what is sent, unless the caller keeps it.
    pub(crate) fn deliveries(
        &mut self,
        deliveries: &[ClaimedDelivery],
        straight: bool,
        largest_inline_body: usize,
    ) -> &mut Self {
        if straight {
            return self.permits(deliveries.iter().map(|delivery| delivery.expires_at));
        }
        self.arg(deliveries.len());
        for delivery in deliveries {
            self.deadline(delivery.expires_at).arg(wire::encode(delivery, largest_inline_body));
        }
        self
    }

    /// Permits for claims that the caller keeps, by when those expire.
    pub(crate) fn permits(&mut self, expire: impl ExactSizeIterator<Item = Timestamp>) -> &mut Self {
        self.arg(expire.len()).deadline(expire.max().unwrap_or(Timestamp::MIN))
    }

    fn limit(&mut self, limit: &RateLimit) -> &mut Self {
        let period = 1 + limit.period as usize;
        self.arg(limit.limit.get()).arg(period).arg(limit.burst.get())
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.command
    }

    /// The same call with the script's source, for a server that does not know it.
    pub(crate) fn in_full(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&SCRIPTS[self.operation as usize].source);
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

/// The limit that [`Call::limits`] wrote.
pub(crate) fn read_limit(limit: i64, period: i64, burst: i64) -> Option<RateLimit> {
    let period = *Period::ALL.get(usize::try_from(period - 1).ok()?)?;
    RateLimit::with_burst(limit.try_into().ok()?, period, burst.try_into().ok()?)
}

fn micros_up(time: Timestamp) -> i64 {
    // Not `div_ceil`, which would overflow at the far end.
    let micros = time.as_nanos() / 1_000 + i64::from(time.as_nanos() % 1_000 > 0);
    micros.min(LATEST_MICROS)
}

/// A time that a script answered.
pub(crate) fn from_micros(micros: i64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

#[cfg(test)]
mod tests;
