//! Where the dashboard is served, and what it is made from.

use std::{ops::Deref, sync::Arc};

use axum::Router;
use weir_core::Clock;

use crate::{client::CarryExtensions, form_budget::FormBudget};

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

/// The settings and the state, shared by the handlers.
pub(crate) type Site = Arc<SiteState>;

/// The settings of the dashboard, and the forms that it is reading.
pub(crate) struct SiteState {
    settings: DashboardSettings,
    pub(crate) forms: FormBudget,
}

impl SiteState {
    pub(crate) fn new(settings: DashboardSettings) -> Self {
        Self { settings, forms: FormBudget::default() }
    }
}

impl Deref for SiteState {
    type Target = DashboardSettings;

    fn deref(&self) -> &DashboardSettings {
        &self.settings
    }
}
