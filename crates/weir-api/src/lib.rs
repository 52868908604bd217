//! The HTTP API: one file per resource, problem+json, OpenAPI.
//!
//! A request passes `observe`, which checks the host and the key and measures the duration. `extract` and `query` read
//! the request, and the file of its resource handles it. `problem` answers refused requests. A refused request changes
//! nothing: everything is validated before the first write.
//!
//! ```text
//!   routes ──▶ observe ──▶ hosts, auth ──▶ destinations · secrets · backlog · ingest · events · deliveries · replays · audit · health
//!                                               │                                   │
//!                                               ▼                                   ▼
//!                                   store (source of truth)                  queue (wakes, edits)
//! ```
//!
//! The store is the source of truth and is written first; afterwards the queue is notified. If that fails, the request
//! has still succeeded: the sweep wakes the destinations, and every run reads its destination from the store.

mod alerts;
mod audit;
mod auth;
mod backlog;
mod deliveries;
mod destinations;
mod docs;
mod events;
mod extract;
mod fields;
mod health;
mod hosts;
mod ingest;
mod observe;
mod openapi;
mod page;
mod problem;
mod purge;
mod query;
mod replays;
mod routes;
mod secrets;
mod settings;
mod spans;
mod state;
mod views;

pub use auth::ApiKeys;
pub use extract::BodyBudget;
pub use hosts::Hosts;
pub use routes::{operations_router, router};
pub use spans::{RequestSpan, RequestSpans, StartedSpan};
pub use state::{ApiState, DEFAULT_BODY_BUDGET_BYTES, DEFAULT_MAX_EVENT_BYTES, Operations, Readiness, RenderMetrics};
