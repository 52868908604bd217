//! The HTTP API: one file per resource, problem+json, OpenAPI.
//!
//! A request passes `observe` (for which host, who asks, how long it took), is read by `extract` and `query`, handled by the file of
//! its resource, and, when refused, answered by `problem`. A refused request changes nothing: everything is validated
//! before the first write.
//!
//! ```text
//!   routes ──▶ observe ──▶ hosts, auth ──▶ destinations · secrets · backlog · ingest · events · deliveries · replays · audit · health
//!                                               │                                   │
//!                                               ▼                                   ▼
//!                                         store (truth)                      queue (wakes, edits)
//! ```
//!
//! The store is the truth and is written first; the queue hears of it afterwards. When that fails, the request has still
//! succeeded: the sweep finds what was not woken, and every run reads the destination anew.

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
pub use spans::{Begun, RequestSpan, RequestSpans};
pub use state::{ApiState, DEFAULT_BODY_BUDGET_BYTES, DEFAULT_MAX_EVENT_BYTES, Operations, Readiness, RenderMetrics};
