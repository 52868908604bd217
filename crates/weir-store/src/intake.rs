//! What a group of new events comes to, alike in every store: deduplicated, fanned out, and taken along over the fast path where
//! it has room.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use weir_core::{
    DeliveryId, Destination, DestinationId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::Event,
};

use crate::{FastPathBatch, IngestRefusal, Ingested, MessageGroup, NewEvent};

/// What becomes of one event.
pub type Outcome = Result<Ingested, IngestRefusal>;

/// A tenant and an idempotency key.
pub type Key<'e> = (&'e str, &'e str);

/// The stored events whose keys are used again.
pub type KnownKeys = HashMap<(String, String), Ingested>;

/// The live destinations of the tenants.
pub trait Directory {
    fn find(&self, tenant: &str, id: DestinationId) -> Option<Arc<Destination>>;

    /// Those of a tenant whose patterns match a type.
    fn matching(&mut self, tenant: &str, event_type: &str) -> Arc<[DestinationId]>;
}

/// A delivery to store.
#[derive(Debug, Clone, Copy)]
pub struct NewDelivery<'e> {
    pub id: DeliveryId,
    pub event: &'e Event,
    pub destination_id: DestinationId,
    /// It is stored as claimed, until then.
    pub claimed_until: Option<Timestamp>,
    /// It is stored as superseded, by a later event of the group.
    pub superseded: bool,
    /// Its place is in the line of this key. NULL in the store for all others, so that they pay nothing.
    pub ordering_key: Option<&'e str>,
    /// An earlier one of the group is in the same line.
    pub follows: bool,
}

impl NewDelivery<'_> {
    /// The line that it joins.
    pub fn line(&self) -> Option<MessageGroup> {
        let ordering_key = self.ordering_key.filter(|_| !self.superseded)?.to_owned();
        Some(MessageGroup { destination_id: self.destination_id, ordering_key })
    }

    /// Whether a run will soon ask for its body.
    pub fn is_due_soon(&self) -> bool {
        self.claimed_until.is_none() && !self.superseded && self.event.delayed_until().is_none()
    }

    /// What it coalesces by, among the deliveries of its destination. A type has no spaces.
    pub fn coalesces_by(&self) -> Option<String> {
        self.event.terms.coalesce_key.as_ref().map(|key| format!("{} {key}", self.event.event_type))
    }
}

/// What a group comes to.
#[derive(Debug, Default)]
pub struct Intake<'e> {
    /// In the order of the events.
    pub answers: Vec<Outcome>,
    /// The events to store, with the number of their deliveries.
    pub events: Vec<(&'e Event, u32)>,
    pub deliveries: Vec<NewDelivery<'e>>,
    /// Where the last delivery of each destination, type and coalesce key is.
    last_of_key: HashMap<(DestinationId, &'e str, &'e str), usize>,
    /// The lines that are joined.
    joined: HashSet<(DestinationId, &'e str)>,
}

/// An event's tenant and key, if it has one.
pub fn key(event: &Event) -> Option<Key<'_>> {
    event.idempotency_key.as_deref().map(|key| (event.tenant.as_str(), key))
}

impl<'e> Intake<'e> {
    /// `epoch` is that of the claims made here.
    pub fn of(
        new: &[&'e NewEvent],
        known: &KnownKeys,
        directory: &mut impl Directory,
        epoch: i64,
        boarding: &mut FastPathBatch,
    ) -> Self {
        let mut intake = Self {
            answers: Vec::with_capacity(new.len()),
            events: Vec::with_capacity(new.len()),
            deliveries: Vec::with_capacity(new.len()),
            last_of_key: HashMap::new(),
            joined: HashSet::new(),
        };
        // Where the answer to the first event with a key is, among the events of this group.
        let mut first: HashMap<Key<'_>, usize> = HashMap::new();
        for &new in new {
            let key = key(&new.event);
            let answer = match intake.stored_before(key, known, &first) {
                Some(answer) => answer,
                None => intake.take_in(new, directory, epoch, boarding),
            };
            // A refused event leaves its key to the next one.
            if let (Ok(_), Some(key)) = (&answer, key) {
                first.entry(key).or_insert(intake.answers.len());
            }
            intake.answers.push(answer);
        }
        intake.form_lines();
        intake
    }

    /// Who follows whom, now that it is known what gives way within the group.
    fn form_lines(&mut self) {
        for delivery in self.deliveries.iter_mut().filter(|delivery| !delivery.superseded) {
            let Some(key) = delivery.ordering_key else { continue };
            delivery.follows = !self.joined.insert((delivery.destination_id, key));
        }
    }

    /// The answer to an event whose key is used again: the first one's.
    fn stored_before(
        &self,
        key: Option<Key<'_>>,
        known: &KnownKeys,
        first: &HashMap<Key<'_>, usize>,
    ) -> Option<Outcome> {
        let (tenant, key) = key?;
        if !known.is_empty()
            && let Some(stored) = known.get(&(tenant.to_owned(), key.to_owned()))
        {
            return Some(Ok(stored.clone()));
        }
        let again = |first: Ingested| Ingested { duplicate: true, wake: Vec::new(), ..first };
        first.get(&(tenant, key)).map(|&at| self.answers[at].clone().map(again))
    }

    fn take_in(
        &mut self,
        NewEvent { event, destinations, random }: &'e NewEvent,
        directory: &mut impl Directory,
        epoch: i64,
        boarding: &mut FastPathBatch,
    ) -> Outcome {
        let fan_out = fan_out(event, destinations.as_deref(), directory)?;
        // What coalesces waits for a run, however short: what goes at once cannot give way.
        let by_fast_path = event.delayed_until().is_none() && event.terms.coalesce_key.is_none();
        let mut wake = Vec::new();
        for (index, &destination_id) in fan_out.iter().enumerate() {
            let id = delivery_id(event, *random, index);
            let found = directory.find(&event.tenant, destination_id);
            let ordered = found.as_ref().is_some_and(|found| found.settings.order.is_by_key());
            let ordering_key = event.terms.ordering_key.as_deref().filter(|_| ordered);
            // A paused destination holds what it gets: it is neither sent at once nor woken.
            let awake = found.filter(|found| !found.settings.paused);
            // What has a place in a line waits for a run: only the table knows whether it is the first.
            let by_fast_path = by_fast_path && ordering_key.is_none();
            // While its breaker is not closed, or only just, each attempt is a run's to decide.
            let calm =
                awake.as_ref().filter(|destination| by_fast_path && destination.breaker.is_calm(event.created_at));
            let claimed_until = calm.and_then(|destination| {
                boarding.board(destination, |expires_at| ClaimedDelivery {
                    claim: Claim { delivery_id: id, destination_id, epoch },
                    event_id: event.id,
                    event_created_at: event.created_at,
                    attempts: 0,
                    attempts_before: 0,
                    is_replay: false,
                    body: ClaimedBody::Inline(event.body.clone()),
                    expires_at,
                    destination: Some(destination.clone()),
                })
            });
            if awake.is_some() && claimed_until.is_none() {
                wake.push(destination_id);
            }
            if let Some(key) = &event.terms.coalesce_key {
                let key = (destination_id, event.event_type.as_str(), key.as_str());
                if let Some(earlier) = self.last_of_key.insert(key, self.deliveries.len()) {
                    self.deliveries[earlier].superseded = true;
                }
            }
            self.deliveries.push(NewDelivery {
                id,
                event,
                destination_id,
                claimed_until,
                superseded: false,
                ordering_key,
                follows: false,
            });
        }
        let deliveries = fan_out.len() as u32;
        self.events.push((event, deliveries));
        Ok(Ingested { event: event.clone(), deliveries, duplicate: false, wake })
    }
}

/// Where an event goes: to the named destinations, or to every one of the tenant whose patterns match.
fn fan_out(
    event: &Event,
    named: Option<&[DestinationId]>,
    directory: &mut impl Directory,
) -> Result<Vec<DestinationId>, IngestRefusal> {
    let Some(named) = named else {
        return Ok(directory.matching(&event.tenant, &event.event_type).to_vec());
    };
    if let Some(index) = named.iter().position(|&id| directory.find(&event.tenant, id).is_none()) {
        return Err(IngestRefusal::UnknownDestination { index });
    }
    let mut seen = HashSet::new();
    Ok(named.iter().copied().filter(|&id| named.len() == 1 || seen.insert(id)).collect())
}

/// The id of an event's `index`-th delivery: the time in the event's id, by which the deliveries of an event are found, and
/// random bits. Exclusive or with the index keeps them different within the event and next to each other in the table.
fn delivery_id(event: &Event, random: u128, index: usize) -> DeliveryId {
    let mut id = *DeliveryId::new(event.created_at, random ^ index as u128).as_bytes();
    id[..6].copy_from_slice(&event.id.as_bytes()[..6]);
    DeliveryId::from_bytes(id)
}
