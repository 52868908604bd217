//! The intake of a batch of new events, which is the same in every store: deduplication, fan-out, and the choice of
//! deliveries that take the fast path. The rules that go beyond the intake are said here, once:
//!
//! - **Idempotency.** An event with the tenant and the idempotency key of an earlier event, stored or earlier in the
//!   batch, is that event: nothing is stored, and its caller gets the answer to the first. A refused event does not use
//!   up its key. Retention deletes a key with its event.
//! - **Filters.** An event that names no destinations goes to those whose patterns match its type and whose filter
//!   matches its data now. Later edits of a filter change nothing for it: retries, replays and coalescing work on the
//!   deliveries that were made here.
//! - **Coalescing.** Deliveries coalesce by destination, event type and coalesce key. A new delivery supersedes the
//!   waiting ones in the same commit, before it is stored itself. One in flight is marked as replaced and continues; it
//!   becomes `superseded` where it would wait again: after a retry, a release or a recovery. Of several new ones in the
//!   batch only the last waits. None takes the fast path, because a delivery that is sent at once cannot be superseded.
//! - **Order.** A new delivery to an ordered destination joins the message group of its key ([`weir_core::order`]):
//!   behind the others if there are any, else as the head. A delivery that ends, or is skipped, leaves its group. If
//!   that leaves the group without a head, the delivery with the smallest position becomes the head. It is due at the
//!   time with which it was stored, or at which a replay moved it, so that it takes its place among the deliveries
//!   without an order. Positions rise in the order of storage, whatever the clocks say. None takes the fast path,
//!   because only the table knows the head.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU32,
    sync::Arc,
};

use weir_core::{
    DeliveryId, Destination, DestinationId, LimitKey, RateLimit, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::Event,
    filter::Filter,
};

use crate::{
    Directory, FastPathBatch, IngestRefusal, Ingested, MOST_DELIVERIES_OF_COMMIT, MessageGroup, NewEvent, Verdicts,
    directory::key_limits,
};

/// The result for one event.
pub type IngestResult = Result<Ingested, IngestRefusal>;

/// A tenant and an idempotency key.
pub type Key<'e> = (&'e str, &'e str);

/// The stored events whose idempotency keys the new events use again.
pub type KnownKeys = HashMap<(String, String), Ingested>;

/// A delivery to store.
#[derive(Debug, Clone)]
pub struct NewDelivery<'e> {
    pub id: DeliveryId,
    pub event: &'e Event,
    pub destination_id: DestinationId,
    /// Its limit key, if its destination has some.
    pub limit_key: Option<LimitKey>,
    /// Set if it is stored as claimed: when that claim expires.
    pub claimed_until: Option<Timestamp>,
    /// Whether it is stored as superseded by a later event of the commit batch.
    pub superseded: bool,
    /// The key of its message group. `None` if it is not ordered.
    pub ordering_key: Option<&'e str>,
    /// Whether an earlier delivery of the commit batch is in the same message group.
    pub follows: bool,
}

impl NewDelivery<'_> {
    /// The flow of its limit key.
    pub fn flow_id(&self) -> Option<DestinationId> {
        Some(self.limit_key.as_ref()?.flow_id(self.destination_id))
    }

    /// The message group that it joins.
    pub fn message_group(&self) -> Option<MessageGroup> {
        let ordering_key = self.ordering_key.filter(|_| !self.superseded)?.to_owned();
        Some(MessageGroup { destination_id: self.destination_id, ordering_key })
    }

    /// Whether a run will soon read its body.
    pub fn is_due_soon(&self) -> bool {
        self.claimed_until.is_none() && !self.superseded && self.event.delayed_until().is_none()
    }

    /// The key by which the deliveries of its destination coalesce: the event type, which has no spaces, a space, and
    /// the key.
    pub fn coalesces_by(&self) -> Option<String> {
        self.event.options.coalesce_key.as_ref().map(|key| format!("{} {key}", self.event.event_type))
    }
}

/// The result of an intake: what to store, and the answers to the callers.
#[derive(Debug, Default)]
pub struct Intake<'e> {
    /// In the order of the events. There are fewer answers than events if the others do not fit in this commit.
    pub answers: Vec<IngestResult>,
    pub events: Vec<StoredEvent<'e>>,
    pub deliveries: Vec<NewDelivery<'e>>,
    /// The index of the last delivery for each destination, event type and coalesce key.
    last_of_key: HashMap<(DestinationId, &'e str, &'e str), usize>,
    /// The message groups that have a delivery in this commit batch.
    message_groups: HashSet<(DestinationId, &'e str)>,
    /// How many filters and limit keys of this commit batch were evaluated here.
    late: usize,
}

/// The destinations that take an event. `None`: it was deleted meanwhile.
type Takers = Vec<(DestinationId, Option<Arc<Destination>>)>;

/// The most filters and limit keys that are evaluated while all producers wait. They were set while the event was on its way
/// here.
const MOST_LATE: usize = 16;

/// An event to store.
#[derive(Debug, Clone, Copy)]
pub struct StoredEvent<'e> {
    pub event: &'e Event,
    /// The number of its deliveries.
    pub deliveries: u32,
    /// How many destinations did not get it because of their filters.
    pub filtered: Option<NonZeroU32>,
}

/// An event's tenant and idempotency key, if it has a key.
pub fn key(event: &Event) -> Option<Key<'_>> {
    event.idempotency_key.as_deref().map(|key| (event.tenant.as_str(), key))
}

impl<'e> Intake<'e> {
    /// Takes in the events of a commit batch, up to [`MOST_DELIVERIES_OF_COMMIT`]. An event with more than `most`
    /// destinations is refused. `epoch` is the epoch of the claims made here.
    pub fn of(
        new: &[&'e NewEvent],
        known: &KnownKeys,
        directory: &mut impl Directory,
        most: usize,
        epoch: i64,
        fast_path_batch: &mut FastPathBatch,
    ) -> Self {
        let mut intake = Self {
            answers: Vec::with_capacity(new.len()),
            events: Vec::with_capacity(new.len()),
            deliveries: Vec::with_capacity(new.len()),
            last_of_key: HashMap::new(),
            message_groups: HashSet::new(),
            late: 0,
        };
        // The index of the answer to the first event with each key.
        let mut first: HashMap<Key<'_>, usize> = HashMap::new();
        // A key that was used gives the answer to its first event. Every other event is fanned out.
        for &new in new {
            let key = key(&new.event);
            let duplicate = intake.duplicate(key, known, &first);
            let answer = duplicate.or_else(|| intake.accept(new, directory, most, epoch, fast_path_batch));
            // It does not fit in this commit. It and the later events are for the next one, in their order.
            let Some(answer) = answer else { break };
            // A refused event does not use up its key.
            if let (Ok(_), Some(key)) = (&answer, key) {
                first.entry(key).or_insert(intake.answers.len());
            }
            intake.answers.push(answer);
        }
        intake.mark_followers();
        intake
    }

    /// Sets `follows`. Called at the end, because superseded deliveries join no message group.
    fn mark_followers(&mut self) {
        for delivery in self.deliveries.iter_mut().filter(|delivery| !delivery.superseded) {
            let Some(key) = delivery.ordering_key else { continue };
            delivery.follows = !self.message_groups.insert((delivery.destination_id, key));
        }
    }

    /// The answer to an event whose key was already used: that of the first event with the key.
    fn duplicate(
        &self,
        key: Option<Key<'_>>,
        known: &KnownKeys,
        first: &HashMap<Key<'_>, usize>,
    ) -> Option<IngestResult> {
        let (tenant, key) = key?;
        if !known.is_empty()
            && let Some(stored) = known.get(&(tenant.to_owned(), key.to_owned()))
        {
            return Some(Ok(stored.clone()));
        }
        // The first event of the batch wakes the destinations.
        let again = |first: Ingested| Ingested { duplicate: true, wake: Vec::new(), ..first };
        first.get(&(tenant, key)).map(|&at| self.answers[at].clone().map(again))
    }

    /// Fans out an event that is not a duplicate. `None` if its deliveries do not fit in this commit, too many of its
    /// filters and limit keys were not evaluated before, or a limit group that matters was not read.
    fn accept(
        &mut self,
        new: &'e NewEvent,
        directory: &mut impl Directory,
        most: usize,
        epoch: i64,
        fast_path_batch: &mut FastPathBatch,
    ) -> Option<IngestResult> {
        let NewEvent { event, destinations, verdicts, .. } = new;
        // A named destination that does not exist, or too many, refuse the event before anything of it is kept.
        let fan_out = match fan_out(event, destinations.as_deref(), directory) {
            Ok(fan_out) => fan_out,
            Err(refusal) => return Some(Err(refusal)),
        };
        let mut takers: Vec<_> = fan_out.iter().map(|&id| (id, directory.find(&event.tenant, id))).collect();
        if destinations.is_none() {
            self.filter(event, &mut takers, verdicts)?;
        }
        if event.options.limit_key.is_none() {
            self.find_keys(event, &takers, verdicts)?;
        }
        if let Some(refusal) = refusal(event, &takers, verdicts, most)? {
            return Some(Err(refusal));
        }
        if !self.deliveries.is_empty() && self.deliveries.len() + takers.len() > MOST_DELIVERIES_OF_COMMIT {
            return None;
        }
        let filtered = (fan_out.len() - takers.len()) as u32;
        Some(Ok(self.store(new, takers, filtered, epoch, fast_path_batch)))
    }

    /// Keeps the destinations whose filters match. `None` if too many filters were not evaluated before.
    fn filter(&mut self, event: &Event, takers: &mut Takers, verdicts: &Verdicts) -> Option<()> {
        let mut seen = HashSet::new();
        let is_late = |filter: &&Arc<Filter>| verdicts.of(filter).is_none() && seen.insert(filter.fingerprint());
        let filters = takers.iter().filter_map(|(_, taker)| filter_of(taker.as_deref()));
        let late: Vec<_> = filters.filter(is_late).cloned().collect();
        self.evaluates(late.len())?;
        verdicts.judge_late(event, &late, &[]);
        takers.retain(|(_, taker)| filter_of(taker.as_deref()).is_none_or(|filter| verdicts.of(filter) == Some(true)));
        Some(())
    }

    /// Finds the limit keys of the event at its destinations. `None` if too many were not looked for before.
    fn find_keys(&mut self, event: &Event, takers: &Takers, verdicts: &Verdicts) -> Option<()> {
        let mut late = key_limits(takers.iter().filter_map(|(_, taker)| taker.as_ref()));
        late.retain(|of| verdicts.key(&of.pointer).is_none());
        self.evaluates(late.len())?;
        verdicts.judge_late(event, &[], &late);
        Some(())
    }

    /// Counts filters and limit keys that are evaluated here. `None` beyond [`MOST_LATE`].
    fn evaluates(&mut self, late: usize) -> Option<()> {
        self.late += late;
        (self.late <= MOST_LATE).then_some(())
    }

    /// Adds the event and its deliveries, each sent at once or with a run.
    fn store(
        &mut self,
        NewEvent { event, random, verdicts, .. }: &'e NewEvent,
        takers: Takers,
        filtered: u32,
        epoch: i64,
        fast_path_batch: &mut FastPathBatch,
    ) -> Ingested {
        let deliveries = takers.len() as u32;
        let mut wake = Vec::new();
        for (index, (destination_id, taker)) in takers.into_iter().enumerate() {
            let ordered = taker.as_ref().is_some_and(|taker| taker.settings.order.is_by_key());
            let mut delivery = NewDelivery {
                id: delivery_id(event, *random, index),
                event,
                destination_id,
                limit_key: taker.as_ref().and_then(|taker| limit_key(event, taker, verdicts)),
                claimed_until: None,
                superseded: false,
                ordering_key: event.options.ordering_key.as_deref().filter(|_| ordered),
                follows: false,
            };
            // A paused destination keeps its deliveries: they are not sent at once, and it is not woken.
            if let Some(awake) = taker.filter(|taker| !taker.settings.paused) {
                delivery.claimed_until = claim_at_once(&delivery, &awake, epoch, fast_path_batch);
                // A delivery that waits needs a run of its destination's job.
                if delivery.claimed_until.is_none() {
                    let flow = delivery.flow_id().unwrap_or(destination_id);
                    fast_path_batch.note_flow(flow, &awake);
                    wake.push(flow);
                }
            }
            self.add(delivery);
        }
        self.events.push(StoredEvent { event, deliveries, filtered: NonZeroU32::new(filtered) });
        let event = Event { filtered, ..event.clone() };
        Ingested { event, deliveries, duplicate: false, wake }
    }

    /// Adds a delivery. Of several deliveries in this commit batch with the same coalesce key, the last one supersedes
    /// the others.
    fn add(&mut self, delivery: NewDelivery<'e>) {
        let NewDelivery { event, destination_id, .. } = delivery;
        if let Some(key) = &event.options.coalesce_key {
            let key = (destination_id, event.event_type.as_str(), key.as_str());
            if let Some(earlier) = self.last_of_key.insert(key, self.deliveries.len()) {
                self.deliveries[earlier].superseded = true;
            }
        }
        self.deliveries.push(delivery);
    }
}

/// With room on the fast path, the delivery is stored as claimed until the returned instant.
fn claim_at_once(
    delivery: &NewDelivery<'_>,
    destination: &Arc<Destination>,
    epoch: i64,
    fast_path_batch: &mut FastPathBatch,
) -> Option<Timestamp> {
    let &NewDelivery { id, event, destination_id, .. } = delivery;
    let flow_id = delivery.flow_id().unwrap_or(destination_id);
    let waits_for_a_run = event.delayed_until().is_some()
        // Sent at once, it could not be superseded.
        || event.options.coalesce_key.is_some()
        // Only the table knows whether it is the head of its message group.
        || delivery.ordering_key.is_some()
        // While the breaker is open or has just closed, only a run may decide about an attempt.
        || !destination.breaker.allows_full_rate(event.created_at);
    if waits_for_a_run {
        return None;
    }
    fast_path_batch.try_add(destination, flow_id, |expires_at| ClaimedDelivery {
        claim: Claim { delivery_id: id, destination_id, epoch },
        flow_id,
        event_id: event.id,
        event_created_at: event.created_at,
        attempts: 0,
        attempts_before: 0,
        is_replay: false,
        cost: event.cost(),
        body: ClaimedBody::Inline(event.body.clone()),
        expires_at,
        destination: Some(Arc::clone(destination)),
    })
}

fn filter_of(taker: Option<&Destination>) -> Option<&Arc<Filter>> {
    taker?.settings.filter.as_ref()
}

/// Why the event is refused, if it is. `None`: a destination joined a limit group while the event was on its way here, so
/// that the group was not read.
fn refusal(event: &Event, takers: &Takers, verdicts: &Verdicts, most: usize) -> Option<Option<IngestRefusal>> {
    let above_own = takers.iter().find_map(|(destination_id, taker)| {
        let limit = above_limit(event, taker.as_ref()?, verdicts)?;
        Some(IngestRefusal::CostAboveLimit { destination_id: *destination_id, limit })
    });
    if above_own.is_some() {
        return Some(above_own);
    }
    if event.cost() > 1 {
        for (destination_id, taker) in takers {
            let Some(id) = taker.as_ref().and_then(|taker| taker.settings.limit_group) else { continue };
            let Some(group) = verdicts.group(id)? else { continue };
            if let Some(&limit) = group.at(event.created_at).rate_limits.too_low_for(event.cost()) {
                let (destination_id, group) = (*destination_id, Arc::clone(&group));
                return Some(Some(IngestRefusal::CostAboveGroupLimit { destination_id, group, limit }));
            }
        }
    }
    Some((takers.len() > most).then_some(IngestRefusal::TooManyDestinations { destinations: takers.len(), most }))
}

/// The limit of the destination, or of the event's limit key there, that a single send of the event exceeds.
fn above_limit(event: &Event, destination: &Destination, verdicts: &Verdicts) -> Option<RateLimit> {
    let settings = &destination.settings;
    let limits = destination.temporary.limits(&settings.rate_limits, event.created_at);
    let of_key = || {
        let key = limit_key(event, destination, verdicts)?;
        let limits = settings.key_limits.as_ref()?.of(&key).rate_limits;
        limits.too_low_for(event.cost()).copied()
    };
    limits.too_low_for(event.cost()).copied().or_else(of_key)
}

/// The limit key of an event at a destination that has some.
fn limit_key(event: &Event, destination: &Destination, verdicts: &Verdicts) -> Option<LimitKey> {
    let pointer = &destination.settings.key_limits.as_ref()?.pointer;
    event.options.limit_key.clone().or_else(|| verdicts.key(pointer))
}

/// The destinations of an event: the named ones, or all of the tenant whose patterns match.
fn fan_out(
    event: &Event,
    named: Option<&[DestinationId]>,
    directory: &mut impl Directory,
) -> Result<Arc<[DestinationId]>, IngestRefusal> {
    Ok(match named {
        None => directory.matching(&event.tenant, &event.event_type),
        Some(named) => {
            if let Some(index) = named.iter().position(|&id| directory.find(&event.tenant, id).is_none()) {
                return Err(IngestRefusal::UnknownDestination { index });
            }
            // Each destination once, however often it is named.
            let mut seen = HashSet::new();
            named.iter().copied().filter(|&id| named.len() == 1 || seen.insert(id)).collect()
        }
    })
}

/// The id of an event's `index`-th delivery: the time in the event's id, by which the deliveries of an event are found,
/// and random bits. XOR with the index keeps the ids of an event distinct and next to each other in the table.
fn delivery_id(event: &Event, random: u128, index: usize) -> DeliveryId {
    let mut id = *DeliveryId::new(event.created_at, random ^ index as u128).as_bytes();
    id[..6].copy_from_slice(&event.id.as_bytes()[..6]);
    DeliveryId::from_bytes(id)
}
