//! `weir deliveries`.

use weir_api_types::{Attempt, Delivery, DeliveryDetail, DeliveryGroup, DeliveryGroups};
use weir_core::Timestamp;

use super::{
    Call,
    client::{Client, Fields},
    fields,
    records::{answer, waits, waits_for},
    settings,
};
use crate::{
    cli::api::{DeliveryCommand as Command, DeliveryFilter},
    commands::output::{
        Screen,
        table::{Cell, Column, Table},
        texts::{age, clean, or_none},
    },
};

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { filter, event, state, oldest, page } => {
            let mut query = by_id(&call.client, &filter).await?;
            let order = oldest.then_some("oldest");
            query.extend(fields(&serde_json::json!({"event": event, "state": state, "order": order}))?);
            let rows = call.list(&["v1", "deliveries"], &query, page).await?;
            call.print_rows(&rows, table(), |delivery| row(delivery, call.now))
        }
        Command::Groups { filter, state } => {
            let mut query = by_id(&call.client, &filter).await?;
            query.extend(fields(&serde_json::json!({"state": state}))?);
            let answer = call.client.get(&["v1", "deliveries", "groups"], &query).await?;
            call.print(&answer, |found: DeliveryGroups| groups_text(found, call.screen, call.now))
        }
        Command::Show { id } => {
            let answer = call.client.get(&["v1", "deliveries", &id], &Fields::new()).await?;
            call.print(&answer, |delivery| shown(&delivery, call.screen))
        }
        Command::Retry { ids } => act(call, &ids, "retry", "Due now").await,
        Command::Cancel { ids } => act(call, &ids, "cancel", "Cancelled").await,
    }
}

/// The filter, with the id of a destination that is named.
pub(super) async fn by_id(client: &Client, filter: &DeliveryFilter) -> anyhow::Result<Fields> {
    let mut query = fields(filter)?;
    if let Some(named) = &filter.destination {
        query.insert("destination".to_owned(), client.destination_id(named).await?.into());
    }
    Ok(query)
}

async fn act(call: &Call, ids: &[String], action: &str, done: &str) -> anyhow::Result<()> {
    for id in ids {
        let answer = call.client.post(&["v1", "deliveries", id, action], None).await?;
        call.print(&answer, |DeliveryDetail { delivery, .. }| {
            format!("{done}: {}{}", delivery.id, waits(delivery.waits_for.as_ref()))
        })?;
    }
    Ok(())
}

pub(super) fn table() -> Table<6> {
    Table::new([
        Column::text("id"),
        Column::text("state"),
        Column::number("attempts").or("tries"),
        Column::text("answer"),
        Column::text("event type").or("type").flexible(),
        Column::number("age"),
    ])
}

pub(super) fn row(delivery: Delivery, now: Timestamp) -> [Cell; 6] {
    let (answer, age) = (or_none(answer(&delivery)), age(delivery.created_at, now));
    let Delivery { id, state, attempt_count, event_type, .. } = delivery;
    [id.into(), Cell::state(&state), attempt_count.into(), answer.into(), event_type.into(), age.into()]
}

fn groups_text(found: DeliveryGroups, screen: Screen, now: Timestamp) -> String {
    let rows = found.data.into_iter().map(|group| group_row(group, now));
    let table = groups_table().with(rows).render(screen);
    if found.capped {
        return format!("{table}\nOnly the newest {} deliveries were counted.", found.scanned);
    }
    table
}

pub(super) fn groups_table() -> Table<6> {
    Table::new([
        Column::number("deliveries"),
        Column::text("state"),
        Column::text("error").flexible(),
        Column::text("destination").flexible(),
        Column::number("newest"),
        Column::text("example"),
    ])
}

pub(super) fn group_row(group: DeliveryGroup, now: Timestamp) -> [Cell; 6] {
    [
        group.deliveries.into(),
        Cell::state(&group.state),
        or_none(group.error).into(),
        if group.destination_name.is_empty() { group.destination_id } else { group.destination_name }.into(),
        age(group.newest_at, now).into(),
        group.example_id.into(),
    ]
}

fn shown(DeliveryDetail { delivery, attempts }: &DeliveryDetail, screen: Screen) -> String {
    let mut lines = vec![
        ("event", format!("{} ({})", delivery.event_id, delivery.event_type)),
        ("destination", delivery.destination_id.clone()),
        ("state", delivery.state.clone()),
        ("created", delivery.created_at.to_string()),
        ("changed", delivery.updated_at.to_string()),
    ];
    lines.extend(delivery.next_attempt_at.map(|at| ("due", at.to_string())));
    lines.extend(delivery.expected_at.map(|at| ("expected", at.to_string())));
    lines.extend(delivery.waits_for.as_ref().map(|waits_for| ("waits for", self::waits_for(waits_for))));
    lines.extend(delivery.expires_at.map(|at| ("expires", at.to_string())));
    lines.extend(delivery.last_error.clone().map(|error| ("last error", error)));
    let mut text = format!("{}\n{}", delivery.id, settings::render(&lines, screen));
    if !attempts.is_empty() {
        let rows = attempts.iter().map(attempt_row);
        text = format!("{text}\n\n{}", attempt_table().with(rows).render(screen));
    }
    if let Some(body) = attempts.last().and_then(|last| last.response_body.as_deref()).filter(|b| !b.is_empty()) {
        text = format!("{text}\n\nThe last answer:\n{}", body.lines().map(clean).collect::<Vec<_>>().join("\n"));
    }
    text
}

fn attempt_table() -> Table<6> {
    Table::new([
        Column::number("attempt").or("#"),
        Column::text("sent at"),
        Column::number("ms"),
        Column::text("status"),
        Column::text("outcome"),
        Column::text("error").flexible(),
    ])
}

fn attempt_row(attempt: &Attempt) -> [Cell; 6] {
    [
        attempt.number.into(),
        or_none(attempt.sent_at).into(),
        attempt.duration_ms.into(),
        or_none(attempt.status_code).into(),
        attempt.outcome.as_str().into(),
        or_none(attempt.error.as_deref()).into(),
    ]
}
