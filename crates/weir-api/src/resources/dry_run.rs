//! Dry runs: requests that only count what they would change.

use serde::Serialize;
use utoipa::ToSchema;

use crate::readers::query::parameters;

parameters! {
    /// Whether to change anything.
    pub(crate) struct DryRun {
        /// Only count the deliveries that the request would affect.
        dry_run: Option<bool>,
    }
}

impl DryRun {
    pub(crate) fn only_counts(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }
}

/// The number of deliveries that a request would affect (`dry_run`).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Count)]
pub(crate) struct CountView {
    pub(crate) total: u64,
}
