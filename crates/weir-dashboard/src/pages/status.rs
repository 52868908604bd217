//! The state of the installation: store, queue and processes.

use askama::Template;
use weir_api_types::{Backend, InstallationStatus, Process, QueueDepths};

use crate::{
    client::ApiPath,
    extend::extend,
    frame::{Also, Frame, Section},
    refusal::Refusal,
    units::{Seconds, Units as _},
    visit::{Answered, Visit},
};

extend! {
    trait BackendText for Backend {
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
}

extend! {
    trait DepthsText for QueueDepths {
        fn waited(&self) -> Seconds {
            Seconds(self.oldest_waited_ms as f64 / 1_000.0)
        }
    }
}

extend! {
    trait ProcessText for Process {
        fn runs(&self) -> &'static str {
            match self.role.as_deref() {
                Some("serve") => "API, scheduler and worker",
                Some("api") => "API",
                Some("scheduler") => "scheduler",
                Some("worker") => "worker",
                _ => "unknown: an older version does not report it",
            }
        }
        /// By how far its clock is wrong, if people should know.
        fn wrong_clock(&self) -> Option<String> {
            let ahead = self.clock_ahead_s.filter(|ahead| ahead.abs() >= 2.0)?;
            Some(format!("{:.1} s {} Redis", ahead.abs(), if ahead < 0.0 { "behind" } else { "ahead of" }))
        }
    }
}

#[derive(Template)]
#[template(path = "status.html")]
struct StatusPage {
    frame: Frame,
    status: InstallationStatus,
}

impl StatusPage {
    fn up(&self, process: &Process) -> Option<Seconds> {
        Some(Seconds(self.status.as_of.since(process.started_at?).as_secs_f64()))
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
    Ok(StatusPage { frame: visit.frame(me, Section::Status, "Status").live(Also::Time.query()), status })
}

pub(crate) async fn show(visit: Visit) -> Answered {
    let page = read(&visit).await?;
    visit.page(&page)
}

pub(crate) async fn fragment(visit: Visit) -> Answered {
    let parts = StatusParts(read(&visit).await?);
    visit.fragment(&parts)
}
