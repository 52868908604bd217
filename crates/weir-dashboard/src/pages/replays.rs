//! Replays: the list, one replay with its progress beside live traffic, and its cancellation.

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::{List, Overview, OverviewRow, OverviewTotals, Replay};

use crate::{
    client::{ApiPath, append},
    example::Example,
    extend::extend,
    frame::{Frame, Section},
    names::Names,
    path_id::PathId,
    refusal::Refusal,
    units::{Seconds, Share, Units as _},
    views::{BriefText as _, Drain, RowText as _},
    visit::{Answered, Visit},
};

extend! {
    trait ReplayText for Replay {
        fn tone(&self) -> &'static str {
            match self.state.as_str() {
                "running" => "calm",
                "completed" if self.failed == 0 => "good",
                _ => "warn",
            }
        }

        fn is_running(&self) -> bool {
            self.state == "running"
        }

        /// The part that has ended.
        fn progress(&self) -> Share {
            match self.total {
                0 => Share(1.0),
                total => Share((total.saturating_sub(self.remaining)) as f64 / total as f64),
            }
        }

        fn eta(&self) -> Option<Seconds> {
            self.eta_s.map(|eta| Seconds(eta as f64))
        }

        /// What it takes, in words.
        fn filter(&self, names: &Names) -> Vec<(&'static str, String)> {
            let destination = self.destination.as_deref().map(|id| names.of(id));
            let parts = [
                ("State", Some(self.states.join(", "))),
                ("Destination", destination),
                ("Tenant", self.tenant.clone()),
                ("Type", self.event_type.clone()),
                ("Error", self.error.clone()),
                ("From", self.from.map(|at| at.to_string())),
                ("Before", self.to.map(|at| at.to_string())),
            ];
            parts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct ListQuery {
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "replays.html")]
struct ReplaysPage {
    frame: Frame,
    page: List<Replay>,
    names: Names,
    cursor: String,
    example: Example,
}

impl ReplaysPage {
    /// The fragment that replaces the table.
    fn fragment(&self) -> String {
        let mut link = format!("{}/fragments/replays", self.frame.base());
        append(&mut link, "cursor", &self.cursor);
        link
    }

    fn path(&self) -> String {
        format!("{}/replays", self.frame.base())
    }

    fn first(&self) -> Option<String> {
        (!self.cursor.is_empty()).then(|| self.path())
    }

    fn next(&self) -> Option<String> {
        let mut link = self.path();
        append(&mut link, "cursor", self.page.next_cursor.as_deref()?);
        Some(link)
    }
}

/// The table alone, for live updates.
#[derive(Template)]
#[template(path = "replays_table.html")]
struct ReplaysTable(ReplaysPage);

impl std::ops::Deref for ReplaysTable {
    type Target = ReplaysPage;

    fn deref(&self) -> &ReplaysPage {
        &self.0
    }
}

/// What goes to the same receivers beside the replay.
enum LiveTraffic {
    Destination(Box<OverviewRow>),
    All(OverviewTotals),
    /// It cannot be read now.
    Unknown,
}

#[derive(Template)]
#[template(path = "replay.html")]
struct ReplayPage {
    frame: Frame,
    replay: Replay,
    names: Names,
    live: LiveTraffic,
}

/// The progress alone, for live updates.
#[derive(Template)]
#[template(path = "replay_progress.html")]
struct ReplayProgress(ReplayPage);

impl std::ops::Deref for ReplayProgress {
    type Target = ReplayPage;

    fn deref(&self) -> &ReplayPage {
        &self.0
    }
}

async fn read_list(visit: &Visit, cursor: String) -> Result<ReplaysPage, Refusal> {
    let path = ApiPath::of(["replays"]).with("cursor", &cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get::<List<Replay>>(&path))?;
    let names = Names::read(visit, page.data.iter().filter_map(|replay| replay.destination.as_deref())).await;
    let example = Example::new(visit, &me);
    let frame = visit.frame(me, Section::Replays, "Replays").live("");
    Ok(ReplaysPage { frame, page, names, cursor, example })
}

pub(crate) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Answered {
    let page = read_list(&visit, query.cursor).await?;
    visit.page(&page)
}

pub(crate) async fn list_fragment(visit: Visit, Query(query): Query<ListQuery>) -> Answered {
    let table = ReplaysTable(read_list(&visit, query.cursor).await?);
    visit.fragment(&table)
}

async fn read_one(visit: &Visit, id: &str) -> Result<ReplayPage, Refusal> {
    let path = ApiPath::of(["replays", id]);
    let (me, replay) = tokio::try_join!(visit.me(), visit.api.get::<Replay>(&path))?;
    let names = Names::read(visit, replay.destination.as_deref()).await;
    let (live, stream) = match &replay.destination {
        Some(id) => {
            let row = visit.api.get(&ApiPath::of(["destinations", id, "overview"])).await;
            let mut stream = String::new();
            append(&mut stream, "destination", id);
            (row.map_or(LiveTraffic::Unknown, |row| LiveTraffic::Destination(Box::new(row))), stream)
        }
        None => {
            let tenant = replay.tenant.as_deref().unwrap_or_default();
            let path = ApiPath::of(["overview"]).with("limit", "1").with("tenant", tenant);
            let overview = visit.api.get::<Overview>(&path).await;
            (overview.map_or(LiveTraffic::Unknown, |overview| LiveTraffic::All(overview.totals)), String::new())
        }
    };
    let frame = visit.frame(me, Section::Replays, "Replay").live(stream);
    Ok(ReplayPage { frame, replay, names, live })
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    let page = read_one(&visit, &id).await?;
    visit.page(&page)
}

pub(crate) async fn progress(visit: Visit, PathId(id): PathId) -> Answered {
    let progress = ReplayProgress(read_one(&visit, &id).await?);
    visit.fragment(&progress)
}

pub(crate) async fn cancel(visit: Visit, PathId(id): PathId) -> Answered {
    let answer = visit.api.post::<Value>(&ApiPath::of(["replays", &id, "cancel"]), &json!({})).await;
    let done = "The replay is cancelled. Its unsent deliveries return to their previous states.";
    visit.after(&format!("/replays/{id}"), answer, |_| done.to_owned())
}
