//! The encoding of entries of the delivery queue, and of the answers of scripts.
//!
//! An entry has two fields. The publishing script packs `permit`, five numbers. This file encodes `delivery`: ids,
//! claim, attempts, and the body unless it is large. `answers` reads what scripts answer, and `limits` writes and reads
//! limits as numbers.

mod answers;
mod limits;

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes};
use weir_core::{
    DeliveryId, DestinationId, EventId, Timestamp, TraceParent,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
};
use weir_queue::PermitId;
use weir_sealing::{BODY, Keyring};

pub(crate) use self::{
    answers::{Admitted, AnswerReader, Room, from_micros},
    limits::period_code,
};

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
