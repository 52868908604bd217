//! The state of the installation: store, queue and processes.

use askama::Template;
use serde::Deserialize;

use crate::{
    client::ApiPath,
    frame::{Frame, Section},
    refusal::Refusal,
    units::{At, Count, Seconds},
    visit::{Answered, Visit},
};

#[derive(Debug, Deserialize)]
struct Status {
    as_of: At,
    version: String,
    store: Backend,
    queue: Backend,
    queue_depths: Option<Depths>,
    processes: Option<Vec<Process>>,
}

#[derive(Debug, Deserialize)]
struct Backend {
    kind: String,
    is_reachable: bool,
    answered_in_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Depths {
    jobs: Count,
    ready: Count,
    oldest_waited_ms: f64,
    queued: Count,
    in_flight: Count,
}

#[derive(Debug, Deserialize)]
struct Process {
    id: i32,
    role: Option<String>,
    version: Option<String>,
    started_at: Option<At>,
}

impl Backend {
    fn name(&self) -> &str {
        match self.kind.as_str() {
            "sqlite" => "SQLite",
            "postgres" => "PostgreSQL",
            "redis" => "Redis",
            "memory" => "In memory, within the process",
            other => other,
        }
    }
}

impl Depths {
    fn waited(&self) -> Seconds {
        Seconds(self.oldest_waited_ms / 1_000.0)
    }
}

impl Process {
    fn runs(&self) -> &'static str {
        match self.role.as_deref() {
            Some("serve") => "API, scheduler and worker",
            Some("api") => "API",
            Some("scheduler") => "scheduler",
            Some("worker") => "worker",
            _ => "unknown: an older version does not report it",
        }
    }
}

#[derive(Template)]
#[template(path = "status.html")]
struct StatusPage {
    frame: Frame,
    status: Status,
}

impl StatusPage {
    fn up(&self, process: &Process) -> Option<Seconds> {
        Some(Seconds(self.status.as_of.0.since(process.started_at?.0).as_secs_f64()))
    }

    /// Whether processes of several versions run, as during an upgrade.
    fn is_mixed(&self) -> bool {
        let versions = self.status.processes.iter().flatten().map(|process| process.version.as_deref());
        versions.collect::<std::collections::BTreeSet<_>>().len() > 1
    }
}

/// The part that live updates replace.
#[derive(Template)]
#[template(path = "status_parts.html")]
struct StatusParts(StatusPage);

impl std::ops::Deref for StatusParts {
    type Target = StatusPage;

    fn deref(&self) -> &StatusPage {
        &self.0
    }
}

async fn read(visit: &Visit) -> Result<StatusPage, Refusal> {
    let path = ApiPath::of(["status"]);
    let (me, status) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    Ok(StatusPage { frame: visit.frame(me, Section::Status, "Status").live(""), status })
}

pub(crate) async fn show(visit: Visit) -> Answered {
    let page = read(&visit).await?;
    visit.page(&page)
}

pub(crate) async fn fragment(visit: Visit) -> Answered {
    let parts = StatusParts(read(&visit).await?);
    visit.fragment(&parts)
}
