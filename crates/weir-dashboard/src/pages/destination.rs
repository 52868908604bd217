//! The page of one destination, with its tabs.

pub(crate) mod backlog;
pub(crate) mod limits;
pub(crate) mod now;
pub(crate) mod proof;
pub(crate) mod settings;
mod settings_errors;
mod settings_form;

use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::{
    client::{ApiPath, Call},
    fields::Fields,
    names::label,
    path_id::PathId,
    refusal::Refusal,
    units::{At, Count},
    views::RateLimit,
    visit::{Answered, Visit, local_path},
};

/// The tabs of the page, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Now,
    Proof,
    Backlog,
    Settings,
    /// The page of all activity, filtered.
    Activity,
}

impl Tab {
    const ALL: [Self; 5] = [Self::Now, Self::Proof, Self::Backlog, Self::Settings, Self::Activity];

    fn name(self) -> &'static str {
        match self {
            Self::Now => "Now",
            Self::Proof => "Proof",
            Self::Backlog => "Backlog",
            Self::Settings => "Settings",
            Self::Activity => "Activity",
        }
    }
}

/// A destination with its settings.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Destination {
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) tenant: String,
    pub(crate) rate_limits: Vec<RateLimit>,
    #[serde(default)]
    pub(crate) min_interval_ms: Option<u32>,
    pub(crate) max_in_flight: Count,
    pub(crate) paused: bool,
    pub(crate) paused_reason: Option<String>,
    pub(crate) breaker_state: String,
    pub(crate) breaker_reason: Option<String>,
    pub(crate) next_probe_at: Option<At>,
    pub(crate) held_until: Option<At>,
    pub(crate) held_reason: Option<String>,
    /// While the secret before the last rotation also signs.
    #[serde(default)]
    pub(crate) previous_secret_valid_until: Option<At>,
    #[serde(default)]
    pub(crate) signature_format: Option<SignatureFormat>,
    #[serde(default)]
    pub(crate) public_key: Option<String>,
    #[serde(default)]
    pub(crate) public_key_hex: Option<String>,
}

/// How requests are signed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SignatureFormat {
    pub(crate) signed: String,
    pub(crate) value: String,
    pub(crate) header: String,
    pub(crate) algorithm: String,
    pub(crate) encoding: String,
    pub(crate) key: String,
    pub(crate) separator: Option<String>,
}

impl Destination {
    pub(crate) fn label(&self) -> &str {
        label(&self.name, &self.url)
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
        let Self { base, destination, .. } = self;
        match tab {
            Tab::Now => self.path(),
            Tab::Proof => format!("{}/proof", self.path()),
            Tab::Backlog => format!("{}/backlog", self.path()),
            Tab::Settings => format!("{}/settings", self.path()),
            Tab::Activity => format!("{base}/activity?destination={}", destination.id),
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
