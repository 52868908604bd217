//! The scheduler: decides how many attempts of each destination may be published, and when to look again.
//!
//! [`Scheduler`] runs due jobs in batches: claim leases, read limits, decide ([`weir_core::plan`]), claim deliveries in the
//! store, publish permits. New deliveries to destinations without a backlog need no run: they go by the [`Express`].
//! What [`Replayer`] sends again goes in a lane of its own ([`weir_core::lane`]).
//! [`Sweeper`] makes the store the outbox: whatever a crash left without a job gets one. [`ProcessWatcher`] resolves what
//! processes had under way that died. [`EditWatcher`] announces edits again, [`Pruner`] deletes what is old,
//! [`Watcher`] tells operators what there is to tell, and [`BacklogMeter`] counts what waits.

mod backlog;
mod backoff;
mod edits;
mod express;
mod laned;
mod lanes;
mod processes;
mod prune;
mod replay;
mod returns;
mod run;
mod scheduler;
mod sweep;
mod watch;

pub use backlog::BacklogMeter;
pub use backoff::Backoff;
pub use edits::EditWatcher;
pub use express::{Declines, Express};
pub use processes::ProcessWatcher;
pub use prune::Pruner;
pub use replay::Replayer;
pub use scheduler::Scheduler;
pub use sweep::{Sweeper, recover_all};
pub use watch::Watcher;
