//! What processes tell each other, and the part of a shared limit that each may use.
//!
//! A process may use what it has, and of what is free a part by its demand, at least one place. So all processes
//! together exceed a limit by at most one place each, as long as what they know of each other is fresh. A process that
//! hears nothing for a moment goes on with its last figures; after [`BLIND_AFTER`] it counts only itself.

use std::time::Duration;

use foldhash::HashMap;

use super::request::ClientId;
use crate::time::Timestamp;

/// After so long without an answer the others count as gone, as a record expires after this time.
const BLIND_AFTER: Duration = Duration::from_secs(3);
/// The scopes of a record; the largest ones, where there are more.
const MOST_SCOPES: usize = 512;
const VERSION: u8 = 1;
const HEAD: usize = 2 + 4 + 4;
const SCOPE: usize = 8 + 4 + 4;

/// The scope of all events. No client has this id.
pub(super) const INGEST: ClientId = ClientId(0);

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    in_flight: u64,
    /// In flight, and refused since the last look.
    demand: u64,
}

#[derive(Debug)]
pub(super) struct Views {
    /// Whether other processes may share the limits.
    shares: bool,
    /// Whether this process takes requests. One that does not has no part of a limit.
    pub(super) takes_requests: bool,
    looked_at: Timestamp,
    /// Rises with each look, and when limits change: budgets of an earlier look are computed again.
    number: u64,
    /// Of the other processes.
    processes: u32,
    others: HashMap<ClientId, Use>,
    completed_per_s: u32,
    recording_wait: Duration,
    /// What this process published last about all events.
    own_ingest: Use,
    uses_much: bool,
}

/// What this process may have in flight of a shared limit until the next look.
fn budget(limit: u32, own: Use, others: Use, processes: u32) -> u32 {
    let free = u64::from(limit).saturating_sub(own.in_flight + others.in_flight);
    let part = free * (own.demand + 1) / (own.demand + others.demand + u64::from(processes));
    u32::try_from(own.in_flight + part.max(1)).unwrap_or(u32::MAX)
}

impl Views {
    pub(super) fn new(shares: bool, now: Timestamp) -> Self {
        Self {
            shares,
            takes_requests: true,
            looked_at: now,
            number: 1,
            processes: 0,
            others: HashMap::default(),
            completed_per_s: 0,
            recording_wait: Duration::ZERO,
            own_ingest: Use::default(),
            uses_much: false,
        }
    }

    pub(super) fn is_blind(&self, now: Timestamp) -> bool {
        self.shares && now.since(self.looked_at) >= BLIND_AFTER
    }

    /// With this one.
    pub(super) fn processes(&self, now: Timestamp) -> u32 {
        if self.is_blind(now) { 1 } else { 1 + self.processes }
    }

    pub(super) fn completed_per_s(&self) -> u32 {
        self.completed_per_s
    }

    pub(super) fn recording_wait(&self) -> Duration {
        self.recording_wait
    }

    /// Whether more than 80 % of a budget have been used since the last look.
    pub(super) fn uses_much(&self) -> bool {
        self.processes > 0 && self.uses_much
    }

    pub(super) fn forget_budgets(&mut self) {
        self.number += 1;
    }

    /// Notes how much of a budget is used.
    pub(super) fn note_use(&mut self, used: u32, budget: u32) {
        self.uses_much |= u64::from(used) * 5 > u64::from(budget) * 4;
    }

    /// The bound of the events in flight in this process.
    pub(super) fn budget_of_ingest(&self, bound: u32) -> u32 {
        if self.processes == 0 {
            return bound;
        }
        let others = self.others.get(&INGEST).copied().unwrap_or_default();
        budget(bound, self.own_ingest, others, 1 + self.processes)
    }

    /// What a client with this limit may have in flight in this process. `known`: the look of the last computation, and
    /// its result.
    pub(super) fn budget_of(&mut self, client: ClientId, limit: u32, in_flight: u32, known: &mut (u64, u32)) -> u32 {
        if self.processes == 0 {
            return limit;
        }
        if known.0 != self.number {
            let own = Use { in_flight: in_flight.into(), demand: in_flight.into() };
            let others = self.others.get(&client).copied().unwrap_or_default();
            *known = (self.number, if limit == 0 { 0 } else { budget(limit, own, others, 1 + self.processes) });
        }
        self.note_use(in_flight, known.1);
        known.1
    }

    /// The record of this process. `demands`: the scope, what is in flight, and the demand; all events first.
    pub(super) fn publish(
        &mut self,
        mut demands: Vec<(ClientId, u32, u32)>,
        completed_per_s: u32,
        recording_wait: Duration,
    ) -> Vec<u8> {
        if let Some((_, in_flight, demand)) = demands.first() {
            self.own_ingest = Use { in_flight: u64::from(*in_flight), demand: u64::from(*demand) };
        }
        if demands.len() > MOST_SCOPES {
            demands[1..].sort_unstable_by_key(|(.., demand)| std::cmp::Reverse(*demand));
            demands.truncate(MOST_SCOPES);
        }
        let mut record = Vec::with_capacity(HEAD + SCOPE * demands.len());
        record.extend([VERSION, self.takes_requests.into()]);
        record.extend(completed_per_s.to_le_bytes());
        record.extend(u32::try_from(recording_wait.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
        for (ClientId(scope), in_flight, demand) in demands {
            record.extend(scope.to_le_bytes());
            record.extend(in_flight.to_le_bytes());
            record.extend(demand.to_le_bytes());
        }
        record
    }

    /// Takes over the records of the others. A record of another version, or a damaged one, counts as none.
    pub(super) fn look(&mut self, records: &[impl AsRef<[u8]>], now: Timestamp) {
        self.looked_at = now;
        self.number += 1;
        (self.processes, self.completed_per_s, self.recording_wait) = (0, 0, Duration::ZERO);
        self.uses_much = false;
        self.others.clear();
        for record in records {
            let Some((head, scopes)) = record.as_ref().split_first_chunk::<HEAD>() else { continue };
            let (scopes, []) = scopes.as_chunks::<SCOPE>() else { continue };
            if head[0] != VERSION {
                continue;
            }
            self.processes += u32::from(head[1]);
            self.completed_per_s = self.completed_per_s.saturating_add(number(&head[2..6]) as u32);
            self.recording_wait = self.recording_wait.max(Duration::from_millis(number(&head[6..10])));
            for scope in scopes {
                let of = self.others.entry(ClientId(number(&scope[..8]))).or_default();
                of.in_flight += number(&scope[8..12]);
                of.demand += number(&scope[12..]);
            }
        }
    }

    /// Without an answer for [`BLIND_AFTER`]: the others count as gone.
    pub(super) fn expire(&mut self, now: Timestamp) {
        if self.processes > 0 && self.is_blind(now) {
            let looked_at = self.looked_at;
            self.look(&[] as &[&[u8]], now);
            self.looked_at = looked_at;
        }
    }
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
