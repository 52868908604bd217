//! Where the dashboard is served, and what it is made from.

use std::sync::Arc;

use axum::Router;
use weir_core::Clock;

use crate::client::CarryExtensions;

/// What the composition root gives to the dashboard.
#[derive(Clone)]
pub struct DashboardSettings {
    /// The API: every page is made from its answers, and it serves every path that is not the dashboard's.
    pub api: Router,
    /// The path prefix that a reverse proxy removes, such as `/weir`; empty without one.
    pub base: String,
    /// Where producers reach the API, such as `https://ops.example.com/weir`, for the examples of the pages. `None`:
    /// the host that the browser names.
    pub public_url: Option<String>,
    pub clock: Arc<dyn Clock>,
    pub carry: CarryExtensions,
}

/// The settings, shared by the handlers.
pub(crate) type Site = Arc<DashboardSettings>;
