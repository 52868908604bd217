//! The dashboard on an API that answers scripted JSON.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actions;
mod alerts;
mod answers;
mod deliveries;
mod destination;
mod event_types;
mod every_page;
mod exports;
mod forms;
mod frame;
mod limit_groups;
mod limit_keys;
mod live_lists;
mod login;
mod new_destination;
mod overview;
mod posts;
mod ranges;
mod refused_forms;
mod settings;
mod shedding;
mod support;
