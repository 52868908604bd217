//! What is wrong now: the part of the alerts page that does not depend on who subscribes.

use serde::Deserialize;
use weir_api_types as types;
use weir_core::alert::AlertType;

use super::alert_texts::{self, KINDS, Kind, kind_of, other_than_default};
use crate::{
    client::{ApiPath, append},
    extend::extend,
    live_region::LiveRegion,
    names::label,
    refusal::Refusal,
    visit::Visit,
};

/// What the page lists of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ActiveFilter {
    #[serde(rename = "type")]
    alert_type: String,
    tenant: String,
    cursor: String,
}

impl ActiveFilter {
    fn link(&self, path: &str, alert_type: &str, cursor: &str) -> String {
        let mut link = path.to_owned();
        append(&mut link, "type", alert_type);
        append(&mut link, "tenant", &self.tenant);
        append(&mut link, "cursor", cursor);
        link
    }
}

extend! {
    pub(super) trait ActiveText for types::ActiveAlert {
        fn kind_name(&self) -> &str {
            kind_of(&self.alert_type).map_or(&self.alert_type, |kind| kind.name)
        }

        fn tone(&self) -> &'static str {
            kind_of(&self.alert_type).map_or("", |kind| kind.tone)
        }

        /// The name of what it is about.
        fn subject(&self) -> &str {
            if self.is_about_weir() {
                return "Weir itself";
            }
            let (name, id) = match &self.limit_group_id {
                Some(id) => (&self.limit_group_name, Some(id)),
                None => (&self.destination_name, self.destination_id.as_ref()),
            };
            label(name.as_deref().unwrap_or_default(), id.map_or("", String::as_str))
        }

        fn is_about_weir(&self) -> bool {
            self.limit_group_id.is_none() && self.destination_id.is_none()
        }

        /// The page of what it is about, below the base.
        fn link(&self) -> String {
            if self.is_about_weir() {
                return "status".to_owned();
            }
            match (&self.limit_group_id, &self.destination_id) {
                (Some(id), _) => format!("limit-groups/{id}"),
                (None, id) => format!("destinations/{}", id.as_deref().unwrap_or_default()),
            }
        }

        fn other_tenant(&self) -> Option<&str> {
            other_than_default(&self.tenant)
        }

        /// The destination whose dead letters it is about.
        fn dead_letters_of(&self) -> Option<&str> {
            self.destination_id.as_deref().filter(|_| self.alert_type == AlertType::Dead.as_str())
        }

        fn row_id(&self) -> String {
            let id = self.limit_group_id.as_deref().or(self.destination_id.as_deref()).unwrap_or_default();
            format!("now-{id}-{}", self.alert_type.replace('.', "-"))
        }

        /// What is wrong, in a sentence.
        fn text(&self) -> String {
            alert_texts::text(&self.alert_type, &self.data)
        }
    }
}

/// A kind of alerts that some destinations or limit groups have now: a link that lists only these.
pub(super) struct Tally {
    pub(super) kind: &'static Kind,
    pub(super) destinations: u64,
    pub(super) link: String,
    pub(super) is_chosen: bool,
}

/// The list: a part of the page that live updates replace.
pub(super) struct ActiveAlerts {
    pub(super) base: String,
    pub(super) filter: ActiveFilter,
    pub(super) alerts: types::ActiveAlerts,
    pub(super) live: Option<LiveRegion>,
}

impl ActiveAlerts {
    pub(super) async fn read(visit: &Visit, filter: ActiveFilter) -> Result<Self, Refusal> {
        let path = ApiPath::of(["alerts", "active"])
            .with("type", &filter.alert_type)
            .with("tenant", filter.tenant.trim())
            .with("cursor", &filter.cursor);
        let alerts = visit.api.get(&path).await?;
        let base = visit.site.base.clone();
        // Each answer reads the counters of all destinations, and a bounded part of each backlog.
        let fragment = filter.link(&format!("{base}/fragments/alerts/active"), &filter.alert_type, &filter.cursor);
        Ok(Self { base, live: Some(LiveRegion::slow(fragment)), filter, alerts })
    }

    /// How many destinations have each kind of alert now, the kinds in their order.
    pub(super) fn tallies(&self) -> Vec<Tally> {
        let path = format!("{}/alerts", self.base);
        let tally = |kind: &'static Kind| {
            let event_type = kind.alert_type.as_str();
            let destinations = *self.alerts.counts.get(event_type)?;
            let is_chosen = self.filter.alert_type == event_type;
            let link = self.filter.link(&path, if is_chosen { "" } else { event_type }, "");
            Some(Tally { kind, destinations, link, is_chosen })
        };
        KINDS.iter().filter_map(tally).collect()
    }

    pub(super) fn is_filtered(&self) -> bool {
        !self.filter.alert_type.is_empty() || !self.filter.tenant.is_empty() || !self.filter.cursor.is_empty()
    }

    pub(super) fn first(&self) -> Option<String> {
        let path = format!("{}/alerts", self.base);
        (!self.filter.cursor.is_empty()).then(|| self.filter.link(&path, &self.filter.alert_type, ""))
    }

    pub(super) fn next(&self) -> Option<String> {
        let cursor = self.alerts.next_cursor.as_deref()?;
        Some(self.filter.link(&format!("{}/alerts", self.base), &self.filter.alert_type, cursor))
    }
}
