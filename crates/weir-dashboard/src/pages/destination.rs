//! The page of one destination, with its tabs.

pub(crate) mod backlog;
pub(super) mod charts;
mod group_names;
pub(crate) mod limit_keys;
pub(crate) mod limits;
pub(crate) mod limits_form;
pub(crate) mod now;
pub(crate) mod pace;
mod past;
pub(crate) mod proof;
pub(crate) mod settings;
mod settings_errors;
pub(crate) mod settings_fields;
mod settings_form;
pub(crate) mod temporary;

use http::Method;
use serde_json::json;
use weir_api_types::Destination;

use crate::{
    client::{ApiPath, Call},
    fields::Fields,
    path_id::PathId,
    refusal::Refusal,
    visit::{Answered, Visit, local_path},
};

/// The tabs of the page, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Now,
    Proof,
    Backlog,
    Keys,
    Settings,
    Activity,
}

impl Tab {
    const ALL: [Self; 6] = [Self::Now, Self::Proof, Self::Backlog, Self::Keys, Self::Settings, Self::Activity];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Now => "Now",
            Self::Proof => "Proof",
            Self::Backlog => "Backlog",
            Self::Keys => "Limit keys",
            Self::Settings => "Settings",
            Self::Activity => "Activity",
        }
    }
}

/// The top of every tab.
pub(crate) struct Head {
    pub(crate) base: String,
    pub(crate) destination: Destination,
    /// The version that was read, for `If-Match`.
    pub(crate) etag: String,
    pub(crate) tab: Tab,
    pub(crate) can_operate: bool,
}

impl Head {
    /// The path of the destination: `/destinations/dst_…`, with the base.
    pub(crate) fn path(&self) -> String {
        format!("{}/destinations/{}", self.base, self.destination.id)
    }

    pub(crate) fn href(&self, tab: &Tab) -> String {
        match tab {
            Tab::Now => self.path(),
            Tab::Proof => format!("{}/proof", self.path()),
            Tab::Backlog => format!("{}/backlog", self.path()),
            Tab::Keys => format!("{}/keys", self.path()),
            Tab::Settings => format!("{}/settings", self.path()),
            Tab::Activity => format!("{}/activity", self.path()),
        }
    }

    pub(crate) fn tabs(&self) -> [Tab; Tab::ALL.len()] {
        Tab::ALL
    }
}

/// Reads a destination with its version.
pub(crate) async fn read(visit: &Visit, id: &str) -> Result<(Destination, String), Refusal> {
    let answer = visit.api.send(&Call::get(&ApiPath::of(["destinations", id]))).await?;
    Ok((answer.read()?, answer.etag().unwrap_or_default()))
}

/// Pauses or resumes. To resume also closes an open breaker and lifts a hold.
pub(crate) async fn pause(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let paused = fields.text("paused") == "true";
    let edit = Call::new(Method::PATCH, &ApiPath::of(["destinations", &id])).json(&json!({ "paused": paused }))?;
    let text = if paused { "Paused. Its deliveries wait." } else { "Sending again." };
    visit.after(local_path(fields.raw("next")), visit.api.send(&edit).await, |_| text.to_owned())
}

/// Lifts a hold.
pub(crate) async fn release(
    visit: Visit,
    axum::extract::Path(id): axum::extract::Path<String>,
    fields: Fields,
) -> Answered {
    let release = Call::new(Method::POST, &ApiPath::of(["destinations", &id, "release"]));
    let text = "Released. One send goes first, and more once it is answered.";
    visit.after(local_path(fields.raw("next")), visit.api.send(&release).await, |_| text.to_owned())
}
