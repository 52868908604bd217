//! A store that implements only the calls of scheduler and sweep: waiting deliveries, claims, and the last sends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use weir_core::{
    DeliveryId, Destination, DestinationId, EventId, LimitGroup, LimitGroupId, LimitKey, Period, RateLimit, RateLimits,
    ReplayId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    limit_group::Home,
};
use weir_queue::conformance::settings;
use weir_store::{
    BreakerChange, ClaimRequest, ClaimedFlow, Claims, DueDestination, FlowKey, Flows, LimitChange, LimitGroups,
    MessageGroup, MessageGroups, MessageGroupsRepaired, Outbox, Paces, Recovered, ReplayStep, ReplaySteps,
    ReservedSlots, RunDestinations, SendHistory, SentCounts, StoreResult,
};

pub(crate) fn destination(number: u8) -> DestinationId {
    DestinationId::from_bytes([number; 16])
}

pub(crate) fn limits(limit: u32, period: Period) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, period).into_iter().collect()).unwrap()
}

/// A delivery, waiting or claimed.
struct Row {
    id: DeliveryId,
    destination_id: DestinationId,
    key: Option<LimitKey>,
    due: Timestamp,
    attempts: u32,
    epoch: i64,
    /// When the claim expires; `None` if the delivery is not claimed.
    claimed_until: Option<Timestamp>,
}

impl Row {
    fn flow_id(&self) -> DestinationId {
        self.key.as_ref().map_or(self.destination_id, |key| key.flow_id(self.destination_id))
    }

    fn is_asked_for(&self, request: &ClaimRequest) -> bool {
        let is_of_flow = match request.flow {
            ClaimedFlow::All => true,
            ClaimedFlow::Key(flow) => self.flow_id() == flow,
            ClaimedFlow::Keyless => self.key.is_none(),
        };
        is_of_flow && self.destination_id == request.destination_id && self.claimed_until.is_none()
    }

    fn claim(&mut self, now: Timestamp, until: Timestamp) -> ClaimedDelivery {
        self.epoch += 1;
        self.claimed_until = Some(until);
        ClaimedDelivery {
            flow_id: self.flow_id(),
            claim: Claim { delivery_id: self.id, destination_id: self.destination_id, epoch: self.epoch },
            event_id: EventId::from_bytes(*self.id.as_bytes()),
            event_created_at: now,
            attempts: self.attempts,
            attempts_before: 0,
            is_replay: false,
            cost: 1,
            body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{}"), 0)),
            expires_at: until,
            destination: None,
        }
    }
}

#[derive(Default)]
struct Record {
    destinations: HashMap<DestinationId, Arc<Destination>>,
    history: HashMap<DestinationId, SendHistory>,
    /// What is recorded: the destination, the flow and the start of sends.
    sends: Vec<(DestinationId, DestinationId, Timestamp)>,
    groups: HashMap<LimitGroupId, Arc<LimitGroup>>,
    /// The step of the open replay.
    replay: Option<ReplayStep>,
    /// The ends of reserved slots.
    reserved: Vec<Timestamp>,
    rows: Vec<Row>,
    posted: u128,
    released: u64,
}

fn not_called<T>() -> T {
    panic!("neither scheduler nor sweep calls this method")
}

#[derive(Default)]
pub(crate) struct TestStore {
    record: Mutex<Record>,
    /// The delay of the answer to the next claim.
    next_claim_takes: Mutex<Duration>,
}

impl TestStore {
    /// A reservation that ends then.
    pub(crate) fn reserved(&self, end: Timestamp) {
        self.record().reserved.push(end);
    }

    /// Begins a replay with this step.
    pub(crate) fn replay(&self, step: ReplayStep) {
        self.record().replay = Some(step);
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    /// Creates a destination with this history of sends.
    pub(crate) fn create(&self, id: DestinationId, rate_limits: RateLimits, history: SendHistory) {
        let destination = Destination { id, ..settings(&rate_limits, 64) };
        let mut record = self.record();
        record.destinations.insert(id, Arc::new(destination));
        record.history.insert(id, history);
    }

    /// Lets a destination join a group with these limits. It has left its own home.
    pub(crate) fn join(&self, id: DestinationId, group: LimitGroupId, rate_limits: RateLimits) {
        let mut record = self.record();
        let destination = Arc::make_mut(record.destinations.get_mut(&id).unwrap());
        destination.settings.limit_group = Some(group);
        destination.left_homes.push(Home::Own);
        let (tenant, name, max_in_flight) = (None, "account".to_owned(), None);
        let [created_at, updated_at] = [destination.updated_at; 2];
        let terms = LimitGroup {
            keys_of: None,
            id: group,
            tenant,
            name,
            rate_limits,
            max_in_flight,
            temporary: Default::default(),
            created_at,
            updated_at,
        };
        record.groups.insert(group, Arc::new(terms));
    }

    /// The homes that a destination has left and that are not closed.
    pub(crate) fn left_homes(&self, id: DestinationId) -> Vec<Home> {
        self.record().destinations[&id].left_homes.clone()
    }

    /// Changes a destination.
    pub(crate) fn edit(
        &self,
        id: DestinationId,
        now: Timestamp,
        edit: impl FnOnce(&mut Destination),
    ) -> Arc<Destination> {
        let mut record = self.record();
        let destination = record.destinations.get_mut(&id).unwrap();
        let edited = Arc::make_mut(destination);
        edit(edited);
        edited.updated_at = now;
        Arc::clone(destination)
    }

    /// Commits a delivery without a wake.
    pub(crate) fn post(&self, to: DestinationId, due: Timestamp) {
        self.post_with(to, None, due);
    }

    /// Commits a delivery with a limit key. Returns its flow.
    pub(crate) fn post_with(&self, to: DestinationId, key: Option<LimitKey>, due: Timestamp) -> DestinationId {
        let mut record = self.record();
        record.posted += 1;
        let id = DeliveryId::from_bytes(record.posted.to_be_bytes());
        let row = Row { id, destination_id: to, key, due, attempts: 0, epoch: 0, claimed_until: None };
        let flow_id = row.flow_id();
        record.rows.push(row);
        flow_id
    }

    /// Ends the delivery of this claim, which was sent then.
    pub(crate) fn settle(&self, delivery: &ClaimedDelivery, sent_at: Timestamp) {
        self.record().sends.push((delivery.claim.destination_id, delivery.flow_id, sent_at));
        self.end(delivery.claim);
    }

    /// How many deliveries have not ended.
    pub(crate) fn open(&self) -> usize {
        self.record().rows.len()
    }

    /// Delays the answer to the next claim; the claim itself is made at once.
    pub(crate) fn delay_the_next_claim(&self, by: Duration) {
        *self.next_claim_takes.lock().unwrap() = by;
    }

    /// Makes the delivery of this claim wait again until `due`.
    pub(crate) fn put_back(&self, claim: Claim, due: Timestamp) {
        let mut record = self.record();
        let row = record.rows.iter_mut().find(|row| row.id == claim.delivery_id).unwrap();
        (row.claimed_until, row.due) = (None, due);
    }

    /// Ends the delivery of this claim.
    pub(crate) fn end(&self, claim: Claim) {
        self.record().rows.retain(|row| row.id != claim.delivery_id);
    }

    /// How many deliveries are claimed now.
    pub(crate) fn claimed(&self) -> usize {
        self.record().rows.iter().filter(|row| row.claimed_until.is_some()).count()
    }

    /// How many claims were released.
    pub(crate) fn released(&self) -> u64 {
        self.record().released
    }
}

impl Record {
    /// Whether the destination is there and not paused.
    fn is_open(&self, id: DestinationId) -> bool {
        self.destinations.get(&id).is_some_and(|destination| !destination.settings.paused)
    }

    /// What is due before then, by `id`.
    fn due(
        &self,
        id: impl Fn(&Row) -> Option<DestinationId>,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> Vec<DueDestination> {
        let mut dues: BTreeMap<DestinationId, Timestamp> = BTreeMap::new();
        let waits = |row: &&Row| row.claimed_until.is_none() && row.due < before && self.is_open(row.destination_id);
        for row in self.rows.iter().filter(waits) {
            let Some(id) = id(row).filter(|id| after.is_none_or(|after| *id > after)) else { continue };
            dues.entry(id).and_modify(|due| *due = row.due.min(*due)).or_insert(row.due);
        }
        let due = |(destination_id, due)| DueDestination { destination_id, due, limit_group: None };
        dues.into_iter().map(due).take(limit as usize).collect()
    }

    /// The recorded sends of a destination or flow.
    fn sends_of(&self, id: DestinationId) -> impl Iterator<Item = Timestamp> {
        self.sends.iter().filter(move |(of, flow, _)| [*of, *flow].contains(&id)).map(|(.., at)| *at)
    }

    fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Claims {
        let mut claims = Claims::default();
        if !self.is_open(request.destination_id) {
            return claims;
        }
        for row in self.rows.iter_mut().filter(|row| row.is_asked_for(request)) {
            if row.due > now || claims.deliveries.len() == request.limit as usize {
                claims.next_due = Some(claims.next_due.map_or(row.due, |due| due.min(row.due)));
                continue;
            }
            claims.deliveries.push(row.claim(now, request.expires_at));
        }
        claims
    }
}

#[async_trait]
impl Outbox for TestStore {
    async fn claim(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        let claims = {
            let mut record = self.record();
            requests.iter().map(|request| record.claim(request, now)).collect()
        };
        let takes = std::mem::take(&mut *self.next_claim_takes.lock().unwrap());
        tokio::time::sleep(takes).await;
        Ok(claims)
    }

    async fn release(&self, claims: Vec<Claim>, _now: Timestamp) -> StoreResult<u64> {
        let mut record = self.record();
        let mut released = 0;
        for claim in claims {
            let held = |row: &&mut Row| row.id == claim.delivery_id && row.epoch == claim.epoch;
            if let Some(row) = record.rows.iter_mut().find(held)
                && row.claimed_until.take().is_some()
            {
                released += 1;
            }
        }
        record.released += released;
        Ok(released)
    }

    async fn due_destinations(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        Ok(self.record().due(|row| Some(row.destination_id), before, after, limit))
    }

    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered> {
        let Record { rows, sends, .. } = &mut *self.record();
        let abandoned = |row: &&mut Row| row.claimed_until.is_some_and(|until| all || until < now);
        let mut retried = 0;
        for row in rows.iter_mut().filter(abandoned).take(limit as usize) {
            // Of unknown outcome: at the latest possible instant.
            sends.push((row.destination_id, row.flow_id(), now));
            (row.claimed_until, row.due) = (None, now);
            row.attempts += 1;
            retried += 1;
        }
        Ok(Recovered { retried, ..Recovered::default() })
    }

    async fn expire_deliveries(&self, _: Timestamp, _: u32) -> StoreResult<u64> {
        Ok(0)
    }

    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>> {
        let record = self.record();
        let history = |id: &DestinationId| {
            let known = record.history.get(id).copied().unwrap_or_default();
            let last_sent_at = known.last_sent_at.max(record.sends_of(*id).max());
            let is_claimed =
                |row: &Row| row.claimed_until.is_some() && [row.destination_id, row.flow_id()].contains(id);
            SendHistory { last_sent_at, unsettled: known.unsettled || record.rows.iter().any(is_claimed) }
        };
        Ok(ids.iter().map(history).collect())
    }

    async fn sent_counts(&self, ids: &[DestinationId], since: Timestamp, limit: RateLimit) -> StoreResult<SentCounts> {
        let record = self.record();
        let sends = ids.iter().flat_map(|id| record.sends_of(*id)).filter(|at| *at > since);
        let mut buckets: Vec<_> = sends.map(|at| (at.as_nanos() / limit.bucket().as_nanos() as i64 + 1, 1)).collect();
        buckets.sort_unstable();
        let is_claimed = |row: &&Row| {
            row.claimed_until.is_some() && (ids.contains(&row.destination_id) || ids.contains(&row.flow_id()))
        };
        let claimed = record.rows.iter().filter(is_claimed).count() as u32;
        Ok(SentCounts { buckets, claimed, ..SentCounts::default() })
    }

    async fn mark_restored(&self, _: Timestamp) -> StoreResult<()> {
        not_called()
    }
}

#[async_trait]
impl RunDestinations for TestStore {
    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>> {
        let record = self.record();
        Ok(ids.iter().map(|id| record.destinations.get(id).cloned()).collect())
    }

    async fn change_breakers(&self, changes: Vec<BreakerChange>) -> StoreResult<Vec<bool>> {
        let mut record = self.record();
        let mut apply = |change: BreakerChange| {
            let changed = record.destinations.get(&change.id).and_then(|current| change.applied_to(current));
            let is_changed = changed.is_some();
            record.destinations.extend(changed.map(|changed| (change.id, Arc::new(changed))));
            is_changed
        };
        Ok(changes.into_iter().map(&mut apply).collect())
    }

    /// The limits never had another shape.
    async fn limit_changes(&self, _: DestinationId) -> StoreResult<Vec<LimitChange>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl MessageGroups for TestStore {
    async fn repair_message_groups(&self, _: Option<MessageGroup>, _: u32) -> StoreResult<MessageGroupsRepaired> {
        Ok(MessageGroupsRepaired::default())
    }

    async fn dissolve_message_groups(&self, _: u32) -> StoreResult<u64> {
        Ok(0)
    }
}

/// A store with at most one replay, which has one step. No delivery of it can be claimed.
#[async_trait]
impl ReplaySteps for TestStore {
    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>> {
        Ok(self.record().replay.iter().map(|_| ReplayId::from_bytes([1; 16])).collect())
    }

    async fn step_replay(&self, _: ReplayId, _: Timestamp) -> StoreResult<ReplayStep> {
        Ok(self.record().replay.as_mut().map(std::mem::take).unwrap_or_default())
    }

    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>> {
        Ok(vec![destination(1)])
    }

    async fn claim_replays(&self, _: Vec<ClaimRequest>, _: Timestamp) -> StoreResult<Vec<Claims>> {
        not_called()
    }
}

/// A store that keeps no copies.
impl Paces for TestStore {}

#[async_trait]
impl ReservedSlots for TestStore {
    async fn has_reserved(&self, _: LimitGroupId, since: Timestamp) -> StoreResult<bool> {
        Ok(self.record().reserved.iter().any(|end| *end >= since))
    }

    async fn reserved_counts(&self, _: LimitGroupId, since: Timestamp, limit: RateLimit) -> StoreResult<SentCounts> {
        let record = self.record();
        let bucket = |end: &Timestamp| (end.as_nanos() / limit.bucket().as_nanos() as i64 + 1, 1);
        let mut buckets: Vec<_> = record.reserved.iter().filter(|end| **end >= since).map(bucket).collect();
        buckets.sort_unstable();
        Ok(SentCounts { buckets, ..SentCounts::default() })
    }
}

#[async_trait]
impl Flows for TestStore {
    async fn flow_keys(&self, flows: &[DestinationId]) -> StoreResult<Vec<Option<FlowKey>>> {
        let record = self.record();
        let of = |flow: &DestinationId| {
            let row = record.rows.iter().find(|row| row.key.is_some() && row.flow_id() == *flow)?;
            Some(FlowKey { destination_id: row.destination_id, key: row.key.clone()? })
        };
        Ok(flows.iter().map(of).collect())
    }

    async fn due_flows(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        Ok(self.record().due(|row| row.key.is_some().then(|| row.flow_id()), before, after, limit))
    }
}

#[async_trait]
impl LimitGroups for TestStore {
    async fn limit_groups(&self, ids: &[LimitGroupId]) -> StoreResult<Vec<Option<Arc<LimitGroup>>>> {
        let record = self.record();
        Ok(ids.iter().map(|id| record.groups.get(id).cloned()).collect())
    }

    async fn group_senders(&self, id: LimitGroupId, _: Timestamp) -> StoreResult<Vec<DestinationId>> {
        let record = self.record();
        let members = record.destinations.values().filter(|of| of.settings.limit_group == Some(id));
        Ok(members.map(|of| of.id).collect())
    }

    async fn homes_left(&self, id: DestinationId, updated_at: Timestamp, closed: &[Home]) -> StoreResult<()> {
        let mut record = self.record();
        let destination = Arc::make_mut(record.destinations.get_mut(&id).unwrap());
        assert_eq!(destination.updated_at, updated_at);
        destination.left_homes.retain(|home| !closed.contains(home));
        Ok(())
    }
}
