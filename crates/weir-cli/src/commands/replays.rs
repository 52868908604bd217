//! `weir replays`.

use reqwest::Method;
use serde_json::Value;
use weir_api_types::{Count, Replay};
use weir_core::Timestamp;

use super::{
    Call,
    client::{Answer, Fields, Request},
    confirm,
    deliveries::by_id,
    names::Names,
    records::waits,
    settings,
};
use crate::{
    flags::api::ReplayCommand as Command,
    output::{
        Screen,
        table::{Cell, Column, Table},
        texts::{age, count, joined, or_none, span_s},
    },
};

const LIST: [&str; 2] = ["v1", "replays"];

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create { filter, limit_key, states, dry_run, consent } => {
            let mut body = by_id(&call.client, &filter).await?;
            body.extend(limit_key.map(|key| ("limit_key".to_owned(), key.into())));
            if !states.is_empty() {
                body.insert("states".to_owned(), states.into());
            }
            let body = Value::Object(body).to_string();
            let counted = create(call, &body, true).await?;
            if dry_run {
                return call.print(&counted, |Count { total }| {
                    format!("{} would be sent again.", count(total, "delivery", "deliveries"))
                });
            }
            let Count { total } = counted.read()?;
            confirm(consent, &format!("Send {} again?", count(total, "delivery", "deliveries")))?;
            call.print(&create(call, &body, false).await?, |replay: Replay| {
                format!("Started: weir replays show {}{}", replay.id, waits(replay.waits_for.as_ref()))
            })
        }
        Command::List { page } => {
            let rows = call.list(&LIST, &Fields::new(), page).await?;
            let names = if call.json { Names::default() } else { names_of(call, &rows.read::<Replay>()?).await };
            call.print_rows(&rows, table(), |replay| row(&replay, &names, call.now))
        }
        Command::Show { id } => {
            let answer = call.client.get(&["v1", "replays", &id], &Fields::new()).await?;
            let names = if call.json { Names::default() } else { names_of(call, &[answer.read::<Replay>()?]).await };
            call.print(&answer, |replay| shown(&replay, &names, call.screen))
        }
        Command::Cancel { id } => {
            let answer = call.client.post(&["v1", "replays", &id, "cancel"], None).await?;
            call.print(&answer, |replay: Replay| {
                format!("Cancelled {}: {} were delivered before.", replay.id, replay.delivered)
            })
        }
    }
}

async fn create(call: &Call, body: &str, dry_run: bool) -> anyhow::Result<Answer> {
    let query = Fields::from_iter([("dry_run".to_owned(), dry_run.into())]);
    call.client.send(Request { body: Some(body), query: &query, ..Request::new(Method::POST, &LIST) }).await
}

/// The names of the destinations that these replays are limited to.
async fn names_of(call: &Call, replays: &[Replay]) -> Names {
    Names::of(&call.client, replays.iter().filter_map(|replay| replay.destination.as_deref())).await
}

pub(super) fn table() -> Table<9> {
    Table::new([
        Column::text("id"),
        Column::text("state"),
        Column::text("destination").flexible(),
        Column::number("total").optional(),
        Column::number("delivered").or("ok"),
        Column::number("failed").or("bad"),
        Column::number("remaining").or("left"),
        Column::number("eta"),
        Column::number("age").optional(),
    ])
}

pub(super) fn row(replay: &Replay, names: &Names, now: Timestamp) -> [Cell; 9] {
    [
        replay.id.as_str().into(),
        Cell::state(&replay.state),
        replay.destination.as_deref().map_or_else(|| "several".to_owned(), |id| names.title(id)).into(),
        replay.total.into(),
        replay.delivered.into(),
        replay.failed.into(),
        replay.remaining.into(),
        or_none(replay.eta_s.map(|eta| span_s(eta as f64))).into(),
        age(replay.created_at, now).into(),
    ]
}

fn shown(replay: &Replay, names: &Names, screen: Screen) -> String {
    let Replay { total, delivered, failed, cancelled, remaining, .. } = replay;
    let mut lines = vec![
        ("state", replay.state.clone()),
        ("deliveries", format!("{total}: {delivered} delivered, {failed} failed, {cancelled} cancelled")),
        ("remaining", remaining.to_string()),
    ];
    lines.extend(replay.eta_s.filter(|_| *remaining > 0).map(|eta| ("ends in", span_s(eta as f64))));
    lines.push(("created", replay.created_at.to_string()));
    lines.extend(replay.ended_at.map(|at| ("ended", at.to_string())));
    lines.push(("states", joined(&replay.states)));
    let filters = [
        ("destination", replay.destination.as_deref().map(|id| names.label(id))),
        ("tenant", replay.tenant.clone()),
        ("event type", replay.event_type.clone()),
        ("error", replay.error.clone()),
        ("from", replay.from.map(|at| at.to_string())),
        ("to", replay.to.map(|at| at.to_string())),
    ];
    lines.extend(filters.into_iter().filter_map(|(name, value)| Some((name, value?))));
    format!("{}\n{}", replay.id, settings::render(&lines, screen))
}
