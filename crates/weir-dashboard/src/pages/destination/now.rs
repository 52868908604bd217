//! The tab *Now*: why a destination is not at its cap, how healthy its receiver is, and the editor of its limits.

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use weir_api_types::{self as types, Binding, DestinationHealth, DestinationOverview, HealthAttempts, HealthLatency};
use weir_core::access::Role;

use super::{
    Head, Tab,
    limits_form::{Editor, ForecastText as _},
};
use crate::{
    client::ApiPath,
    extend::extend,
    frame::{Frame, Me, Section},
    path_id::PathId,
    refusal::Refusal,
    units::{Ago, At, Seconds, Units as _},
    views::{BindingText as _, DestinationOverviewText as _, DestinationText as _, Drain, RowText as _},
    visit::{Answered, Visit},
};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct View {
    /// The window of the health: `1h`, `24h` or `7d`.
    window: String,
    /// The limits before the last save, for the button that restores them.
    pub(super) was: String,
}

impl View {
    fn window(&self) -> &'static str {
        WINDOWS.into_iter().find(|window| *window == self.window).unwrap_or(WINDOWS[0])
    }
}

const WINDOWS: [&str; 3] = ["1h", "24h", "7d"];

extend! {
    trait HealthText for DestinationHealth {
        /// Each number of attempts, with the length of its bar in percent of the longest.
        fn histogram(&self) -> Vec<(&HealthAttempts, u32)> {
            let most = self.attempts.iter().map(|attempts| attempts.deliveries).max().unwrap_or(0).max(1);
            let length = |deliveries: u64| (deliveries * 100).div_ceil(most) as u32;
            self.attempts.iter().map(|attempts| (attempts, length(attempts.deliveries))).collect()
        }

        fn tone(&self) -> &'static str {
            match self.success_ratio {
                Some(ratio) if ratio < 0.9 => "bad",
                Some(ratio) if ratio < 0.99 => "warn",
                _ => "",
            }
        }
    }
}

extend! {
    trait LatencyText for HealthLatency {
        fn shown(&self) -> [(&'static str, Option<String>); 3] {
            let text = |ms: Option<f64>| ms.map(|ms| Seconds(ms / 1_000.0).to_string());
            [("p50", text(self.p50)), ("p95", text(self.p95)), ("p99", text(self.p99))]
        }
    }
}

/// What live updates replace.
struct Live {
    head: Head,
    state: DestinationOverview,
    health: DestinationHealth,
    window: &'static str,
}

impl Live {
    fn windows(&self) -> [&'static str; 3] {
        WINDOWS
    }

    /// Why the destination does not send faster, in a sentence.
    fn why(&self) -> String {
        let row = &self.state.row;
        match row.reason.as_deref() {
            Some("limit") => match &row.binding {
                Some(binding @ Binding::Limit(_)) => {
                    format!("It sends as fast as its limit of {} allows.", binding.short())
                }
                Some(binding) => format!("It sends as fast as {} allows.", binding.short()),
                None => "It sends as fast as its limit allows.".to_owned(),
            },
            Some("slow") => format!(
                "The receiver answers slowly: all {} places of max_in_flight are taken before the limit is reached.",
                self.head.destination.settings.max_in_flight.count()
            ),
            Some("refused_within_limit") => "The receiver refuses sends that keep the limit.".to_owned(),
            Some("held") => "The receiver asked Weir to wait.".to_owned(),
            Some("breaker") => "The breaker is open because the receiver fails.".to_owned(),
            Some("paused") => "It is paused. Deliveries wait.".to_owned(),
            Some("ordered") => "Deliveries wait for an earlier one with the same ordering key.".to_owned(),
            _ => "Nothing waits. Every delivery is sent at once.".to_owned(),
        }
    }

    /// How long ago the receiver last accepted a delivery. The page counts on.
    fn since_success(&self) -> Option<Ago> {
        let at = self.health.last_success_at?;
        Some(At(at).ago(Seconds(self.state.as_of.since(at).as_secs_f64().floor())))
    }

    fn fragment(&self) -> String {
        format!("{}/fragments/destinations/{}/now?window={}", self.head.base, self.head.destination.id, self.window)
    }
}

#[derive(Template)]
#[template(path = "destination_now.html")]
struct NowPage {
    frame: Frame,
    live: Live,
    editor: Editor,
}

#[derive(Template)]
#[template(path = "destination_now_live.html")]
struct NowLive {
    live: Live,
}

async fn read(visit: &Visit, id: &str, window: &'static str) -> Result<(Me, Live), Refusal> {
    let (overview, health) =
        (ApiPath::of(["destinations", id, "overview"]), ApiPath::of(["destinations", id, "health"]));
    let health = health.with("window", window);
    let (me, (destination, etag), state, health) =
        tokio::try_join!(visit.me(), super::read(visit, id), visit.api.get(&overview), visit.api.get(&health))?;
    let (base, can_operate) = (visit.site.base.clone(), me.role.includes(Role::Operate));
    let head = Head { base, destination, etag, tab: Tab::Now, can_operate };
    Ok((me, Live { head, state, health, window }))
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId, Query(view): Query<View>) -> Answered {
    page(&visit, &id, &view, StatusCode::OK, None).await
}

/// The page with what the reader has typed into the editor, if anything.
pub(super) async fn page(
    visit: &Visit,
    id: &str,
    view: &View,
    status: StatusCode,
    typed: Option<(Editor, Option<types::Preview>)>,
) -> Answered {
    let (me, live) = read(visit, id, view.window()).await?;
    let editor = match typed {
        Some((editor, preview)) => editor.on(&live.head, preview),
        None => Editor::of(&live.head).reverting_to(&view.was),
    };
    let title = live.head.destination.label().to_owned();
    let frame = visit.frame(me, Section::None, title).live(format!("?destination={}", live.head.destination.id));
    visit.page_with(status, &NowPage { frame, live, editor })
}

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId, Query(view): Query<View>) -> Answered {
    let (_, live) = read(&visit, &id, view.window()).await?;
    visit.fragment(&NowLive { live })
}
