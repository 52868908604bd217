//! The alerts that are true now.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::AlertData;

/// One page of what is wrong now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActiveAlerts {
    pub as_of: Timestamp,
    /// The number of destinations or limit groups with alerts of each type, in all tenants of the filter.
    pub counts: BTreeMap<String, u64>,
    pub data: Vec<ActiveAlert>,
    /// The `cursor` of the next page; null on the last page. Rows may move between two pages.
    pub next_cursor: Option<String>,
}

/// Something that is wrong with a destination, a limit group, or Weir itself now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActiveAlert {
    /// The type of the event that says so.
    #[serde(rename = "type")]
    #[schema(example = "weir.breaker.opened")]
    pub alert_type: String,
    /// Null for an alert about a limit group or about Weir itself, and so is its name.
    #[schema(example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub destination_id: Option<String>,
    pub destination_name: Option<String>,
    /// Null for an alert about a destination or about Weir itself, and so is its name.
    #[schema(example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub limit_group_id: Option<String>,
    pub limit_group_name: Option<String>,
    /// `*`: the members of the group may be of any tenant, or it is about Weir itself.
    pub tenant: String,
    /// As the `data` of such an event, with the figures of now.
    #[serde(default)]
    pub data: AlertData,
}
