//! Why the pace is what it is, in words.

use serde::{Deserialize, Serialize};

use super::AdaptiveRate;
use crate::Timestamp;

/// Why the pace is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// Nothing has been refused yet, so the pace doubles.
    Starting,
    /// The pace rises.
    Growing,
    /// The pace waits below what was refused.
    Resting,
    /// Refusals lowered the pace.
    Throttled,
    /// Answers are late, so sends wait for answers.
    Latency,
    /// The receiver announced what it takes.
    Advertised,
    /// The receiver takes nothing.
    Held,
    /// The hard limit is lower than the pace.
    AtLimit,
    /// Fewer deliveries are due than the pace allows.
    Idle,
}

/// The pace as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub per_s: f64,
    /// Since when it has this reason.
    pub since: Timestamp,
    pub reason: Reason,
    pub detail: String,
}

/// The pace went up or down by a tenth or more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub at: Timestamp,
    pub from_per_s: f64,
    pub to_per_s: f64,
    pub reason: Reason,
    pub detail: String,
}

impl Change {
    pub fn is_lowered(&self) -> bool {
        self.to_per_s < self.from_per_s
    }

    /// The change from the pace before, if it is one to tell.
    pub fn between(before: f64, after: &AdaptiveRate, at: Timestamp) -> Option<Self> {
        let Status { per_s, reason, detail, .. } = after.status(at);
        let is_large = (per_s - before).abs() >= 0.1 * before;
        is_large.then_some(Self { at, from_per_s: before, to_per_s: per_s, reason, detail })
    }
}

impl AdaptiveRate {
    pub fn status(&self, now: Timestamp) -> Status {
        Status { per_s: self.per_s(now), since: self.since, reason: self.reason, detail: self.detail.clone() }
    }

    pub(super) fn say(&mut self, reason: Reason, detail: String, now: Timestamp) {
        if self.reason != reason {
            self.since = now;
        }
        self.reason = reason;
        self.detail = detail;
    }
}
