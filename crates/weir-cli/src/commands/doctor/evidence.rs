//! What the doctor knows: the answers of a server about itself.

use std::collections::HashMap;

use serde_json::json;
use weir_api_types::{
    ActiveAlert, Activity, DestinationOverview, InstallationStatus, LastFailure, LimitGroupRow, OverviewRow, Readiness,
};
use weir_core::{Timestamp, alert::AlertType};

use super::super::{
    Call,
    client::{Answer, Fields, Unreachable},
    fields, limit_groups, overview,
};
use super::finding::NAMED;
use crate::{clock::wall_clock, exit::Misuse, output::texts::count};

/// Destinations that are looked at, those in trouble first.
const MOST_ROWS: usize = 1_000;

/// Among so many changes of a destination the pause is looked for.
const MOST_CHANGES: usize = 100;

/// Whether deliveries wait behind a pause.
pub(super) fn is_behind_a_pause(row: &OverviewRow) -> bool {
    row.destination.paused && row.backlog > 0
}

/// Whether no attempt of the last minute succeeded.
pub(super) fn is_failing(row: &OverviewRow) -> bool {
    row.reason.as_deref() == Some("failing")
}

/// The status of an answer, or the kind of an error: `503`, `dns`.
pub(super) fn error_of(last: &LastFailure) -> Option<String> {
    last.status_code.map(|status| status.to_string()).or_else(|| last.error_kind.clone())
}

pub(super) fn has_open_breaker(row: &OverviewRow) -> bool {
    row.destination.breaker_state != "closed"
}

/// The answers of a server.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// Why there is no answer at all.
    pub(super) unreachable: Option<String>,
    /// Why the server did not say its state, or that of the destinations.
    pub(super) unread: Option<String>,
    pub status: Option<InstallationStatus>,
    /// How far the clock of the server is ahead of that of this machine, in seconds.
    pub(super) clock_ahead_s: Option<f64>,
    /// What an operator should look at, or why the process is not ready.
    pub(super) readiness: Option<Result<Readiness, String>>,
    pub(super) rows: Vec<OverviewRow>,
    /// The receivers that answer many sends with 429.
    pub(super) refusing: Vec<ActiveAlert>,
    pub groups: Vec<LimitGroupRow>,
    /// When the first destinations were paused whose deliveries wait, by their ids.
    pub(super) paused_at: HashMap<String, Timestamp>,
    /// How the last attempts failed at the first destinations with an open breaker and at the first that fail, by their
    /// ids.
    pub(super) last_failures: HashMap<String, LastFailure>,
    /// There are more destinations than were read.
    pub(super) is_cut: bool,
    /// The metrics of the process that answers; `None`: it serves them elsewhere.
    pub(super) metrics: Option<String>,
}

impl Evidence {
    /// Asks the server. A wrong key is an error: nothing can be judged then.
    pub(super) async fn gather(call: &Call) -> anyhow::Result<Self> {
        let mut evidence = Self::default();
        match evidence.ask(call).await {
            Ok(_) => {}
            Err(error) if error.is::<Unreachable>() => {
                evidence.unreachable = Some(format!("{error:#}"));
                return Ok(evidence);
            }
            Err(error) if error.is::<Misuse>() => return Err(error),
            // The server answers, and its store does not: the other answers say more.
            Err(error) => evidence.unread = Some(format!("{error:#}")),
        }
        evidence.look(call).await?;
        Ok(evidence)
    }

    /// Asks for the state of the installation. Returns it as the server sends it.
    pub(crate) async fn ask(&mut self, call: &Call) -> anyhow::Result<Answer> {
        let asked = wall_clock();
        let answer = call.client.get(&["v1", "status"], &Fields::new()).await?;
        let status: InstallationStatus = answer.read()?;
        self.clock_ahead_s = Some(ahead(status.as_of, asked, wall_clock()));
        self.status = Some(status);
        Ok(answer)
    }

    /// Asks for all else, as far as the server says it.
    pub(crate) async fn look(&mut self, call: &Call) -> anyhow::Result<()> {
        let evidence = self;
        evidence.readiness = match call.client.get(&["readyz"], &Fields::new()).await {
            Ok(answer) => Some(Ok(answer.read()?)),
            // An ingress that passes only the API says nothing of the process.
            Err(error) if error.is::<Misuse>() => None,
            Err(error) => Some(Err(format!("{error:#}"))),
        };
        let query = fields(&json!({"sort": "trouble"}))?;
        // While the store is away there is no overview.
        match call.client.list(&overview::PATH, &query, MOST_ROWS).await {
            Ok(rows) => {
                evidence.is_cut = rows.is_cut;
                evidence.rows = rows.read()?;
            }
            Err(error) => evidence.unread = evidence.unread.take().or_else(|| Some(format!("{error:#}"))),
        }
        let query = fields(&json!({"type": AlertType::Refusing.as_str()}))?;
        // A server of an earlier version has no such alerts.
        if let Ok(rows) = call.client.list(&["v1", "alerts", "active"], &query, MOST_ROWS).await {
            evidence.refusing = rows.read()?;
        }
        if let Ok(rows) = call.client.list(&limit_groups::LIST, &Fields::new(), MOST_ROWS).await {
            evidence.groups = rows.read()?;
        }
        for row in evidence.rows.iter().filter(|row| is_behind_a_pause(row)).take(NAMED) {
            let query = fields(&json!({"destination": row.destination.id}))?;
            // Not known to a key that may not read the activity, or after a year.
            let Ok(rows) = call.client.list(&["v1", "activity"], &query, MOST_CHANGES).await else { break };
            let changes: Vec<Activity> = rows.read()?;
            let pause = changes.into_iter().find(|change| change.action == "destination.paused");
            evidence.paused_at.extend(pause.map(|pause| (row.destination.id.clone(), pause.at)));
        }
        let broken = evidence.rows.iter().filter(|row| has_open_breaker(row)).take(NAMED);
        for row in broken.chain(evidence.rows.iter().filter(|row| is_failing(row)).take(NAMED)) {
            let path = ["v1", "destinations", &row.destination.id, "overview"];
            let Ok(answer) = call.client.get(&path, &Fields::new()).await else { break };
            let Some(last) = answer.read::<DestinationOverview>()?.last_failure else { continue };
            evidence.last_failures.insert(row.destination.id.clone(), last);
        }
        evidence.metrics =
            call.client.get(&["metrics"], &Fields::new()).await.ok().map(|answer| answer.text().to_owned());
        Ok(())
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
        parts.extend(self.readiness.is_some().then(|| "readiness and clock of the process that answers".to_owned()));
        let more = if self.is_cut { ", those in trouble first" } else { "" };
        if self.status.is_some() && self.unread.is_some() {
            parts.push("not the destinations, which could not be read".to_owned());
        } else if self.status.is_some() {
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

/// By how many seconds the server's clock is ahead of the answer, or (negative) behind the question; 0 between the two.
fn ahead(server: Timestamp, asked: Timestamp, answered: Timestamp) -> f64 {
    if server > answered { server.since(answered).as_secs_f64() } else { -asked.since(server).as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_time_of_the_question() {
        let [asked, answered] = [1_000, 1_002].map(Timestamp::from_secs);
        assert_eq!(ahead(Timestamp::from_secs(1_001), asked, answered), 0.0);
        assert_eq!(ahead(Timestamp::from_secs(1_012), asked, answered), 10.0);
        assert_eq!(ahead(Timestamp::from_secs(990), asked, answered), -10.0);
    }
}
