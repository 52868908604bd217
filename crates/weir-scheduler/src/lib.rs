//! The scheduler: decides how many attempts each destination may publish, and when its job runs next.
//!
//! [`Scheduler`] runs due jobs in batches: claim leases, read limits, decide ([`weir_core::plan`]), claim deliveries in
//! the store, publish permits. New deliveries to destinations without a backlog need no run: they take the
//! [`FastPath`]. [`Replayer`] moves deliveries of replays back to the backlog, where they get a share of each run
//! ([`weir_core::replay_share`]). [`Sweeper`] makes the store the outbox: due deliveries that a crash left without a
//! job get one. [`ProcessWatcher`] resolves the claims and permits of dead processes. [`EditWatcher`] announces edits
//! again, [`Pruner`] deletes old data, [`AlertPublisher`] publishes alerts to operators, [`BacklogMeter`] counts the
//! backlog, [`DeadLetterMeter`] the destinations with many dead letters, and [`StallWatch`] finds destinations that may
//! send and do not. [`AbandonedDeadLetters`] settles the dead letters of deleted destinations.
//!
//! A run is decided in `run`, and its last part for a destination with a replay in `replay_run`; `replay_shares` keeps
//! the credit of each; `groups` reads the limit groups of a batch. `replay` moves the deliveries of replays.
//!
//! `reservations` gives slots of limit groups to callers outside Weir.
//!
//! `run_every` is the loop of the agents that make passes.

mod abandoned;
mod alerting;
mod backlog;
mod dead_letters;
mod edits;
mod fast_path;
mod flows;
mod fold;
mod groups;
mod paces;
mod processes;
mod prune;
mod release;
mod replay;
mod replay_run;
mod replay_shares;
mod reservations;
mod run;
mod run_every;
mod scheduler;
mod stalls;
mod sweep;

pub use abandoned::AbandonedDeadLetters;
pub use alerting::AlertPublisher;
pub use backlog::BacklogMeter;
pub use dead_letters::DeadLetterMeter;
pub use edits::EditWatcher;
pub use fast_path::{DeclinedAdmissions, FastPath};
pub use fold::Folder;
pub use processes::ProcessWatcher;
pub use prune::Pruner;
pub use replay::Replayer;
pub use reservations::{MOST_WAITING, MOST_WAITING_IN_ALL, ReservationDesk};
pub use scheduler::Scheduler;
pub use stalls::StallWatch;
pub use sweep::{Sweeper, recover_all};
