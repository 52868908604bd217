//! The ingest of events.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use async_trait::async_trait;
use weir_core::{DestinationId, LimitGroup, RateLimit, event::Event, shed::ClientId};

use crate::{DestinationLimits, FastPath, LimitGroups, Looks, Matches, StoreResult, Verdicts};

/// An event to store, and its destinations.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub event: Event,
    /// Whose turn it takes; the default for events of Weir's own.
    pub client: ClientId,
    /// The destinations that the producer named; `None` for all of the tenant whose patterns match.
    pub destinations: Option<Vec<DestinationId>>,
    /// A new random number. Delivery ids are made from it and the event's time.
    pub random: u128,
    /// What the filters of its destinations say and which limit keys it has, as far as they were evaluated.
    pub verdicts: Verdicts,
}

impl NewEvent {
    pub fn new(event: Event, destinations: Option<Vec<DestinationId>>, random: u128) -> Self {
        Self { event, client: ClientId::default(), destinations, random, verdicts: Verdicts::default() }
    }
}

/// A stored event.
#[derive(Debug, Clone)]
pub struct Ingested {
    /// The event as stored: the first one when `duplicate`.
    pub event: Event,
    /// The number of its deliveries.
    pub deliveries: u32,
    /// Whether an event with the same tenant and idempotency key already existed, so that nothing was stored.
    pub duplicate: bool,
    /// The destinations to wake when the event is due: those with a waiting delivery of it. Empty for a duplicate.
    pub wake: Vec<DestinationId>,
}

/// Why an event was not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngestRefusal {
    /// The named destination at `index` does not exist in the event's tenant.
    UnknownDestination { index: usize },
    /// It would go to this many destinations, and may go to `most`.
    TooManyDestinations { destinations: usize, most: usize },
    /// A destination that takes it has this limit, which a single send of its cost exceeds.
    CostAboveLimit { destination_id: DestinationId, limit: RateLimit },
    /// So has the limit group of such a destination.
    CostAboveGroupLimit { destination_id: DestinationId, group: Arc<LimitGroup>, limit: RateLimit },
}

/// The most deliveries in one commit, unless a single event has more: a fraction of a second, for which everybody else
/// waits.
pub const MOST_DELIVERIES_OF_COMMIT: usize = 8_192;

/// A part of the events of a call: as many as one commit may hold.
#[derive(Debug, Clone)]
pub struct Part {
    events: Arc<[NewEvent]>,
    range: Range<usize>,
    rows: usize,
    /// What decides about each event.
    looks: Vec<Looks>,
}

impl Part {
    /// The longest part that begins at `from`; at least one event. `matches` has the destinations of an event as far as they
    /// are known now.
    pub fn of(
        events: &Arc<[NewEvent]>,
        from: usize,
        limits: DestinationLimits,
        mut matches: impl FnMut(&NewEvent) -> Matches,
    ) -> Self {
        let (mut end, mut rows, mut all_looks) = (from, 0, Vec::new());
        for new in &events[from..] {
            let Matches { ids, mut looks } = matches(new);
            if new.event.options.limit_key.is_some() {
                looks.key_limits = Arc::default();
            }
            // No limit is below a cost of 1, so such an event needs to know no group.
            if new.event.cost() == 1 {
                looks.limit_groups = Arc::default();
            }
            // An event with too many destinations is refused, and stores nothing.
            let destinations = new.destinations.as_ref().map_or(ids.len(), Vec::len);
            let more = Some(destinations).filter(|&count| count <= limits.of_event).unwrap_or_default().max(1);
            if end > from && rows + more > MOST_DELIVERIES_OF_COMMIT {
                break;
            }
            (end, rows) = (end + 1, rows + more);
            all_looks.push(looks);
        }
        Self { events: Arc::clone(events), range: from..end, rows, looks: all_looks }
    }

    pub fn events(&self) -> &[NewEvent] {
        &self.events[self.range.clone()]
    }

    /// Evaluates the filters, finds the limit keys, and reads the limit groups of dear events, before the commit for which
    /// others wait.
    pub async fn judge(&self, store: &impl LimitGroups) -> StoreResult<()> {
        let groups: BTreeSet<_> = self.looks.iter().flat_map(|looks| looks.limit_groups.iter().copied()).collect();
        if !groups.is_empty() {
            let ids: Vec<_> = groups.into_iter().collect();
            let found = store.limit_groups(&ids).await?;
            let groups = Arc::new(ids.into_iter().zip(found).collect());
            self.events().iter().for_each(|new| new.verdicts.know(&groups));
        }
        for (new, looks) in self.events().iter().zip(&self.looks) {
            new.verdicts.judge(&new.event, looks).await;
        }
        Ok(())
    }

    /// The tenant and the client whose turn it takes: those of its first event.
    pub fn turn(&self) -> (&str, ClientId) {
        self.events().first().map_or_else(Default::default, |new| (new.event.tenant.as_str(), new.client))
    }

    /// The deliveries that it is expected to store. An event without any counts as one.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

#[async_trait]
pub trait Ingest: Send + Sync {
    /// Stores the events from `from` on, as many as one commit may hold ([`MOST_DELIVERIES_OF_COMMIT`]), and at least
    /// one. Each is stored with all its deliveries, or not at all; the commit is durable, and may be shared with other
    /// callers. Returns the results of these events in their order, after the commit: an acknowledged event survives a
    /// crash of the machine. The tenants and their clients take turns ([`crate::Turns`]), so a caller waits for a few commits of others
    /// at most.
    ///
    /// [`crate::intake`] has the rules of idempotency, coalescing and order. A destination that is named twice gets one
    /// delivery.
    async fn ingest_part(
        &self,
        events: &Arc<[NewEvent]>,
        from: usize,
    ) -> StoreResult<Vec<Result<Ingested, IngestRefusal>>>;

    /// Stores all events, in as many commits as they need. After an error some of the first may be stored.
    async fn ingest(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Result<Ingested, IngestRefusal>>> {
        let events: Arc<[NewEvent]> = events.into();
        let mut results = Vec::with_capacity(events.len());
        while results.len() < events.len() {
            results.extend(self.ingest_part(&events, results.len()).await?);
        }
        Ok(results)
    }

    /// Connects the fast path. From now on new deliveries go over it when it has room.
    fn connect(&self, fast_path: Arc<dyn FastPath>);
}
