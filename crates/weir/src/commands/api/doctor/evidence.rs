//! What the doctor knows: the answers of a server about itself.

use std::time::Duration;

use serde_json::json;
use weir_api_types::{Delivery, InstallationStatus, OverviewRow, Readiness};
use weir_core::{Clock as _, Timestamp, stall::Fault};

use super::super::{
    Call,
    client::{Fields, Unreachable},
    fields, overview, status,
};
use crate::{clock::SystemClock, commands::output::texts::count, exit::Misuse};

/// Destinations that are looked at, those in trouble first.
const MOST_ROWS: usize = 1_000;
/// Backlogs that seem to stand still, and are looked at one by one.
const MOST_STILL: usize = 10;

/// The answers of a server.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Why there is no answer at all.
    pub(super) unreachable: Option<String>,
    pub(super) status: Option<InstallationStatus>,
    /// How far the clock of the server is ahead of that of this machine, in seconds.
    pub(super) clock_ahead_s: Option<f64>,
    /// What an operator should look at, or why the process is not ready.
    pub(super) readiness: Option<Result<Readiness, String>>,
    pub(super) rows: Vec<OverviewRow>,
    /// There are more destinations than were read.
    pub(super) is_cut: bool,
    /// Destinations with due deliveries of which none was sent for a while, although nothing forbids it.
    pub(super) still: Vec<OverviewRow>,
    /// The metrics of the process that answers; `None`: it serves them elsewhere.
    pub(super) metrics: Option<String>,
}

impl Evidence {
    /// Asks the server. A wrong key is an error: nothing can be judged then.
    pub(super) async fn gather(call: &Call) -> anyhow::Result<Self> {
        let mut evidence = Self::default();
        let clock = SystemClock::start();
        let asked = clock.wall();
        match call.client.get(&status::PATH, &Fields::new()).await {
            Ok(answer) => {
                let status: InstallationStatus = answer.read()?;
                evidence.clock_ahead_s = Some(ahead(status.as_of, asked, clock.wall()));
                evidence.status = Some(status);
            }
            Err(error) if error.is::<Unreachable>() => {
                evidence.unreachable = Some(format!("{error:#}"));
                return Ok(evidence);
            }
            Err(error) if error.is::<Misuse>() => return Err(error),
            // The server answers, and its store does not: the other answers say more.
            Err(_) => {}
        }
        evidence.readiness = match call.client.get(&["readyz"], &Fields::new()).await {
            Ok(answer) => Some(Ok(answer.read()?)),
            Err(error) => Some(Err(format!("{error:#}"))),
        };
        let query = fields(&json!({"sort": "trouble"}))?;
        // While the store is away there is no overview.
        if let Ok(rows) = call.client.list(&overview::PATH, &query, MOST_ROWS).await {
            evidence.is_cut = rows.is_cut;
            evidence.rows = rows.read()?;
        }
        for row in evidence.rows.iter().filter(|row| seems_still(row)).take(MOST_STILL) {
            if is_due(call, row).await {
                evidence.still.push(row.clone());
            }
        }
        evidence.metrics =
            call.client.get(&["metrics"], &Fields::new()).await.ok().map(|answer| answer.text().to_owned());
        Ok(evidence)
    }

    /// What was looked at, for the end of the report.
    pub(super) fn looked_at(&self) -> String {
        let mut parts = Vec::new();
        if let Some(status) = &self.status {
            parts.push(format!(
                "store ({}), queue ({}), processes and their versions",
                status.store.kind, status.queue.kind
            ));
        }
        parts.extend(self.readiness.is_some().then(|| "readiness and clocks".to_owned()));
        let more = if self.is_cut { ", those in trouble first" } else { "" };
        if self.status.is_some() {
            let destinations = count(self.rows.len() as u64, "destination", "destinations");
            parts.push(format!("{destinations} with their backlogs and breakers{more}"));
            let disk = self.status.as_ref().and_then(|status| status.store.free_bytes);
            parts.push(
                if disk.is_some() { "the disk" } else { "not the disk, which only the database knows" }.to_owned(),
            );
        }
        parts.push(match self.metrics {
            Some(_) => "the metrics of this process".to_owned(),
            None => "not the metrics, which are served elsewhere".to_owned(),
        });
        parts.join("; ")
    }

    /// A gauge of the process without labels.
    pub(super) fn gauge(&self, name: &str) -> Option<f64> {
        let lines = self.metrics.as_deref()?.lines();
        lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).find_map(|value| value.trim().parse().ok())
    }
}

/// How far an instant of the server is outside the time in which it was asked.
fn ahead(server: Timestamp, asked: Timestamp, answered: Timestamp) -> f64 {
    if server > answered { server.since(answered).as_secs_f64() } else { -asked.since(server).as_secs_f64() }
}

/// The time in which a destination that may send has sent at least once.
fn seems_still(row: &OverviewRow) -> bool {
    let destination = &row.destination;
    let is_stopped = destination.paused || destination.breaker_state != "closed" || destination.held_until.is_some();
    // Sends are measured over a minute at most, in which a slower limit may have none. Then the server's own watch decides.
    let is_measured = row.configured_per_s.is_none_or(|rate| rate > 1.0 / 30.0);
    let is_late = || row.reason.as_deref().is_some_and(|reason| Fault::named(reason).is_some());
    !is_stopped
        && row.pending > 0
        && row.delivering == 0
        && row.achieved_per_s == 0.0
        && (is_measured || is_late())
        && row.oldest_age_s.is_some_and(|age| age > 30.0)
}

/// Whether the oldest waiting delivery is due, and not delayed by its event or by an earlier one of its key.
async fn is_due(call: &Call, row: &OverviewRow) -> bool {
    let query = json!({"destination": row.destination.id, "state": "pending", "order": "oldest", "limit": 1});
    let Ok(query) = fields(&query) else { return false };
    let Ok(page) = call.client.page(&["v1", "deliveries"], &query).await else { return false };
    let oldest = page.rows.read::<Delivery>().ok().and_then(|rows| rows.into_iter().next());
    let due = oldest.and_then(|delivery| delivery.next_attempt_at);
    due.is_some_and(|due| due + Duration::from_secs(10) < SystemClock::start().wall())
}

#[cfg(test)]
mod tests {
    use super::{super::super::overview::tests::overview_row, *};

    #[test]
    fn a_backlog_stands_still_if_nothing_forbids_its_sends_and_none_starts() {
        let still = json!({"achieved_per_s": 0.0, "oldest_age_s": 31.0});
        let seems = |destination, figures| seems_still(&overview_row(&destination, &figures));
        assert!(seems(json!({}), still.clone()));
        assert!(!seems(json!({"paused": true}), still.clone()));
        assert!(!seems(json!({"breaker_state": "open"}), still));
        assert!(!seems(json!({}), json!({"achieved_per_s": 0.1, "oldest_age_s": 31.0})));
        assert!(!seems(json!({}), json!({"achieved_per_s": 0.0, "oldest_age_s": 29.0})));
        let mut slow = json!({"achieved_per_s": 0.0, "oldest_age_s": 9_000.0, "configured_per_s": 0.01});
        assert!(!seems(json!({}), slow.clone()), "one send in 100 s is its limit, however long the backlog has waited");
        slow["reason"] = json!("not_started");
        assert!(seems(json!({}), slow), "the server says that it is late");
    }

    #[test]
    fn a_clock_is_compared_with_the_time_of_the_question() {
        let [asked, answered] = [1_000, 1_002].map(Timestamp::from_secs);
        assert_eq!(ahead(Timestamp::from_secs(1_001), asked, answered), 0.0);
        assert_eq!(ahead(Timestamp::from_secs(1_012), asked, answered), 10.0);
        assert_eq!(ahead(Timestamp::from_secs(990), asked, answered), -10.0);
    }
}
