//! The traits of the store that neither scheduler nor sweep uses.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use weir_core::{
    ApiKeyId, DeliveryId, DestinationId, EventId, ReplayId, Timestamp,
    activity::Activity,
    alert::{AlertPolicy, AlertState},
    claim::{Claim, ProcessId},
    delivery::Delivery,
    event::Event,
    retention::Cutoffs,
};
use weir_store::{
    ActivityFilter, ActivityLog, Alerting, ApiKey, ApiKeys, AttemptResult, ClaimRequest, Claims, Condition, Counters,
    Created, Creation, DeliveryAction, DeliveryDetail, DeliveryFilter, EventFilter, FailureGroups, FastPath, Health,
    History, Ingest, IngestRefusal, Ingested, KeyedAnswer, ListCount, NewEvent, NewReplay, Page, PageRequest,
    ProcessBeat, ProcessProfile, Processes, Prune, PrunePlace, PruneStep, Purge, PurgePlace, PurgeStep, Recovered,
    Replay, ReplayFilter, ReplayPhase, ReplayStep, Replays, Results, RunningProcess, SendRecord, SendsRequest,
    SessionSecret, Settlement, StateCounts, StoreResult, Traffic, TrafficHistory, TrafficLog,
};

use super::TestStore;

pub(super) fn not_called<T>() -> T {
    panic!("neither scheduler nor sweep calls this method")
}

#[async_trait]
impl Ingest for TestStore {
    async fn ingest_part(&self, _: &Arc<[NewEvent]>, _: usize) -> StoreResult<Vec<Result<Ingested, IngestRefusal>>> {
        not_called()
    }

    fn connect(&self, _: Arc<dyn FastPath>) {
        not_called::<()>();
    }
}

#[async_trait]
impl Results for TestStore {
    async fn settle(&self, _: Vec<Arc<AttemptResult>>) -> StoreResult<Vec<Settlement>> {
        not_called()
    }

    async fn retry_delivery(&self, _: DeliveryId, _: Timestamp, _: Activity) -> StoreResult<DeliveryAction> {
        not_called()
    }

    async fn cancel_delivery(&self, _: DeliveryId, _: Timestamp, _: Activity) -> StoreResult<DeliveryAction> {
        not_called()
    }

    async fn purge_some(&self, _: &Purge, _: Option<PurgePlace>, _: &Activity, _: u64) -> StoreResult<PurgeStep> {
        not_called()
    }

    async fn count_purge(&self, _: &Purge) -> StoreResult<u64> {
        not_called()
    }
}

#[async_trait]
impl Prune for TestStore {
    async fn prune_some(&self, _: &Cutoffs, _: PrunePlace) -> StoreResult<PruneStep> {
        not_called()
    }
}

/// A store without replays.
#[async_trait]
impl Replays for TestStore {
    async fn count_replay(&self, _: &ReplayFilter, _: Timestamp) -> StoreResult<u64> {
        not_called()
    }

    async fn create_replay(&self, _: NewReplay, _: u64, _: Creation) -> StoreResult<Created<()>> {
        not_called()
    }

    async fn replay(&self, _: ReplayId) -> StoreResult<Option<Replay>> {
        not_called()
    }

    async fn list_replays(&self, _: PageRequest) -> StoreResult<Page<Replay>> {
        not_called()
    }

    async fn cancel_replay(&self, _: ReplayId, _: Timestamp, _: Activity) -> StoreResult<Option<ReplayPhase>> {
        not_called()
    }

    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>> {
        Ok(Vec::new())
    }

    async fn step_replay(&self, _: ReplayId, _: Timestamp) -> StoreResult<ReplayStep> {
        not_called()
    }

    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>> {
        not_called()
    }

    async fn claim_replays(&self, _: Vec<ClaimRequest>, _: Timestamp) -> StoreResult<Vec<Claims>> {
        not_called()
    }
}

#[async_trait]
impl Alerting for TestStore {
    async fn alert_policy(&self) -> StoreResult<AlertPolicy> {
        not_called()
    }

    async fn set_alert_policy(&self, _: AlertPolicy, _: AlertPolicy, _: Activity) -> StoreResult<bool> {
        not_called()
    }

    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>> {
        not_called()
    }

    async fn conditions(&self, _: &[String]) -> StoreResult<Vec<Condition>> {
        not_called()
    }

    async fn backlog(&self) -> StoreResult<u64> {
        not_called()
    }

    async fn record_alert_state(&self, _: DestinationId, _: u64, _: AlertState) -> StoreResult<bool> {
        not_called()
    }
}

#[async_trait]
impl History for TestStore {
    async fn event(&self, _: EventId) -> StoreResult<Option<Event>> {
        not_called()
    }

    async fn event_deliveries(&self, _: EventId) -> StoreResult<Vec<Delivery>> {
        not_called()
    }

    async fn list_events(&self, _: &EventFilter, _: PageRequest) -> StoreResult<Page<Event>> {
        not_called()
    }

    async fn delivery(&self, _: DeliveryId) -> StoreResult<Option<DeliveryDetail>> {
        not_called()
    }

    async fn list_deliveries(&self, _: &DeliveryFilter, _: PageRequest) -> StoreResult<Page<Delivery>> {
        not_called()
    }

    async fn count_deliveries(&self, _: &DeliveryFilter) -> StoreResult<ListCount> {
        not_called()
    }

    async fn group_failures(&self, _: &DeliveryFilter) -> StoreResult<FailureGroups> {
        not_called()
    }

    async fn sends(&self, _: SendsRequest) -> StoreResult<Vec<SendRecord>> {
        not_called()
    }

    async fn destination_existed(&self, _: DestinationId) -> StoreResult<bool> {
        not_called()
    }

    async fn check(&self) -> StoreResult<()> {
        not_called()
    }
}

#[async_trait]
impl Processes for TestStore {
    async fn register_process(&self) -> StoreResult<ProcessId> {
        not_called()
    }

    async fn describe_process(&self, _: ProcessProfile) -> StoreResult<()> {
        not_called()
    }

    async fn running_processes(&self) -> StoreResult<Vec<RunningProcess>> {
        not_called()
    }

    async fn beat(&self) -> StoreResult<bool> {
        not_called()
    }

    async fn processes(&self) -> StoreResult<Vec<ProcessBeat>> {
        not_called()
    }

    async fn declare_dead(&self, _: ProcessId, _: i64) -> StoreResult<bool> {
        not_called()
    }

    async fn deregister(&self) -> StoreResult<()> {
        not_called()
    }

    async fn renew_claims(&self, _: Vec<Claim>, _: Timestamp) -> StoreResult<u64> {
        not_called()
    }

    async fn orphaned_claims(&self, _: u32) -> StoreResult<Vec<Claim>> {
        not_called()
    }

    async fn resolve_claims(&self, _: Vec<Claim>, _: Timestamp) -> StoreResult<Recovered> {
        not_called()
    }
}

#[async_trait]
impl ApiKeys for TestStore {
    async fn api_keys(&self) -> StoreResult<Vec<ApiKey>> {
        not_called()
    }

    async fn create_api_key(&self, _: ApiKey, _: Creation) -> StoreResult<Created<()>> {
        not_called()
    }

    async fn delete_api_key(&self, _: ApiKeyId, _: Activity) -> StoreResult<bool> {
        not_called()
    }

    async fn session_secret(&self, _: SessionSecret) -> StoreResult<SessionSecret> {
        not_called()
    }
}

#[async_trait]
impl ActivityLog for TestStore {
    async fn record_activity(&self, _: Creation) -> StoreResult<Created<()>> {
        not_called()
    }

    async fn list_activity(&self, _: &ActivityFilter, _: PageRequest) -> StoreResult<Page<Activity>> {
        not_called()
    }

    async fn keyed_answer(&self, _: [u8; 32], _: Timestamp) -> StoreResult<Option<KeyedAnswer>> {
        not_called()
    }

    async fn prune_activity(&self, _: Timestamp, _: Timestamp) -> StoreResult<u64> {
        not_called()
    }
}

#[async_trait]
impl Counters for TestStore {
    async fn counts(&self, _: &[DestinationId]) -> StoreResult<Vec<StateCounts>> {
        not_called()
    }

    async fn all_counts(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
        not_called()
    }

    async fn oldest_waiting(&self, _: &[DestinationId]) -> StoreResult<Vec<Option<Timestamp>>> {
        not_called()
    }

    async fn fold_changes(&self) -> StoreResult<u64> {
        not_called()
    }

    async fn count_by_scan(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
        not_called()
    }
}

#[async_trait]
impl TrafficLog for TestStore {
    async fn traffic(&self, _: DestinationId, _: Timestamp, _: Timestamp, _: Duration) -> StoreResult<TrafficHistory> {
        not_called()
    }

    async fn recent_traffic(&self, _: Timestamp) -> StoreResult<HashMap<DestinationId, Traffic>> {
        not_called()
    }

    async fn health(&self, _: DestinationId, _: Timestamp) -> StoreResult<Health> {
        not_called()
    }

    async fn roll_up_traffic(&self, _: Timestamp) -> StoreResult<bool> {
        not_called()
    }
}
