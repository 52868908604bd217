//! `weir deliveries`.

use reqwest::Method;
use serde_json::Value;
use weir_api_types::{Attempt, Delivery, DeliveryDetail, DeliveryGroup, DeliveryGroups, DiscardCount, Discarded};
use weir_core::Timestamp;

use super::{
    Call,
    client::{Answer, Client, Fields, Request},
    confirm, fields,
    names::Names,
    records::{answer, waits, waits_for},
    settings,
};
use crate::{
    flags::api::{DeliveryCommand as Command, DeliveryFilter},
    output::{
        Screen,
        table::{Cell, Column, Table},
        texts::{age, clean, count, or_none},
    },
};

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { filter, limit_key, event, state, oldest, page } => {
            let mut query = by_id(&call.client, &filter).await?;
            let order = oldest.then_some("oldest");
            let own = serde_json::json!({"event": event, "state": state, "order": order, "limit_key": limit_key});
            query.extend(fields(&own)?);
            let rows = call.list(&["v1", "deliveries"], &query, page).await?;
            // All deliveries of a filter by destination have the same one.
            let names = match filter.destination {
                None if !call.json => names_of(call, &rows.read::<Delivery>()?).await,
                _ => Names::default(),
            };
            call.print_rows(&rows, table(filter.destination.is_some()), |delivery| row(delivery, &names, call.now))
        }
        Command::Groups { filter, state } => {
            let mut query = by_id(&call.client, &filter).await?;
            query.extend(fields(&serde_json::json!({"state": state}))?);
            let answer = call.client.get(&["v1", "deliveries", "groups"], &query).await?;
            call.print(&answer, |found: DeliveryGroups| groups_text(found, call.screen, call.now))
        }
        Command::Show { id } => {
            let answer = call.client.get(&["v1", "deliveries", &id], &Fields::new()).await?;
            let names = match call.json {
                true => Names::default(),
                false => names_of(call, &[answer.read::<DeliveryDetail>()?.delivery]).await,
            };
            call.print(&answer, |delivery| shown(&delivery, &names, call.screen))
        }
        Command::Retry { ids } => act(call, &ids, "retry", "Due now").await,
        Command::Cancel { ids } => act(call, &ids, "cancel", "Cancelled").await,
        Command::Discard { ids, filter, states, reason, dry_run, consent } => {
            let reason = fields(&serde_json::json!({ "reason": reason }))?;
            if !ids.is_empty() {
                return discard(call, &ids, &reason).await;
            }
            let mut body = by_id(&call.client, &filter).await?;
            if !states.is_empty() {
                body.insert("states".to_owned(), states.into());
            }
            body.extend(reason);
            let body = Value::Object(body).to_string();
            let counted = discard_all(call, &body, true).await?;
            if dry_run {
                return call
                    .print(&counted, |counted: DiscardCount| format!("{} would be discarded.", letters(&counted)));
            }
            confirm(consent, &format!("Discard {}?", letters(&counted.read()?)))?;
            call.print(&discard_all(call, &body, false).await?, |Discarded { discarded }| {
                format!("Discarded {}.", count(discarded, "dead letter", "dead letters"))
            })
        }
    }
}

fn letters(DiscardCount { total, capped }: &DiscardCount) -> String {
    let counted = count(*total, "dead letter", "dead letters");
    if *capped { format!("{counted} or more") } else { counted }
}

async fn discard(call: &Call, ids: &[String], reason: &Fields) -> anyhow::Result<()> {
    for id in ids {
        let body = Value::Object(reason.clone()).to_string();
        let path = ["v1", "deliveries", id, "discard"];
        let request = Request { body: Some(&body), ..Request::new(Method::POST, &path) };
        let answer = call.client.send(request).await?;
        call.print(&answer, |DeliveryDetail { delivery, .. }| format!("Discarded: {}", delivery.id))?;
    }
    Ok(())
}

async fn discard_all(call: &Call, body: &str, dry_run: bool) -> anyhow::Result<Answer> {
    let query = Fields::from_iter([("dry_run".to_owned(), dry_run.into())]);
    let path = ["v1", "deliveries", "discard"];
    call.client.send(Request { body: Some(body), query: &query, ..Request::new(Method::POST, &path) }).await
}

/// The filter, with the id of a destination that is named.
pub(super) async fn by_id(client: &Client, filter: &DeliveryFilter) -> anyhow::Result<Fields> {
    let mut query = fields(filter)?;
    if let Some(named) = &filter.destination {
        query.insert("destination".to_owned(), client.destination_id(named).await?.into());
    }
    Ok(query)
}

/// The names of the destinations of these deliveries.
pub(super) async fn names_of(call: &Call, deliveries: &[Delivery]) -> Names {
    Names::of(&call.client, deliveries.iter().map(|delivery| delivery.destination_id.as_str())).await
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

/// A list of deliveries, without their destination if it is the same for all.
pub(super) fn table(is_of_one: bool) -> Table<7> {
    Table::new([
        Column::text("id"),
        Column::text("state"),
        Column::number("attempts").or("tries"),
        Column::text("answer"),
        Column::text("destination").flexible().hidden_if(is_of_one),
        Column::text("event type").or("type").flexible().optional(),
        Column::number("age"),
    ])
}

pub(super) fn row(delivery: Delivery, names: &Names, now: Timestamp) -> [Cell; 7] {
    let (answer, age) = (or_none(answer(&delivery)), age(delivery.created_at, now));
    let Delivery { id, state, attempt_count, event_type, destination_id, .. } = delivery;
    let destination = names.title(&destination_id);
    [
        id.into(),
        Cell::state(&state),
        attempt_count.into(),
        answer.into(),
        destination.into(),
        event_type.into(),
        age.into(),
    ]
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

fn shown(DeliveryDetail { delivery, attempts }: &DeliveryDetail, names: &Names, screen: Screen) -> String {
    let mut lines = vec![
        ("event", format!("{} ({})", delivery.event_id, delivery.event_type)),
        ("destination", names.label(&delivery.destination_id)),
        ("state", delivery.state.clone()),
        ("created", delivery.created_at.to_string()),
        ("changed", delivery.updated_at.to_string()),
    ];
    lines.extend(delivery.limit_key.as_ref().map(|key| match &**key {
        "" => ("limit key", "none".to_owned()),
        key => ("limit key", clean(key)),
    }));
    lines.extend((delivery.cost > 1).then(|| ("cost", delivery.cost.to_string())));
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
