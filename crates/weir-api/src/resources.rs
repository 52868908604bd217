//! The resources: one file each, with the handlers, the requests that they read and the views that they show.

pub(crate) mod activity;
pub(crate) mod advice;
pub(crate) mod alerts;
pub(crate) mod audit;
pub(crate) mod backlog;
pub(crate) mod deliveries;
pub(crate) mod destinations;
pub(crate) mod dry_run;
pub(crate) mod events;
pub(crate) mod failures;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod ingest;
pub(crate) mod keys;
pub(crate) mod overview;
mod policies;
pub(crate) mod preview;
pub(crate) mod purge;
pub(crate) mod refusals;
pub(crate) mod replays;
pub(crate) mod secrets;
pub(crate) mod session;
pub(crate) mod shedding;
pub(crate) mod status;
pub(crate) mod stream;
pub(crate) mod test_event;
pub(crate) mod verify;
