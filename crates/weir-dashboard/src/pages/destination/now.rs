//! The tab *Now*: why a destination is not at its cap, how healthy its receiver is, and the editor of its limits.

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use weir_api_types::{
    self as types, Advice, Binding, Destination, DestinationHealth, DestinationOverview, HealthAttempts, HealthLatency,
    LastFailure, LimitGroupOverview, OverviewRow,
};
use weir_core::{Timestamp, access::Role, stall::Fault};

use super::{
    Head, Tab,
    limits_form::{Editor, ForecastText as _},
    pace::PaceText as _,
};
use crate::{
    client::ApiPath,
    extend::extend,
    faults::Refused,
    frame::{Frame, Me, Section},
    path_id::PathId,
    refusal::Refusal,
    units::{Ago, At, Seconds, Units as _},
    views::{
        BindingLimitText as _, BindingText as _, DestinationOverviewText as _, DestinationText as _, Drain,
        OverrideText as _, RowText as _, WaitsForText as _, unit,
    },
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

/// The paused limit keys that are named; the tab of the keys has them all.
const NAMED_KEYS: usize = 5;
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

extend! {
    trait AdviceText for Advice {
        /// What the setting would do, beside the present figures.
        fn text(&self, row: &OverviewRow) -> String {
            let value = match (&*self.setting, &self.period) {
                ("limit", Some(period)) => match &row.binding {
                    Some(Binding::Limit(limit)) if limit.period == *period => {
                        format!("a limit of {}", limit.with_value(self.value))
                    }
                    _ => format!("a limit of {}/{}", self.value.count(), unit(period)),
                },
                ("min_interval_ms", _) => format!("{} ms between two sends", self.value.count()),
                ("max_in_flight", _) => format!("{} in flight", self.value.count()),
                (setting, _) => format!("{setting} {}", self.value.count()),
            };
            let bound = self.binding.as_ref().map(|binding| binding.short()).unwrap_or_default();
            let Some(rate) = self.effective_per_s else { return format!("With {value}, nothing known would bound it.") };
            if row.effective_per_s.is_some_and(|present| rate <= present * 1.02) {
                return format!("Only with {value}, it would send no faster: {bound} allows no more.");
            }
            let drains = match (self.drain_eta_s, self.drains) {
                (Some(eta), _) => format!(", and what waits would be sent within {}", eta.seconds()),
                (None, Some(false)) => ", which is still less than arrives".to_owned(),
                (None, _) => String::new(),
            };
            format!("With {value}, it could send {} (bound by {bound}){drains}.", rate.per_s())
        }
    }
}

extend! {
    trait FailureText for LastFailure {
        /// The status, or the error in words.
        fn result(&self) -> String {
            match (self.status_code, &self.error) {
                (Some(status), _) => format!("HTTP {status}"),
                (None, Some(error)) => error.clone(),
                (None, None) => self.error_kind.clone().unwrap_or_else(|| "no answer".to_owned()),
            }
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

    /// Why the destination does not send faster, in a sentence or two.
    fn why(&self) -> String {
        let DestinationOverview { row, waits_for, .. } = &self.state;
        let because = waits_for.as_ref().and_then(|waits_for| waits_for.detail.as_ref());
        let because = because.map(|detail| format!(": {detail}")).unwrap_or_default();
        match row.reason.as_deref() {
            Some("limit") => match &row.binding {
                Some(binding @ Binding::Limit(_)) => {
                    format!("It sends as fast as its limit of {} allows.", binding.short())
                }
                Some(binding) => format!("It sends as fast as {} allows.", binding.short()),
                None => "It sends as fast as its limit allows.".to_owned(),
            },
            Some("group") => {
                let share = row.effective_per_s.unwrap_or_default().per_s();
                format!(
                    "It sends its share of its limit group, {share}. Higher limits of the group, or a higher weight in it, would \
                     let it send more."
                )
            }
            Some("key") => "What waits is of limit keys whose own limits allow no more, or that are paused.".to_owned(),
            Some("adaptive") => match &row.adaptive_rate {
                Some(pace) => {
                    format!("It sends at its adaptive pace of {}. {}.", pace.per_s.per_s(), pace.sentence())
                }
                None => "It sends at its adaptive pace.".to_owned(),
            },
            Some("failing") => {
                "Its attempts fail: none of the last minute succeeded. What waits is sent again later. The tab Deliveries has the errors."
                    .to_owned()
            }
            Some("slow") => {
                let places = row.destination.max_in_flight.count();
                match self.answer_time() {
                    Some(time) => format!(
                        "The receiver takes {time} to answer. With {places} in flight at one time, that is at most \
                         {}.",
                        row.effective_per_s.unwrap_or_default().per_s()
                    ),
                    None => format!("The receiver does not answer: all {places} places in flight are taken."),
                }
            }
            Some("refused_within_limit") => "The receiver refuses sends that keep the limit.".to_owned(),
            Some("held") if waits_for.as_ref().is_some_and(|waits_for| waits_for.is_of_group()) => {
                "Its limit group is held, and so is each member.".to_owned()
            }
            Some("held") if self.head.destination.hold.is_some() => format!("It is held{because}."),
            Some("held") => format!("The receiver asked Weir to wait{because}."),
            Some("breaker") => format!("The breaker is open because the receiver fails{because}."),
            Some("paused") => format!("{}. Deliveries wait. {}", self.paused(), self.when_resumed()),
            Some("ordered") => "Deliveries wait for an earlier one with the same ordering key.".to_owned(),
            Some(reason) if let Some(fault) = Fault::named(reason) => {
                format!("Weir does not send, or not as fast as it may: {}.", fault.sentence())
            }
            _ if row.backlog > 0 => "What waits is not due yet.".to_owned(),
            _ if row.destination.paused => "Nothing waits. New deliveries wait until somebody resumes it.".to_owned(),
            _ => "Nothing waits. Every delivery is sent at once.".to_owned(),
        }
    }

    /// Where the reason can be seen and changed, if that is another page.
    fn elsewhere(&self) -> Option<(String, &'static str)> {
        let Head { base, destination, .. } = &self.head;
        match (self.state.row.reason.as_deref()?, &destination.settings.limit_group) {
            ("group", Some(group)) => Some((format!("{base}/limit-groups/{group}"), "The limit group")),
            ("key", _) => Some((format!("{}/keys", self.head.path()), "Limit keys")),
            _ => None,
        }
    }

    /// That it is paused, by whom or why.
    fn paused(&self) -> String {
        let destination = &self.head.destination;
        let by = self.state.waits_for.as_ref().and_then(|waits_for| waits_for.by.as_ref());
        match (&destination.paused_reason, by) {
            (Some(reason), _) => format!("Weir paused it: {reason}"),
            (None, Some(by)) => format!("Paused by {by}"),
            (None, None) => "It is paused".to_owned(),
        }
    }

    /// That limit keys are paused, if any is.
    fn paused_keys(&self) -> Option<String> {
        let overrides = self.head.destination.settings.key_limits.iter().flat_map(|limits| &limits.overrides);
        let name = |key: &String| if key.is_empty() { "(no key)".to_owned() } else { key.clone() };
        let paused: Vec<String> = overrides.filter(|(_, of)| of.paused).map(|(key, _)| name(key)).collect();
        let named = paused.iter().take(NAMED_KEYS).map(String::as_str).collect::<Vec<_>>().join(", ");
        match paused.len() {
            0 => None,
            1 => Some(format!("The limit key {named} is paused.")),
            all if all > NAMED_KEYS => Some(format!("{all} limit keys are paused: {named}, …")),
            _ => Some(format!("The limit keys {named} are paused.")),
        }
    }

    /// What a resume would do with what waits.
    fn when_resumed(&self) -> String {
        let row = &self.state.row;
        let waiting = row.backlog.count();
        match row.configured_per_s {
            _ if self.head.destination.settings.limit_group.is_some() => {
                format!("A resume sends the {waiting} that wait within its limits and its share of its limit group.")
            }
            Some(rate) if rate > 0.0 => {
                let time = (row.backlog as f64 / rate).seconds();
                format!("A resume sends the {waiting} that wait at up to {}, so in {time} or more.", rate.per_s())
            }
            _ => format!("A resume sends the {waiting} that wait at once: no limit is set."),
        }
    }

    fn answer_time(&self) -> Option<Seconds> {
        self.state.answer_time_ms.map(|ms| Seconds(ms / 1_000.0))
    }

    /// What another setting would do.
    fn advice(&self) -> Option<String> {
        self.state.advice.as_ref().map(|advice| advice.text(&self.state.row))
    }

    /// The errors of the last failures: `503 × 12, timeout × 3`.
    fn failures(&self) -> String {
        let shown = self.state.failures.iter().map(|of| format!("{} × {}", of.error, of.count.count()));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// When the hold ends, or when the next probe is sent.
    fn until(&self) -> Option<Timestamp> {
        self.state.waits_for.as_ref()?.until
    }

    /// Whether it waits for the end of a hold.
    fn is_held(&self) -> bool {
        self.state.waits_for.as_ref().is_some_and(|waits_for| waits_for.reason == "hold")
    }

    /// Since when it is paused.
    fn since(&self) -> Option<Timestamp> {
        self.state.waits_for.as_ref()?.since
    }

    /// How long ago the receiver last accepted a delivery. The page counts on.
    fn since_success(&self) -> Option<Ago> {
        let at = self.health.last_success_at?;
        Some(At(at).ago(Seconds(self.state.as_of.since(at).as_secs_f64().floor())))
    }

    /// Whether a pace is or might be adaptive: with limits, nobody has to be told what it would be.
    fn shows_pace(&self) -> bool {
        let settings = &self.head.destination.settings;
        let is_unlimited = settings.rate_limits.is_empty() && settings.min_interval_ms.is_none();
        settings.adaptive.is_some() || (is_unlimited && self.head.can_operate)
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
    /// What it may send of the rate of its limit group.
    share: Option<String>,
    for_a_while: Refused,
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

/// `None`: it is in no group, the group is unlimited, or the caller does not see it.
async fn share(visit: &Visit, destination: &Destination) -> Result<Option<String>, Refusal> {
    let Some(group) = &destination.settings.limit_group else { return Ok(None) };
    match visit.api.get::<LimitGroupOverview>(&ApiPath::of(["limit-groups", group, "overview"])).await {
        Ok(overview) if overview.row.limit_group.hold.is_some() => Ok(Some("waits while the group is held".to_owned())),
        Ok(overview) => Ok(overview.share_in_words(&destination.id, |rate| rate.per_s().to_string())),
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(None),
        Err(refusal) => Err(refusal),
    }
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
    let page = read_page(visit, id, view, typed).await?;
    visit.page_with(status, &page)
}

/// The page with a refused override or hold.
pub(super) async fn refused_for_a_while(visit: &Visit, id: &str, form: Refused) -> Answered {
    let page = read_page(visit, id, &View::default(), None).await?;
    visit.page_with(StatusCode::UNPROCESSABLE_ENTITY, &NowPage { for_a_while: form, ..page })
}

async fn read_page(
    visit: &Visit,
    id: &str,
    view: &View,
    typed: Option<(Editor, Option<types::Preview>)>,
) -> Result<NowPage, Refusal> {
    let (me, live) = read(visit, id, view.window()).await?;
    let share = share(visit, &live.head.destination).await?;
    let editor = match typed {
        Some((editor, preview)) => editor.on(&live.head, preview),
        None => Editor::of(&live.head).reverting_to(&view.was),
    };
    let title = live.head.destination.label().to_owned();
    let frame = visit.frame(me, Section::None, title).live(format!("?destination={}", live.head.destination.id));
    Ok(NowPage { frame, live, editor, share, for_a_while: Refused::default() })
}

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId, Query(view): Query<View>) -> Answered {
    let (_, live) = read(&visit, &id, view.window()).await?;
    visit.fragment(&NowLive { live })
}
