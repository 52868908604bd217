//! A row of the overview.

use std::sync::Arc;

use weir_core::Destination;

use crate::figures::Figures;

/// A destination with its figures.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) destination: Arc<Destination>,
    pub(crate) figures: Figures,
}
