//! The encoding of entries of the delivery queue, and of the answers of scripts.
//!
//! An entry has two fields. The publishing script packs `permit`, five numbers. This file encodes `delivery`: ids,
//! claim, attempts, and the body unless it is large.

use std::{borrow::Cow, time::Duration};

use bytes::{Buf, BufMut, Bytes};
use redis::Value;
use weir_core::{
    DeliveryId, DestinationId, EventId, LimitGroupId, Limiter, Period, RateLimit, Timestamp, TraceParent,
    adaptive::{AdaptiveRate, PaceCursor},
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    limit::{MinInterval, Shape},
    limiter::{LimitCursor, LimiterParts, Ring},
    stall::Progress,
};
use weir_queue::{JobLease, OuterGroup, Pace, PacedGrant, PermitId, Turn};
use weir_sealing::{BODY, Keyring};

/// An entry of the delivery queue.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its id in the stream.
    pub(crate) entry: String,
    /// By the server's clock, in microseconds.
    pub(crate) published_at: i64,
    pub(crate) generation: u64,
    pub(crate) id: PermitId,
    /// When the slot is expected, by the server's clock, in microseconds.
    pub(crate) expected_at: Option<i64>,
    pub(crate) delivery: ClaimedDelivery,
}

/// An entry that a dead process had read and not acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct OrphanedEntry {
    pub(crate) entry: String,
    pub(crate) generation: u64,
    pub(crate) id: PermitId,
    pub(crate) claim: Claim,
    pub(crate) expires_at: Timestamp,
    pub(crate) had_slot: bool,
}

/// The minimum length of the `permit` field. A later version may append to it, because two versions share a queue
/// during a rolling update.
const PERMIT_LEN: usize = 5 * 8;
/// A clear body follows.
const INLINE: u8 = 1;
const IS_REPLAY: u8 = 2;
/// A trace context is in front of the body.
const TRACED: u8 = 4;
/// A sealed body follows. Programs that do not know it read the body from the store.
const SEALED: u8 = 8;
/// The cost, if it is not 1, is in front of the body, whose flags are then these: programs that do not know them read
/// the body from the store.
const COSTED: u8 = 16;
const INLINE_COSTED: u8 = 32;
const SEALED_COSTED: u8 = 64;
/// The delivery is of a limit key: the id of its flow and the flags of the body are in front of the body. The flags of the
/// body in the head are not set then, so programs that do not know this read the body from the store.
const OF_KEY: u8 = 128;
/// The length of the part in front of the trace and the body.
const HEAD_LEN: usize = 3 * 16 + 2 * 8 + 2 * 4 + 1 + 4;
/// The greatest length of the part that names the flow.
pub(crate) const FLOW_HEAD_LEN: usize = HEAD_LEN + TraceParent::BYTES + 2 + 16;

/// Encodes the `delivery` field. Bodies of more than `largest` bytes stay in the store. The others are sealed as the store
/// seals them.
pub(crate) fn encode(delivery: &ClaimedDelivery, largest: usize, keyring: &Keyring) -> Vec<u8> {
    // A large body stays in the store. The worker reads it there.
    let body = match &delivery.body {
        ClaimedBody::Inline(body) if body.bytes().len() <= largest => Some(body),
        ClaimedBody::Inline(_) | ClaimedBody::InStore => None,
    };
    // A body that stays in the store keeps its trace there.
    let trace = body.and_then(EventBody::trace);
    let trace_len = trace.map_or(0, |_| TraceParent::BYTES);
    let row = delivery.event_id.as_bytes();
    let stored = body.map_or(Cow::Borrowed(&[][..]), |body| keyring.seal_bytes(&BODY, row, body.bytes()));
    let cost = Some(delivery.cost as u16).filter(|cost| *cost != 1);
    let inline = match (keyring.seals(&BODY), cost) {
        (false, None) => INLINE,
        (true, None) => SEALED,
        (false, Some(_)) => INLINE_COSTED,
        (true, Some(_)) => SEALED_COSTED,
    };
    // The head, of `HEAD_LEN` bytes, in the order in which `decode` reads it.
    let mut bytes = Vec::with_capacity(HEAD_LEN + trace_len + 2 + stored.len());
    bytes.put_slice(delivery.claim.delivery_id.as_bytes());
    bytes.put_slice(delivery.claim.destination_id.as_bytes());
    bytes.put_slice(delivery.event_id.as_bytes());
    bytes.put_i64(delivery.claim.epoch);
    bytes.put_i64(delivery.event_created_at.as_nanos());
    bytes.put_u32(delivery.attempts);
    bytes.put_u32(delivery.attempts_before);
    let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
    let costed = flag(COSTED, cost.is_some());
    let of_body = flag(inline, body.is_some());
    let of_key = delivery.flow_id != delivery.claim.destination_id;
    let in_head = if of_key { OF_KEY } else { of_body };
    bytes.put_u8(in_head | flag(TRACED, trace.is_some()) | costed | flag(IS_REPLAY, delivery.is_replay));
    bytes.put_u32(body.map_or(0, EventBody::data_offset));
    // The trace, the cost, the flow and the body are last, because only their lengths vary.
    if let Some(trace) = trace {
        bytes.put_slice(&trace.to_bytes());
    }
    if let Some(cost) = cost {
        bytes.put_u16(cost);
    }
    if of_key {
        bytes.put_slice(delivery.flow_id.as_bytes());
        bytes.put_u8(of_body);
    }
    bytes.put_slice(&stored);
    bytes
}

/// The part of a `delivery` field in front of the body.
struct Head {
    claim: Claim,
    flow_id: DestinationId,
    event_id: EventId,
    event_created_at: Timestamp,
    attempts: u32,
    attempts_before: u32,
    is_replay: bool,
    data_offset: u32,
    trace: Option<TraceParent>,
    cost: u32,
    /// The flags of the body.
    flags: u8,
}

/// Reads the head of a delivery; `None` when it has another format.
fn read_head(delivery: &mut Bytes) -> Option<Head> {
    if delivery.len() < HEAD_LEN {
        return None;
    }
    // In the order of `encode`.
    let mut id = || {
        let mut id = [0; 16];
        delivery.copy_to_slice(&mut id);
        id
    };
    let (delivery_id, destination_id, event_id) =
        (DeliveryId::from_bytes(id()), DestinationId::from_bytes(id()), EventId::from_bytes(id()));
    let claim = Claim { delivery_id, destination_id, epoch: delivery.get_i64() };
    let event_created_at = Timestamp::from_nanos(delivery.get_i64());
    let (attempts, attempts_before) = (delivery.get_u32(), delivery.get_u32());
    let mut flags = delivery.get_u8();
    let is_replay = flags & IS_REPLAY > 0;
    let data_offset = delivery.get_u32();
    // The trace, if there is one. An entry that is too short for it has another format.
    let trace = if flags & TRACED > 0 {
        let trace = delivery.get(..TraceParent::BYTES).map(TraceParent::from_bytes)?;
        delivery.advance(TraceParent::BYTES);
        trace
    } else {
        None
    };
    let cost = match flags & COSTED {
        0 => 1,
        _ => delivery.try_get_u16().ok()?.into(),
    };
    let mut flow_id = destination_id;
    if flags & OF_KEY > 0 {
        flow_id = DestinationId::from_bytes(delivery.get(..16)?.try_into().ok()?);
        delivery.advance(16);
        flags = delivery.try_get_u8().unwrap_or(0);
    }
    Some(Head {
        claim,
        flow_id,
        event_id,
        event_created_at,
        attempts,
        attempts_before,
        is_replay,
        data_offset,
        trace,
        cost,
        flags,
    })
}

/// Decodes an entry; `None` when it has another format.
pub(crate) fn decode(entry: String, mut permit: Bytes, mut delivery: Bytes, keyring: &Keyring) -> Option<Entry> {
    // A longer `permit` comes from a later version; what is behind the known numbers is ignored.
    if permit.len() < PERMIT_LEN {
        return None;
    }
    // The five numbers that permits.lua packs. Without an expected time (0) the worker asks as soon as it is ready.
    let (generation, serial) = (permit.get_u64(), permit.get_u64());
    let expires_at = from_micros(permit.get_i64());
    let (expected_at, published_at) = (Some(permit.get_i64()).filter(|at| *at > 0), permit.get_i64());
    let head = read_head(&mut delivery)?;
    let Head { claim, flow_id, event_id, event_created_at, attempts, attempts_before, .. } = head;
    // The rest is the body; a clear one without a copy. What cannot be opened here cannot be opened in the store either,
    // and the worker reports it there.
    let bytes = match head.flags & (INLINE | SEALED | INLINE_COSTED | SEALED_COSTED) {
        INLINE | INLINE_COSTED => Some(delivery),
        SEALED | SEALED_COSTED => {
            keyring.open_bytes(&BODY, event_id.as_bytes(), &delivery).ok().map(|body| Bytes::from(body.into_owned()))
        }
        _ => None,
    };
    let body = bytes.map_or(ClaimedBody::InStore, |bytes| {
        ClaimedBody::Inline(EventBody::stored(bytes, head.data_offset).traced(head.trace))
    });
    Some(Entry {
        published_at,
        entry,
        generation,
        id: PermitId { destination_id: flow_id, serial },
        expected_at,
        delivery: ClaimedDelivery {
            flow_id,
            claim,
            event_id,
            event_created_at,
            attempts,
            attempts_before,
            is_replay: head.is_replay,
            cost: head.cost,
            body,
            expires_at,
            // The worker reads the destination itself.
            destination: None,
        },
    })
}

/// The answer to an admission, for one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// How many deliveries were admitted.
    pub(crate) count: usize,
    /// How many more may be admitted.
    pub(crate) room: u32,
    pub(crate) admits_from: Timestamp,
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
        Some(Admitted {
            count: answer.next_u64()? as usize,
            room: answer.next_int()?.try_into().ok()?,
            admits_from: answer.next_time()?,
        })
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

const NAMED_PERIODS: u32 = Period::NAMED.len() as u32;

/// Above this the code of a period is that of a limit of the window shape: this number and the seconds. A program of an
/// earlier version refuses such a limit.
const SHAPED: u32 = NAMED_PERIODS + Period::DAY.as_seconds();

/// Above this the limit is in costs. A program of an earlier version refuses it too.
const IN_COSTS: u32 = 2 * SHAPED;

/// The period of a limit in calls and jobs: its position in the tables of the scripts, counted from 1, or their length
/// and its seconds; with the shape.
pub(crate) fn period_code(limit: &RateLimit) -> u32 {
    let period = limit.period;
    match limit.is_window() {
        true if limit.is_in_costs() => return IN_COSTS + period.as_seconds(),
        true => return SHAPED + period.as_seconds(),
        false => {}
    }
    let position = Period::NAMED.iter().position(|named| *named == period);
    position.map_or(NAMED_PERIODS + period.as_seconds(), |position| position as u32 + 1)
}

/// The period of a [`period_code`].
fn period_of_code(code: u32) -> Option<Period> {
    match code.checked_sub(NAMED_PERIODS + 1) {
        Some(seconds) => Period::from_seconds(seconds + 1),
        None => Period::NAMED.get(usize::try_from(code).ok()?.checked_sub(1)?).copied(),
    }
}

/// Reads a limit in the format of `Call::limits`.
fn read_limit([limit, period, burst, margin]: [i64; 4]) -> Option<RateLimit> {
    let code = u32::try_from(period).ok()?;
    let beyond = |base: u32| code.checked_sub(base + 1).map(|seconds| Period::from_seconds(seconds + 1));
    let limit = |period| RateLimit::with_burst(limit.try_into().ok()?, period, burst.try_into().ok()?);
    let limit = match (beyond(IN_COSTS), beyond(SHAPED)) {
        (Some(period), _) => limit(period?)?.in_costs()?,
        (None, Some(period)) => limit(period?)?.with_shape(Shape::Window)?,
        (None, None) => limit(period_of_code(code)?)?,
    };
    limit.with_margin(u32::try_from(margin / 1_000).ok()?)
}

/// Reads a minimum interval in the format of `Call::limits`.
fn read_interval(micros: i64) -> Option<MinInterval> {
    MinInterval::from_millis(u32::try_from(micros / 1_000).ok()?)
}

/// Converts a time from the answer of a script.
pub(crate) fn from_micros(micros: i64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use weir_core::LimitKey;

    use super::*;

    fn delivery(body: ClaimedBody) -> ClaimedDelivery {
        ClaimedDelivery {
            flow_id: DestinationId::from_bytes([2; 16]),
            claim: Claim {
                delivery_id: DeliveryId::from_bytes([1; 16]),
                destination_id: DestinationId::from_bytes([2; 16]),
                epoch: -3,
            },
            event_id: EventId::from_bytes([4; 16]),
            event_created_at: Timestamp::from_nanos(5),
            attempts: 6,
            attempts_before: 2,
            is_replay: true,
            cost: 700,
            body,
            expires_at: Timestamp::from_secs(7),
            destination: None,
        }
    }

    fn permit(numbers: [i64; 5]) -> Bytes {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn sent(delivery: &ClaimedDelivery, largest: usize) -> Entry {
        sent_sealed(delivery, largest, &Keyring::default())
    }

    fn sent_sealed(delivery: &ClaimedDelivery, largest: usize, keyring: &Keyring) -> Entry {
        let bytes = Bytes::from(encode(delivery, largest, keyring));
        decode("1-0".to_owned(), permit([10, 12, 7_000_000, 0, 6_000_000]), bytes, keyring).unwrap()
    }

    #[test]
    fn a_delivery_is_read_as_it_was_written() {
        let written = delivery(ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{\"a\":1}"), 5)));
        let read = sent(&written, 100);
        assert_eq!(format!("{:?}", read.delivery), format!("{written:?}"));
        assert_eq!((read.generation, read.id.serial, read.expected_at, read.published_at), (10, 12, None, 6_000_000));
        let mut head = Bytes::from(encode(&written, 0, &Keyring::default())).slice(..HEAD_LEN + 2);
        assert_eq!(read_head(&mut head).map(|head| head.claim), Some(written.claim));
    }

    #[test]
    fn a_delivery_of_a_limit_key_is_read_as_it_was_written_and_orphans_name_its_flow() {
        let flow_id = LimitKey::new("cus_1").flow_id(DestinationId::from_bytes([2; 16]));
        let body = || EventBody::stored(Bytes::from_static(b"{\"a\":1}"), 5);
        let trace = TraceParent::new([7; 16], [8; 8], true);
        let key = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        let sealing = key.parse::<Keyring>().unwrap().sealing_payloads(true);
        for (keyring, cost, body) in [
            (Keyring::default(), 700, body().traced(trace)),
            (Keyring::default(), 1, body()),
            (sealing, 1, body().traced(trace)),
        ] {
            let written = ClaimedDelivery { flow_id, cost, ..delivery(ClaimedBody::Inline(body)) };
            let read = sent_sealed(&written, 100, &keyring);
            assert_eq!(format!("{:?}", read.delivery), format!("{written:?}"));
            assert_eq!(read.id.destination_id, flow_id);
            let mut bytes = Bytes::from(encode(&written, 100, &keyring));
            assert_eq!(
                bytes[HEAD_LEN - 5] & (INLINE | SEALED | INLINE_COSTED | SEALED_COSTED),
                0,
                "for older programs"
            );
            bytes.truncate(FLOW_HEAD_LEN);
            assert_eq!(read_head(&mut bytes).map(|head| head.flow_id), Some(flow_id));
        }
    }

    #[test]
    fn a_body_travels_with_its_trace() {
        let trace = TraceParent::new([7; 16], [8; 8], true);
        let body = EventBody::stored(Bytes::from_static(b"{\"a\":1}"), 5).traced(trace);
        let written = delivery(ClaimedBody::Inline(body));
        assert!(trace.is_some());
        assert_eq!(sent(&written, 100).delivery.body, written.body);
        assert_eq!(sent(&written, 1).delivery.body, ClaimedBody::InStore);
        let cut = Bytes::from(encode(&written, 100, &Keyring::default())).slice(..HEAD_LEN + TraceParent::BYTES - 1);
        assert!(decode("1-0".to_owned(), permit([0; 5]), cut, &Keyring::default()).is_none());
    }

    #[test]
    fn a_sealed_body_is_not_clear_in_its_entry_and_whoever_lacks_the_key_reads_it_in_the_store() {
        let trace = TraceParent::new([7; 16], [8; 8], true);
        let body = EventBody::stored(Bytes::from_static(b"{\"a\":\"marker\"}"), 5).traced(trace);
        let written = delivery(ClaimedBody::Inline(body));
        let key = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        let keyring = key.parse::<Keyring>().unwrap().sealing_payloads(true);
        let bytes = encode(&written, 100, &keyring);
        assert!(!bytes.windows(6).any(|part| part == b"marker"));
        assert_eq!(sent_sealed(&written, 100, &keyring).delivery.body, written.body);
        let elsewhere = decode("1-0".to_owned(), permit([0; 5]), bytes.into(), &Keyring::default()).unwrap();
        assert_eq!(elsewhere.delivery.body, ClaimedBody::InStore);
        // A key that seals only secrets leaves bodies as they are.
        let bytes = encode(&written, 100, &key.parse().unwrap());
        assert_eq!(bytes, encode(&written, 100, &Keyring::default()));
    }

    #[test]
    fn a_large_body_stays_in_the_store() {
        let written = delivery(ClaimedBody::Inline(EventBody::stored(Bytes::from(vec![b'x'; 101]), 0)));
        assert_eq!(sent(&written, 100).delivery.body, ClaimedBody::InStore);
    }

    #[test]
    fn unknown_bytes_are_not_decoded() {
        let none = &Keyring::default();
        assert!(decode("1-0".to_owned(), Bytes::new(), Bytes::from(vec![0; HEAD_LEN]), none).is_none());
        assert!(decode("1-0".to_owned(), permit([0; 5]), Bytes::from(vec![0; HEAD_LEN - 1]), none).is_none());
    }
}
