//! The pages, one file each.

mod active_alerts;
pub(crate) mod activity;
mod activity_changes;
mod alert_texts;
pub(crate) mod alerts;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod destination;
pub(crate) mod discard_plan;
pub(crate) mod event_types;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod jump;
pub(crate) mod keys;
pub(crate) mod live;
pub(crate) mod login;
pub(crate) mod new_destination;
pub(crate) mod overview;
pub(crate) mod pictures;
pub(crate) mod purge;
mod recent_alerts;
pub(crate) mod replay_plan;
pub(crate) mod replays;
pub(crate) mod shedding;
pub(crate) mod status;
mod thresholds;
