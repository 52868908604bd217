//! The dashboard: pages for people, made from the answers of the HTTP API.
//!
//! The dashboard is a client of the API within the process (`client`). It has no rights, makes no SQL and keeps no
//! state: a page asks the API with the browser's cookie, reads the answer into its type of `weir-api-types`, and renders a
//! template.
//!
//! ```text
//!   browser ──▶ guard ──▶ pages ──▶ client ──▶ API router
//!                 │         └────▶ askama templates
//!                 └ same-origin forms, security headers, refusals as pages, login
//! ```
//!
//! Every page works without JavaScript: forms post and redirect, and a reload shows the current state. With it, `htmx`
//! replaces live regions when the stream of the page names an event.
//!
//! # How to add a page
//!
//! 1. A file in `pages`: a struct with the field `frame: Frame` that derives `Template`. `extend!` gives an answer of the
//!    API the methods that the template needs, and `units` shows its numbers and times: `{{ row.backlog.count() }}`.
//! 2. A handler `async fn show(visit: Visit, …) -> Answered`: ask the API with `tokio::try_join!(visit.me(), …)`, and
//!    answer with `visit.page(&…)`. A refusal goes up with `?`; it becomes a page with its status, or the login.
//! 3. A template that extends `layout.html`. askama escapes every value. Links begin with `{{ frame.base() }}`.
//! 4. An action is a form with `method="post"`, and a handler that calls the API and answers with `visit.after(…)`: a
//!    redirect with a message. Show it only to the role that the API asks for (`frame.can_operate()`).
//! 5. A live region is a template of its own that the page includes, and a route that answers only this template. Its
//!    root element has an id, `data-live`, `hx-get` with the route, `hx-trigger="snapshot from:#live"` and
//!    `hx-swap="outerMorph"`; the page's frame needs `.live("")`. Each row has an id, so that the focus stays on it. A
//!    form for the filter is outside of the region. A list is live on its first page only: `LiveRegion` has its
//!    attributes, and says when to ask less often than once a second.
//! 6. A table is in a region that the keyboard reaches
//!    (`<div class="scroll" tabindex="0" role="region" aria-label="…">`), and a list ends with the links of
//!    `pager.html`.
//! 7. Add the routes to the table in `router`.
//!
//! # What pages share
//!
//! - The request: `visit` asks the API on behalf of the browser, `refusal` is what the API refused, `fields` reads
//!   forms, `path_id` ids, `delivery_filter` the filter of deliveries in a URL, and `range` the picker of a range of time.
//! - A refused form: `faults` says what is wrong beside each field, and the page keeps what was typed; `durations` reads
//!   and writes durations as people do.
//! - The page: `frame` is around it, `flash` has the message after a redirect, `live_region` its moving parts, `site`
//!   what it is made from.
//! - The values: `views` has answers that several pages show, `names` the names of destinations, `units` numbers and
//!   times, `json_text` JSON, and `example` the commands in empty states.
//! - The files of style and script: `assets`, named by their `fingerprint`.
//!
//! `extend` adds to types of the API what pages need; `form_budget` bounds the memory for forms.

mod assets;
mod client;
mod delivery_filter;
mod durations;
mod example;
mod extend;
mod faults;
mod fields;
mod fingerprint;
mod flash;
mod form_budget;
mod frame;
mod guard;
mod json_text;
mod live_region;
mod names;
mod pages;
mod path_id;
mod range;
mod refusal;
mod router;
mod site;
mod units;
mod views;
mod visit;

pub use client::CarryExtensions;
pub use router::router;
pub use site::DashboardSettings;
