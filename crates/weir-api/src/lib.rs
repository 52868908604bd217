//! The HTTP API: one file per resource, problem+json, OpenAPI.
//!
//! The layers, each of which uses only those before it:
//!
//! 1. errors: `problem` answers refused requests, `errors` collects every error of a request.
//! 2. readers: `readers` turns bodies, queries and paths into typed values, or a problem with all errors.
//! 3. resources: `resources` has the handlers, their requests and their views.
//! 4. routes: `openapi` describes all handlers, `routes` serves them behind `observe`, which checks the host and the
//!    key, measures the duration and adds `browser_headers`.
//!
//! ```text
//!   routes ──▶ observe ──▶ hosts, auth ──▶ resources ──▶ store (source of truth)
//!                                              │
//!                                              └───────▶ queue (wakes, edits)
//! ```
//!
//! A refused request changes nothing: everything is validated before the first write. The store is the source of truth
//! and is written first; afterwards the queue is notified. If that fails, the request has still succeeded: the sweep
//! wakes the destinations, and every run reads its destination from the store.
//!
//! # How to add a route
//!
//! 1. Write the handler in the file of its resource, below `#[utoipa::path(…)]`. The doc comment becomes the summary
//!    and the description.
//! 2. Declare the body with `object!` and read it as `Body<Request>`. Ranges and counts are `#[schema(…)]` attributes,
//!    which the reader obeys. Rules between fields go into `check`; state them in the schema too, as `keywords` does
//!    for destinations.
//! 3. Declare query parameters with `parameters!` and read them as `Query<Parameters>`; a list adds `PageParameters`
//!    with a `Listing` of its own. A route without parameters takes `Query<()>`, which refuses them all.
//! 4. Strings with a form are types in `readers::texts`: one pattern, one parser, one message.
//! 5. Rules that need the configuration or the store run in `read_with`, so that the client gets their errors with all
//!    others.
//! 6. Answer with a type of `weir-api-types`, which a function of the resource makes from types of the domain.
//! 7. Add the handler to the table in `routes`, with who may use it and its class, and to `paths` in `openapi`. A test compares the
//!    two.
//!
//! # What the layers share
//!
//! `auth` says who sends a request: the key or the session (`caller`, `cookie`), its rights on the route (`access`),
//! the address behind proxies (`address`), and what pages of other sites may not do (`same_origin`, `public_url`).
//! `figures` computes what the backlog, the overview and the preview show of a destination. `overview` takes a sample of
//! all destinations (`sample`), says what changed since the last (`changes`), and shares samples among streams
//! (`broadcast`). `shedding` refuses requests when there are too many, by the class that each route names in the table,
//! and `store_turns` says how many events of a client are in the store at one time. `event_types` checks events by the
//! catalogue where it is strict. `state` has the backends and the settings, `meters` the metrics, `spans` the interface to
//! a tracer.

mod auth;
mod browser_headers;
mod docs;
mod errors;
mod event_types;
mod fair_share;
mod figures;
mod hosts;
mod meters;
mod observe;
mod openapi;
mod overview;
mod problem;
mod readers;
mod refused_producers;
mod request_id;
mod resources;
mod routes;
mod shedding;
mod spans;
mod state;
mod store_turns;

pub use auth::{InvalidPublicUrl, KeyRing, LastSender, PublicUrl, RemoteAddress, SettingKeys, TrustedProxies};
pub use event_types::EventTypes;
pub use hosts::Hosts;
pub use overview::LiveOverview;
pub use readers::body::BodyBudget;
pub use routes::{operations_router, router};
pub use shedding::{Shedding, Storing};
pub use spans::{RequestSpan, RequestSpans, StartedSpan};
pub use state::{
    ApiState, DEFAULT_BODY_BUDGET_BYTES, DEFAULT_MAX_EVENT_BYTES, Installation, Operations, ReadQueueDepths, Readiness,
    RenderMetrics,
};
pub use weir_api_types::QueueDepths;
