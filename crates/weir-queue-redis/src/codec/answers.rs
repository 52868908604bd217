//! Reads the answers of scripts.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use redis::Value;
use weir_core::{
    DestinationId, LimitGroupId, Limiter, Timestamp,
    adaptive::{AdaptiveRate, PaceCursor},
    claim::Claim,
    limiter::{LimitCursor, LimiterParts, Ring},
    stall::Progress,
};
use weir_queue::{JobLease, OuterGroup, Pace, PacedGrant, PermitId, Turn};
use weir_sealing::Keyring;

use super::{
    Entry, Head, OrphanedEntry, PERMIT_LEN, decode,
    limits::{read_interval, read_limit},
    read_head,
};

/// The answer to an admission, for one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// How many deliveries were admitted.
    pub(crate) count: usize,
    pub(crate) room: Room,
    /// That of the budgets that the job shares with others; `None` if they were not looked at, or there are none.
    pub(crate) shared: Option<Room>,
}

/// How many more deliveries may be admitted, and from when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) permits: u32,
    pub(crate) from: Timestamp,
}

/// Reads the answer of a script from front to back. Every method returns `None` when the next value does not have its
/// type.
pub(crate) struct AnswerReader(std::vec::IntoIter<Value>);

impl AnswerReader {
    pub(crate) fn new(value: Value) -> Option<Self> {
        match value {
            Value::Array(values) => Some(Self(values.into_iter())),
            _ => None,
        }
    }

    pub(crate) fn next_int(&mut self) -> Option<i64> {
        match self.0.next()? {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn next_u64(&mut self) -> Option<u64> {
        self.next_int()?.try_into().ok()
    }

    /// A time; also `None` where the script answered nil.
    pub(crate) fn next_time(&mut self) -> Option<Timestamp> {
        self.next_int().map(from_micros)
    }

    /// How far one destination has come, as `progress.lua` answers it.
    pub(crate) fn next_progress(&mut self) -> Option<Progress> {
        Some(Progress {
            queued: self.next_int()?.try_into().ok()?,
            in_flight: self.next_int()?.try_into().ok()?,
            lowered_maximum: Some(self.next_int()?.try_into().ok()?).filter(|most| *most > 0),
            last_start: self.next_time(),
            next_start: self.next_time(),
        })
    }

    pub(crate) fn next_admitted(&mut self) -> Option<Admitted> {
        let mut answer = self.next_answer()?;
        let count = answer.next_u64()? as usize;
        let mut room = || Some(Room { permits: answer.next_int()?.try_into().ok()?, from: answer.next_time()? });
        Some(Admitted { count, room: room()?, shared: room() })
    }

    /// Entries that have left the delivery queue, without sealed bodies. An entry that cannot be decoded is skipped;
    /// its claim expires.
    pub(crate) fn next_entries(&mut self) -> Option<Vec<Entry>> {
        let mut answer = self.next_answer()?;
        let mut entries = Vec::new();
        while let Some(permit) = answer.next_bytes() {
            entries.extend(decode(String::new(), permit, answer.next_bytes()?, &Keyring::default()));
        }
        Some(entries)
    }

    pub(crate) fn next_text(&mut self) -> Option<String> {
        String::from_utf8(self.next_bytes()?.into()).ok()
    }

    /// The claim at the beginning of a `delivery` field.
    pub(crate) fn next_claim(&mut self) -> Option<Claim> {
        Some(self.next_head()?.claim)
    }

    fn next_head(&mut self) -> Option<Head> {
        read_head(&mut self.next_bytes()?)
    }

    /// An entry of a dead process. Whether it had a slot is not known yet.
    pub(crate) fn next_orphaned(&mut self) -> Option<OrphanedEntry> {
        let entry = self.next_text()?;
        let (mut permit, Head { claim, flow_id, .. }) = (self.next_bytes()?, self.next_head()?);
        if permit.len() < PERMIT_LEN {
            return None;
        }
        let (generation, serial) = (permit.get_u64(), permit.get_u64());
        let expires_at = from_micros(permit.get_i64());
        let id = PermitId { destination_id: flow_id, serial };
        Some(OrphanedEntry { entry, generation, id, claim, expires_at, had_slot: false })
    }

    pub(crate) fn next_bytes(&mut self) -> Option<Bytes> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes.into()),
            _ => None,
        }
    }

    fn next_answer(&mut self) -> Option<Self> {
        Self::new(self.0.next()?)
    }

    pub(crate) fn next_leases(&mut self, shard: u16) -> Option<Vec<JobLease>> {
        self.next_answer()?.0.map(|lease| Self::new(lease)?.lease(shard)).collect()
    }

    fn next_id(&mut self) -> Option<DestinationId> {
        self.next_text()?.parse().ok()
    }

    fn lease(mut self, shard: u16) -> Option<JobLease> {
        Some(JobLease {
            destination_id: self.next_id()?,
            shard,
            epoch: self.next_u64()?,
            version: self.next_u64()?,
            due: self.next_time()?,
            queued: self.next_int()?.try_into().ok()?,
            in_flight: self.next_int()?.try_into().ok()?,
            preparation: Duration::from_micros(self.next_u64()?),
            run_time: Duration::from_micros(self.next_u64()?),
            ahead: u32::try_from(self.next_u64()?).ok()?,
            max_outstanding: Some(self.next_int()?.try_into().ok()?).filter(|most| *most > 0),
            known_since: self.next_time()?,
            cursors: match self.next_answer() {
                Some(limiter) => Some(limiter.limiter()?),
                None => None,
            },
            pace: self.next_answer().and_then(Self::pace).map(Box::new),
            turn: match self.next_answer() {
                Some(turn) => Some(turn.turn()?),
                None => None,
            },
        })
    }

    fn turn(mut self) -> Option<Turn> {
        let permits = self.next_int()?.try_into().ok()?;
        let OuterGroup { group, is_known, known_since } = self.next_group()?;
        Some(Turn { group, permits, is_known, known_since, outer: self.next_group() })
    }

    fn next_group(&mut self) -> Option<OuterGroup> {
        Some(OuterGroup {
            group: LimitGroupId::from_bytes(*self.next_id()?.as_bytes()),
            is_known: self.next_int()? == 1,
            known_since: self.next_time()?,
        })
    }

    /// `None` also for a state that another version has written: the run resumes from the copy in the store.
    fn pace(mut self) -> Option<Pace> {
        let rate = serde_json::from_slice(&self.next_bytes()?).ok()?;
        let cursor = PaceCursor {
            not_before: self.next_time()?,
            spacing: Duration::from_micros(self.next_u64()?),
            window: self.next_int()?.try_into().ok()?,
            generation: self.next_int()?.try_into().ok()?,
            last_start: self.next_time()?,
            before_last: Timestamp::MIN,
            granted: self.next_int()?.try_into().ok()?,
            was_full: self.next_int()? == 1,
        };
        let mut reports = Vec::new();
        while let Some(at) = self.next_time() {
            reports.extend(serde_json::from_slice(&self.next_bytes()?).ok().map(|sample| (at, sample)));
        }
        Some(Pace { rate, cursor, reports })
    }

    /// The state of a pace, as `paces.lua` answers it; `None` where there is none.
    pub(crate) fn next_rate(&mut self) -> Option<AdaptiveRate> {
        serde_json::from_slice(&self.next_bytes()?).ok()
    }

    /// Which permit of the call got its slot by a pace, counted from 1.
    pub(crate) fn next_paced(&mut self) -> Option<(usize, PacedGrant)> {
        let position = self.next_u64()? as usize;
        let generation = self.next_int()?.try_into().ok()?;
        Some((position, PacedGrant { generation, in_flight: self.next_int()?.try_into().ok()? }))
    }

    fn limiter(mut self) -> Option<Limiter> {
        let last_start = self.next_time();
        let held_until = self.next_time()?;
        let min_interval = read_interval(self.next_int()?);
        let (mut cursors, mut rings, mut usual_cost) = (Vec::new(), Vec::new(), 0);
        while let Some(limit) = self.next_int() {
            let limit = read_limit([limit, self.next_int()?, self.next_int()?, self.next_int()?])?;
            let (since, spent) = (self.next_time()?, self.next_int()?);
            if limit.is_window() {
                usual_cost = usual_cost.max(u32::try_from(spent).ok()?);
                let (released, count) = (self.next_int()?, self.next_int()?);
                let mut bucket = || Some((self.next_int()?, u32::try_from(self.next_int()?).ok()?));
                let buckets = (0..count).map(|_| bucket()).collect::<Option<Vec<_>>>()?;
                let mut ring = Ring::of(limit, buckets, released);
                ring.until = Some(since).filter(|until| *until > Timestamp::MIN);
                rings.push(ring);
            } else {
                cursors.push(LimitCursor::new(limit, since, spent.try_into().ok()?));
            }
        }
        // Only the scripts need those: they apply the edits that bring a limit back.
        let dormant = Vec::new();
        Some(LimiterParts { cursors, rings, dormant, min_interval, last_start, held_until, usual_cost }.into())
    }
}

/// Converts a time from the answer of a script.
pub(crate) fn from_micros(micros: i64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}
