//! The record store: what Weir must never lose.
//!
//! The traits are split by who needs them: [`Destinations`] and [`History`] serve the API, [`Ingest`] the producer,
//! [`Outbox`] the scheduler, [`Processes`] who watches processes, [`MessageGroups`] the sweep, [`Results`] the worker, [`Replays`] API and scheduler, [`Watch`] the watch. A
//! backend implements all of them ([`Store`]) and proves it with the `conformance` suite. Every write names the state it
//! expects; zero rows changed is an answer, not an error. `now` is
//! always an argument, never the database's clock.

mod alerting;
mod bodies;
#[cfg(feature = "conformance")]
pub mod conformance;
mod destinations;
mod fast_path;
mod history;
mod ingest;
pub mod intake;
mod message_groups;
mod outbox;
mod processes;
mod prune;
mod replays;
mod results;
mod stored_filter;

use std::sync::Arc;

pub use bodies::WaitingBodies;
pub use destinations::{
    BreakerChange, DestinationCounts, DestinationPatch, Destinations, EditPlace, Edited, LimitChange, later_than,
    paused_by_weir,
};
pub use fast_path::{FastPath, FastPathBatch, FastPathHandle};
pub use history::{
    DeliveryDetail, DeliveryFilter, ErrorFilter, EventFilter, History, Page, PageRequest, SCANNED_AT_MOST, SendPlace,
    SendRecord, SendsRequest,
};
pub use ingest::{Ingest, IngestRefusal, Ingested, NewEvent};
pub use message_groups::{MessageGroup, MessageGroups, MessageGroupsRepaired};
pub use outbox::{ClaimRequest, Claims, DueDestination, Outbox, Recovered, SendHistory};
pub use processes::{AbandonedClaim, BEAT_EVERY, DEAD_AFTER, LEASE_VALID, ProcessBeat, Processes};
pub use prune::{Prune, PrunePlace, PruneStep, Pruned};
pub use replays::{NewReplay, REPLAYABLE, Replay, ReplayFigures, ReplayFilter, ReplayPhase, ReplayStep, Replays};
pub use results::{AttemptResult, DeliveryAction, Purge, PurgePlace, PurgeStep, Results, Settlement};
pub use watch::{Alerting, Condition, Conditions};

/// Everything a backend offers.
pub trait Store:
    Destinations
    + Ingest
    + Outbox
    + Processes
    + Results
    + MessageGroups
    + History
    + Prune
    + Replays
    + Alerting
    + Send
    + Sync
    + 'static
{
}
impl<T> Store for T where
    T: Destinations
        + Ingest
        + Outbox
        + Processes
        + Results
        + MessageGroups
        + History
        + Prune
        + Replays
        + Alerting
        + Send
        + Sync
        + 'static
{
}

/// A store, shared.
pub type SharedStore = Arc<dyn Store>;

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached or is shutting down. Nothing was changed, or the outcome is unknown; try again.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A statement failed for a reason that trying again does not mend.
    #[error("the store failed: {0}")]
    Failed(String),
}

pub type StoreResult<T> = Result<T, StoreError>;
