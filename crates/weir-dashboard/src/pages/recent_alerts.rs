//! The most recent alerts: events that Weir itself makes about a destination or a limit group.

use serde::Deserialize;
use weir_api_types::{AlertData, List};
use weir_core::{Timestamp, destination::ALL_TENANTS};

use super::alert_texts::{self, kind_of, other_than_default};
use crate::{
    client::ApiPath, example::Example, frame::Me, live_region::LiveRegion, names::Names, refusal::Refusal, visit::Visit,
};

/// The alerts that the page lists.
const SHOWN: usize = 20;
/// The events that the page reads. Weir's own events include test events, which are no alerts.
const READ: &str = "100";

/// An alert, as the list of events has it.
#[derive(Debug, Deserialize)]
pub(super) struct Alert {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    tenant: String,
    pub(super) created_at: Timestamp,
    #[serde(default)]
    data: AlertData,
}

impl Alert {
    /// Whether it is one of the alerts that the page lists. Operators get a copy of each, which is none of them: it names the
    /// tenant that it is about. A limit group for all tenants has no other.
    fn is_listed(&self) -> bool {
        let is_copy = self.tenant == ALL_TENANTS && self.data.tenant != ALL_TENANTS;
        !is_copy && kind_of(&self.event_type).is_some()
    }

    pub(super) fn name(&self) -> &str {
        kind_of(&self.event_type).map_or(&self.event_type, |kind| kind.name)
    }

    pub(super) fn tone(&self) -> &'static str {
        kind_of(&self.event_type).map_or("", |kind| kind.tone)
    }

    fn own_name(&self) -> Option<&str> {
        self.data.name.as_deref().filter(|name| !name.trim().is_empty())
    }

    fn destination(&self) -> &str {
        self.data.destination_id.as_deref().unwrap_or_default()
    }

    /// The page of what it is about, below the base.
    pub(super) fn link(&self) -> Option<String> {
        match (&self.data.limit_group_id, &self.data.destination_id) {
            (Some(id), _) => Some(format!("limit-groups/{id}")),
            (None, Some(id)) => Some(format!("destinations/{id}")),
            (None, None) => None,
        }
    }

    /// The tenant, unless it is the default one.
    pub(super) fn tenant(&self) -> Option<&str> {
        other_than_default(&self.tenant)
    }

    /// The name of its destination at that time, or else how it is called now.
    pub(super) fn label(&self, names: &Names) -> String {
        self.own_name().map_or_else(|| names.of(self.destination()), str::to_owned)
    }

    /// What it says, in a sentence.
    pub(super) fn text(&self) -> String {
        alert_texts::text(&self.event_type, &self.data)
    }
}

/// The list: the part of the page that live updates replace.
pub(super) struct RecentAlerts {
    pub(super) base: String,
    pub(super) alerts: Vec<Alert>,
    pub(super) names: Names,
    /// There may be more alerts, although the list has room for them: the newest of Weir's own events are test events,
    /// or belong to other tenants.
    pub(super) is_partial: bool,
    /// For the empty state.
    pub(super) example: Example,
    pub(super) live: Option<LiveRegion>,
}

impl RecentAlerts {
    /// The list, with the version of what the API answered.
    pub(super) async fn read(visit: &Visit, me: &Me) -> Result<(Self, String), Refusal> {
        let path = ApiPath::of(["events"]).with("type", "weir.*").with("include", "data").with("limit", READ);
        let (page, version) = visit.api.get_versioned::<List<Alert>>(&path).await?;
        let mut alerts = page.data;
        alerts.retain(Alert::is_listed);
        alerts.truncate(SHOWN);
        let unnamed = alerts.iter().filter(|alert| alert.own_name().is_none());
        let names = Names::read(visit, unnamed.map(Alert::destination)).await;
        let (base, example) = (visit.site.base.clone(), Example::new(visit, me));
        let fragment = format!("{base}/fragments/alerts");
        let live = Some(match me.is_bound() {
            true => LiveRegion::slow(fragment),
            false => LiveRegion::prompt(fragment, &version),
        });
        let is_partial = page.next_cursor.is_some() && alerts.len() < SHOWN;
        Ok((Self { base, is_partial, alerts, names, example, live }, version))
    }
}
