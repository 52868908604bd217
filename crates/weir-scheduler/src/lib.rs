//! The scheduler: decides how many attempts of each destination may be published, and when to look again.
//!
//! [`Scheduler`] runs due jobs in batches: claim leases, read limits, decide ([`weir_core::plan`]), claim deliveries in the
//! store, publish permits. New deliveries to destinations without a backlog need no run: they go by the [`FastPath`].
//! What [`Replayer`] sends again goes in a lane of its own ([`weir_core::replay_share`]).
//! [`Sweeper`] makes the store the outbox: whatever a crash left without a job gets one. [`ProcessWatcher`] resolves what
//! processes had under way that died. [`EditWatcher`] announces edits again, [`Pruner`] deletes what is old,
//! [`AlertPublisher`] tells operators what there is to tell, and [`BacklogMeter`] counts what waits.

mod alerting;
mod backlog;
mod backoff;
mod edits;
mod fast_path;
mod processes;
mod prune;
mod replay;
mod replay_run;
mod replay_shares;
mod returns;
mod run;
mod scheduler;
mod sweep;

pub use alerting::AlertPublisher;
pub use backlog::BacklogMeter;
pub use backoff::Backoff;
pub use edits::EditWatcher;
pub use fast_path::{Declines, FastPath};
pub use processes::ProcessWatcher;
pub use prune::Pruner;
pub use replay::Replayer;
pub use scheduler::Scheduler;
pub use sweep::{Sweeper, recover_all};
