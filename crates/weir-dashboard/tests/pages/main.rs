//! The dashboard on an API that answers scripted JSON.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actions;
mod alerts;
mod answers;
mod deliveries;
mod destination;
mod every_page;
mod forms;
mod frame;
mod live_lists;
mod login;
mod overview;
mod posts;
mod settings;
mod support;
