//! The record store: the data that Weir must never lose.
//!
//! The traits are split by their users: [`Destinations`], [`History`], [`ActivityLog`] and [`ApiKeys`] serve the API,
//! [`Ingest`] the producer, [`Outbox`] the scheduler, [`Processes`] the supervision of processes, [`MessageGroups`] the
//! sweep, [`Results`] the worker, [`RunDestinations`] and [`Flows`] the runs, [`Replays`] the API, [`ReplaySteps`] the scheduler, [`Alerting`] the alerts, [`Counters`] and
//! [`TrafficLog`] the overview and the charts, and [`Prune`] the retention. A backend implements all of them
//! ([`Store`]) and passes the `conformance` suite.
//!
//! This crate has what is the same in every backend, so that a backend has only its statements and what belongs to its
//! engine:
//!
//! - [`intake`] decides about new events, by the rules of idempotency, coalescing and order.
//! - [`rows`] reads and writes rows.
//! - [`schema`] says which schemas a program may use.
//! - [`sealing`] rotates the keys of sealed rows.
//! - [`Lists`] puts lists, counts and groups of failures together, by the [`ListStatements`] of a store.
//! - [`RollUp`] and [`ExpiringTable`] decide which old rows of traffic are added up or deleted next.
//! - [`TenantDestinations`] says which destinations take an event.
//! - [`PurgeScan`] and [`OpenReplay`] say what the next step of a purge and of a replay does.
//! - [`discard()`] settles dead letters, step by step.
//!
//! Every write names the state that it expects; zero changed rows are a result, not an error. `now` is always an
//! argument, never the database's clock.
//!
//! # Files
//!
//! Each trait is in the file of its noun: `activity`, `alerting`, `api_keys`, `destinations`, `event_types`, `fast_path`, `history`,
//! `ingest`, `limit_groups`, `limit_keys`, `message_groups`, `outbox`, `paces`, `processes`, `prune`, `results`. Beside them: `bodies` caches bodies until the
//! first claim, `list_statements` puts lists together, `stored_filter` is the filter of a replay as text,
//! `traffic_retention` adds up old traffic, `refusals` reads the sends for a diagnosis, `group_backlogs` says which members
//! limit groups hold back, `cost_watch` what waiting deliveries cost, `key_watch` which keys hold back their own, and `replica` says which reads a replica may answer.
//!
//! `filters` has the pages of lists and their filters, `state_names` the names that statements use.

mod activity;
mod alerting;
mod api_keys;
mod bodies;
#[cfg(feature = "conformance")]
pub mod conformance;
mod cost_watch;
mod counters;
mod destination_limits;
mod destinations;
mod directory;
mod discard;
mod error;
mod event_types;
mod fast_path;
mod filters;
mod group_backlogs;
mod history;
mod ingest;
pub mod intake;
mod key_watch;
mod limit_groups;
mod limit_keys;
mod list_statements;
mod listing;
mod message_groups;
mod outbox;
mod paces;
mod processes;
mod prune;
mod purge;
mod refusals;
mod replays;
mod replica;
mod reservations;
mod results;
pub mod rows;
pub mod schema;
pub mod sealing;
mod shedding;
#[doc(hidden)]
pub mod state_names;
mod stored_filter;
mod traffic;
mod traffic_retention;
mod turns;
mod verdicts;

use std::sync::Arc;

pub use activity::{ActivityFilter, ActivityLog, ActorFilter, Created, Creation, KeyedAnswer};
pub use alerting::{Alerting, Condition, INSTALLATION, PaceWatch};
pub use api_keys::{ApiKey, ApiKeys, KeyUse, SessionSecret};
pub use bodies::BodyCache;
pub use cost_watch::{CostWatch, limit_in_costs};
pub use counters::{
    CountChanges, Counters, DuePosition, DuePositions, FOLDED_AT_ONCE, POSITIONS_LOOKED_AT, StateCounts,
};
pub use destination_limits::{DEFAULT_MOST_DESTINATIONS, DestinationLimits, SharedDestinationLimits};
pub use destinations::{
    Arrivals, BreakerChange, Deletion, DestinationCounts, DestinationDeletion, DestinationFilter, DestinationPatch,
    Destinations, EditPosition, EditedDestination, Hold, LimitChange, MAX_LEFT_HOMES, NamedCreation, Pause,
    RunDestinations, keyed_at, later_than, limit_steps,
};
pub use directory::{Directory, Matches, TenantDestinations};
pub use discard::{DISCARDABLE, DISCARDED_AT_ONCE, discard};
pub use error::{Obstacle, StoreError, StoreResult, WriteFailures};
pub use event_types::{CatalogueTotals, EventTypeChange, EventTypes, KnownEventType};
pub use fast_path::{FastPath, FastPathBatch, FastPathHandle};
pub use filters::{
    DeliveryFilter, ErrorFilter, EventFilter, ListOrder, Page, PageRequest, SCANNED_AT_MOST, delivery_ids_of, first_id,
};
pub use group_backlogs::{GroupBacklog, GroupBacklogs, GroupMember, GroupTraffic, Rates};
pub use history::{
    DeliveryDetail, History, PastRecord, PastRecordAttempt, PastRequest, SendPosition, SendRecord, SendsRequest,
};
pub use ingest::{Ingest, IngestRefusal, Ingested, MOST_DELIVERIES_OF_COMMIT, NewEvent, Part};
pub use key_watch::{KeyWatch, WatchedKeys};
pub use limit_groups::{
    GroupChange, GroupDeletion, LimitGroupEdits, LimitGroups, MAX_GROUPS, Membership, joins, page_of_groups,
    tenant_code,
};
pub use limit_keys::{FlowKey, Flows, KEYS_LOOKED_AT, KeyBacklog, KeyBacklogs, KeyCounts, LimitKeys};
pub use list_statements::{DISCARDS_COUNTED, ListStatements, Lists};
pub use listing::{EXAMINED_AT_MOST, FailedDelivery, FailureGroup, FailureGroups, ListCount, ListPart, Scan};
pub use message_groups::{HeadlessGroups, MessageGroup, MessageGroups, MessageGroupsRepaired};
pub use outbox::{
    ClaimRequest, ClaimedFlow, Claims, DueDestination, KEYLESS_LOOKED_AT, Outbox, Recovered, SendHistory, SentCounts,
};
pub use paces::{
    PACE_CHANGES_KEPT, PaceCopy, PaceRecord, Paces, pace_change_position, pace_changes_before, taken_lately,
};
pub use processes::{
    AbandonedClaim, BEAT_EVERY, DEAD_AFTER, LEASE_VALID, ProcessBeat, ProcessProfile, Processes, RunningProcess,
};
pub use prune::{Prune, PrunePosition, PruneStep, Pruned};
pub use purge::{Purge, PurgePosition, PurgeScan, PurgeStep};
pub use refusals::{RefusalWatch, refusals_of};
pub use replays::{
    NewReplay, OpenReplay, REPLAYABLE, Replay, ReplayFigures, ReplayFilter, ReplayPhase, ReplayPosition, ReplayStep,
    ReplaySteps, ReplayTask, Replays,
};
pub use replica::{replica_answers, with_replica};
pub use reservations::{Cancelled, Reservations, ReservedSlots, reservations_before, reservations_below};
pub use results::{AttemptResult, DeliveryAction, Results, Settlement};
pub use shedding::Shedding;
pub use traffic::{
    HISTOGRAM_MINUTES_KEPT, HOUR, Health, Histogram, Latencies, MINUTE, RecentTraffic, TRAFFIC_BUCKET, TRAFFIC_KEPT,
    Traffic, TrafficHistory, TrafficLog, latency_bucket,
};
pub use traffic_retention::{ExpiringTable, RollUp, RollUpStep};
pub use turns::Turns;
pub use verdicts::{Looks, Verdicts};
pub use weir_sealing::Unopened;

/// Names the traits that one kind of caller needs. Every store that has them has the name.
macro_rules! bundles {
    ($($(#[$doc:meta])* $name:ident: $first:ident $(+ $more:ident)*;)*) => {$(
        $(#[$doc])*
        pub trait $name: $first $(+ $more)* + 'static {}
        impl<T: $first $(+ $more)* + 'static> $name for T {}
    )*};
}

bundles! {
    /// For runs: live deliveries, and those of replays.
    RunStore: Flows + LimitGroups + Outbox + Paces + ReplaySteps + ReservedSlots + RunDestinations;
    /// For edits whose announcement was lost.
    EditStore: Destinations + LimitGroupEdits;
    /// For the sweep.
    SweepStore: Flows + MessageGroups + Outbox;
    /// For attempts and their results.
    WorkerStore: Destinations + History + Outbox + Processes + Results;
    /// For the supervision of processes.
    ProcessStore: Outbox + Processes;
    /// For the retention.
    RetentionStore: ActivityLog + Paces + Prune + Reservations + TrafficLog;
    /// For [`refusals_of`].
    RefusalStore: History + TrafficLog;
    /// For the watch over stalls.
    WatchStore: Counters + Destinations + History + Outbox + Processes + TrafficLog;
    /// For the gauge of dead letters.
    DeadLetterStore: Counters + TrafficLog;
    /// For the dead letters of deleted destinations.
    AbandonedStore: Counters + Destinations + Lists + Results;
    /// For alerts.
    AlertStore: Alerting + Counters + Destinations + Ingest + LimitGroups + LimitKeys + Outbox + Paces + RefusalStore
        + ReservedSlots;
    /// Everything a backend offers.
    Store: RunStore + SweepStore + WorkerStore + ProcessStore + RetentionStore + AlertStore + WatchStore + AbandonedStore
        + DeadLetterStore + EditStore + ApiKeys + CountChanges + Counters + EventTypes + Lists + Replays + Shedding;
}

/// A store, shared.
pub type SharedStore = Arc<dyn Store>;
