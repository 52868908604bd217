//! Dry runs: requests that only count what they would change.

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
