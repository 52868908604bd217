//! `weir alerts`: what is wrong now, the latest alerts, and their thresholds.

use reqwest::Method;
use serde_json::{Map, Value};
use weir_api_types::{ActiveAlert, AlertBacklog, AlertData, Event, OverviewRow};
use weir_core::{
    Timestamp,
    alert::{AlertPolicy, AlertType},
};

use super::{
    Call,
    client::{Answer, Fields, Request},
    fields,
    overview::{title, why},
    settings,
};
use crate::{
    exit::Misuse,
    flags::{
        api::PageFlags,
        watch::{AlertCommand, AlertsArgs},
    },
    output::{
        self, Screen, json,
        table::{Cell, Column, Table, Tone},
        texts::{NONE, age, count, or_none, span_s},
    },
};

const THRESHOLDS: [&str; 2] = ["v1", "alerts"];
/// The latest alerts that are shown below what is wrong now.
const LATEST: usize = 10;
/// What is wrong is listed up to this many rows; `weir overview` has all destinations.
const MOST: u32 = 1_000;

pub(super) async fn run(call: &Call, args: AlertsArgs) -> anyhow::Result<()> {
    if args.tenant.is_some() && args.command.is_some() {
        return Err(Misuse("the thresholds are those of all tenants: leave --tenant out".to_owned()).into());
    }
    match args.command {
        None => wrong_now(call, args.tenant.as_deref()).await,
        Some(AlertCommand::Thresholds) => {
            let answer = call.client.get(&THRESHOLDS, &Fields::new()).await?;
            call.print(&answer, |policy| thresholds(&policy, call.screen))
        }
        Some(AlertCommand::Set(changes)) => {
            let named = changes.named();
            if named.is_empty() {
                return Err(
                    Misuse("nothing to set: give at least one threshold, such as --dead-letters 5".into()).into()
                );
            }
            let answer = set(call, named).await?;
            call.print(&answer, |policy| thresholds(&policy, call.screen))
        }
    }
}

/// Sets the named thresholds. The API replaces all of them, so the others are sent as they are.
async fn set(call: &Call, named: Vec<(&'static str, Value)>) -> anyhow::Result<Answer> {
    let mut policy: Map<String, Value> = call.client.get(&THRESHOLDS, &Fields::new()).await?.read()?;
    policy.extend(named.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let body = Value::Object(policy).to_string();
    call.client.send(Request { body: Some(&body), ..Request::new(Method::PUT, &THRESHOLDS) }).await
}

fn thresholds(policy: &AlertPolicy, screen: Screen) -> String {
    let number =
        |value: Option<u64>, unit: &str| value.map_or_else(|| "off".to_owned(), |value| format!("{value}{unit}"));
    let lines = [
        ("waiting", number(policy.backlog_depth.map(u64::from), " deliveries")),
        ("oldest", number(policy.oldest_age_s.map(u64::from), " s")),
        (
            "too late",
            if policy.drain_beyond_ttl { "when deliveries expire before they are sent" } else { "off" }.to_owned(),
        ),
        ("dead letters", number(policy.dead_letters.map(u64::from), " since the last alert")),
    ];
    format!("Thresholds of all destinations\n{}", settings::render(&lines, screen))
}

async fn wrong_now(call: &Call, tenant: Option<&str>) -> anyhow::Result<()> {
    let query = fields(&serde_json::json!({"tenant": tenant}))?;
    let page = PageFlags { limit: MOST, all: false };
    let rows = match call.list(&["v1", "alerts", "active"], &query, page).await {
        Ok(rows) => rows,
        // A server of an earlier version: what is wrong is in the overview.
        Err(error) if error.is::<Misuse>() => return wrong_in_overview(call, &query, page).await,
        Err(error) => return Err(error),
    };
    if call.json {
        return output::print(&json::pretty(&rows.array()));
    }
    let wrong: Vec<ActiveAlert> = rows.read()?;
    let is_cut = rows.is_cut;
    show(call, wrong.into_iter().map(row).collect(), is_cut, tenant).await
}

async fn wrong_in_overview(call: &Call, query: &Fields, page: PageFlags) -> anyhow::Result<()> {
    let rows = call.list(&super::overview::PATH, query, page).await?;
    let mut overview: Vec<OverviewRow> = rows.read()?;
    overview.retain(is_wrong);
    if call.json {
        return output::print(&serde_json::to_string_pretty(&overview)?);
    }
    let tenant = query.get("tenant").and_then(Value::as_str);
    show(call, overview.iter().map(row_of_overview).collect(), rows.is_cut, tenant).await
}

async fn show(call: &Call, rows: Vec<[Cell; 4]>, is_cut: bool, tenant: Option<&str>) -> anyhow::Result<()> {
    let text = match rows.len() {
        0 => "Nothing is wrong now.".to_owned(),
        many => {
            let things = count(many as u64, "thing is", "things are");
            let things = if is_cut { format!("More than {things}") } else { things };
            format!("{things} wrong now.\n{}", table().with(rows).render(call.screen))
        }
    };
    let latest = latest(call, tenant).await?;
    let latest = match latest.is_empty() {
        true => String::new(),
        false => format!("\n\nThe latest alerts\n{}", latest_table().with(latest).render(call.screen)),
    };
    output::show(&format!("{text}{latest}"), call.screen)
}

/// What an alert says, in words.
fn text(alert_type: &str, data: &AlertData) -> String {
    let AlertBacklog { waiting, oldest_age_s, drain_eta_s } = data.backlog.unwrap_or_default();
    let waits = count(waiting, "delivery waits", "deliveries wait");
    let waits = match data.members {
        None | Some(0) => waits,
        Some(members) => format!("{waits} at {}", count(members, "member", "members")),
    };
    match AlertType::named(alert_type) {
        Some(AlertType::BacklogHigh | AlertType::GroupBehind) => {
            let late = data.reasons.iter().flatten().any(|reason| reason == "drain_beyond_ttl");
            let drained = drain_eta_s
                .map_or_else(|| "never drained".to_owned(), |eta| format!("drained in {}", span_s(eta as f64)));
            let late = if late { format!("; some expire before: {drained}") } else { String::new() };
            format!("{waits}, the oldest for {}{late}", span_s(oldest_age_s as f64))
        }
        Some(AlertType::BacklogCleared | AlertType::GroupCaughtUp) => waits,
        Some(AlertType::Dead) => {
            let new = data.new.filter(|new| *new > 0).map_or_else(String::new, |new| format!("{new} new, "));
            format!("{new}{} in all", count(data.dead_letters.unwrap_or_default(), "dead letter", "dead letters"))
        }
        _ => or_none(data.reason.clone().filter(|reason| !reason.is_empty())),
    }
}

/// An alert in plain words, and whether it is good news.
fn in_words(alert_type: &str) -> (String, Tone) {
    let Some(known) = AlertType::named(alert_type) else {
        // Of a later version.
        return (alert_type.strip_prefix("weir.").unwrap_or(alert_type).replace('.', " "), Tone::Plain);
    };
    let (words, tone) = match known {
        AlertType::BacklogHigh => ("backlog high", Tone::Waiting),
        AlertType::BacklogCleared => ("backlog cleared", Tone::Good),
        AlertType::GroupBehind => ("limit group behind", Tone::Waiting),
        AlertType::GroupCaughtUp => ("limit group caught up", Tone::Good),
        AlertType::BreakerOpened => ("breaker open", Tone::Bad),
        AlertType::BreakerClosed => ("breaker closed", Tone::Good),
        AlertType::Paused => ("paused by Weir", Tone::Waiting),
        AlertType::Refused => ("refused within limit", Tone::Bad),
        AlertType::Admitted => ("no more refusals", Tone::Good),
        AlertType::Refusing => ("refuses many sends", Tone::Bad),
        AlertType::Accepting => ("accepts again", Tone::Good),
        AlertType::Stalled => ("destination stalled", Tone::Bad),
        AlertType::Recovered => ("destination recovered", Tone::Good),
        AlertType::InstallationStalled => ("Weir does not send", Tone::Bad),
        AlertType::InstallationRecovered => ("Weir sends again", Tone::Good),
        AlertType::RateLowered => ("pace lowered", Tone::Waiting),
        AlertType::RateRestored => ("pace restored", Tone::Good),
        AlertType::Dead => ("dead letters", Tone::Bad),
    };
    (words.to_owned(), tone)
}

pub(super) fn table() -> Table<4> {
    Table::new([
        Column::text("what"),
        Column::text("where").flexible(),
        Column::text("detail").flexible(),
        Column::text("tenant").flexible().optional(),
    ])
}

fn row(wrong: ActiveAlert) -> [Cell; 4] {
    let (words, tone) = in_words(&wrong.alert_type);
    let name = wrong.limit_group_name.or(wrong.destination_name).filter(|name| !name.is_empty());
    let name = name.or(wrong.limit_group_id).or(wrong.destination_id);
    [Cell::toned(&words, tone), or_none(name).into(), text(&wrong.alert_type, &wrong.data).into(), wrong.tenant.into()]
}

fn is_wrong(row: &OverviewRow) -> bool {
    let stopped = row.destination.paused || row.destination.breaker_state != "closed";
    stopped || row.refused_within_limit.is_some() || row.undelivered > 0 || row.drains == Some(false)
}

fn row_of_overview(row: &OverviewRow) -> [Cell; 4] {
    let (why, tone) = why(row);
    let (words, detail) = why.split_once(": ").map_or((why.as_str(), None), |(words, detail)| (words, Some(detail)));
    let dead = (row.undelivered > 0).then(|| count(row.undelivered, "dead letter", "dead letters"));
    let never = (row.drains == Some(false)).then(|| "the backlog never drains".to_owned());
    let detail: Vec<_> = [detail.map(str::to_owned), dead, never].into_iter().flatten().collect();
    let words = if words == NONE || words == "its limit" { "look at it" } else { words };
    [
        Cell::toned(words, tone),
        title(&row.destination).into(),
        detail.join(", ").into(),
        row.destination.tenant.as_str().into(),
    ]
}

/// The newest alerts. Weir's own events include test events, which are no alerts.
async fn latest(call: &Call, tenant: Option<&str>) -> anyhow::Result<Vec<[Cell; 4]>> {
    let query = fields(&serde_json::json!({"type": "weir.*", "include": "data", "limit": 100, "tenant": tenant}))?;
    let events: Vec<Event> = call.client.page(&["v1", "events"], &query).await?.rows.read()?;
    let alerts = events.into_iter().filter(|event| event.event_type != "weir.test");
    Ok(alerts.take(LATEST).map(|event| latest_row(event, call.now)).collect())
}

pub(super) fn latest_table() -> Table<4> {
    Table::new([
        Column::number("age"),
        Column::text("what"),
        Column::text("where").flexible(),
        Column::text("detail").flexible(),
    ])
}

pub(super) fn latest_row(event: Event, now: Timestamp) -> [Cell; 4] {
    let (words, tone) = in_words(&event.event_type);
    let data: AlertData = event.data.and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default();
    let detail = text(&event.event_type, &data);
    let name = or_none(data.name.filter(|name| !name.is_empty()).or(data.limit_group_id).or(data.destination_id));
    [age(event.created_at, now).into(), Cell::toned(&words, tone), name.into(), detail.into()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::overview::tests::overview_row, *};

    #[test]
    fn what_is_wrong_is_said_in_words() {
        let text = |alert_type: &str, data: Value| {
            let wrong = json!({
                "type": alert_type, "destination_id": "dst_1", "destination_name": "", "tenant": "t", "data": data,
            });
            table().with([row(serde_json::from_value(wrong).unwrap())]).render(Screen::PLAIN)
        };
        let backlog = json!({"backlog": {"waiting": 7, "oldest_age_s": 90}, "reasons": ["drain_beyond_ttl"]});
        let high = text("weir.backlog.high", backlog);
        for part in ["backlog high", "dst_1", "7 deliveries wait, the oldest for 1m; some expire before: never drained"]
        {
            assert!(high.contains(part), "{high}");
        }
        let group = json!({
            "type": "weir.limit_group.behind", "destination_id": null, "destination_name": null, "tenant": "*",
            "limit_group_id": "lgr_1", "limit_group_name": "partner",
            "data": {"members": 3, "backlog": {"waiting": 7, "oldest_age_s": 90}, "reasons": ["drain_beyond_ttl"]},
        });
        let group = table().with([row(serde_json::from_value(group).unwrap())]).render(Screen::PLAIN);
        for part in ["limit group behind", "partner", "7 deliveries wait at 3 members, the oldest for 1m"] {
            assert!(group.contains(part), "{group}");
        }
        let open = text("weir.breaker.opened", json!({"reason": "10 failures in a row"}));
        assert!(open.contains("breaker open  dst_1  10 failures in a row"), "{open}");
        let dead = text("weir.delivery.dead", json!({"dead_letters": 1}));
        assert!(dead.contains("1 dead letter in all"), "{dead}");
        assert!(text("weir.destination.stalled", json!({})).contains("destination stalled"));
        assert!(text("weir.later.type_of", json!({})).contains("later type_of"), "an unknown type");
    }

    #[test]
    fn an_overview_shows_what_is_wrong_too() {
        let row = |destination: Value, figures: Value| {
            let row = overview_row(&destination, &figures);
            is_wrong(&row).then(|| table().with([row_of_overview(&row)]).render(Screen::PLAIN))
        };
        assert_eq!(row(json!({}), json!({"undelivered": 0})), None);
        let open = row(json!({"breaker_state": "open", "breaker_reason": "refused"}), json!({})).unwrap();
        assert!(open.contains("breaker open") && open.contains("refused, 2 dead letters"), "{open}");
        let never = row(json!({}), json!({"undelivered": 0, "drains": false})).unwrap();
        assert!(never.contains("look at it") && never.contains("never drains"), "{never}");
    }
}
