//! `weir events`.

use serde_json::value::RawValue;
use weir_api_types::{AcceptedEvent, Event, EventDetail};
use weir_core::Timestamp;

use super::{Call, client::Fields, deliveries, fields, names::Names, read_file, settings};
use crate::{
    exit::Misuse,
    flags::api::{EventCommand as Command, PostArgs},
    output::{
        json,
        table::{Cell, Column, Table},
        texts::{age, clean, count, or_none},
    },
};

const LIST: [&str; 2] = ["v1", "events"];

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Post(args) => post(call, args).await,
        Command::List { filter, page } => {
            let rows = call.list(&LIST, &fields(&filter)?, page).await?;
            call.print_rows(&rows, table(), |event| row(event, call.now))
        }
        Command::Show { id } => {
            let answer = call.client.get(&["v1", "events", &id], &Fields::new()).await?;
            let names = match call.json {
                true => Names::default(),
                false => deliveries::names_of(call, &answer.read::<EventDetail>()?.deliveries).await,
            };
            call.print(&answer, |event| shown(event, &names, call))
        }
    }
}

/// The data is sent as it is written: it is not parsed into numbers and back.
async fn post(call: &Call, args: PostArgs) -> anyhow::Result<()> {
    let (text, named_by) = match (&args.data, &args.file) {
        (Some(data), _) => (data.clone(), "DATA"),
        (None, Some(file)) => (read_file(file, "--file")?, "--file"),
        (None, None) => ("null".to_owned(), "DATA"),
    };
    let data: &RawValue =
        serde_json::from_str(&text).map_err(|error| Misuse(format!("the data is no JSON ({named_by}): {error}")))?;
    let mut rest = fields(&args.event)?;
    if !args.destinations.is_empty() {
        let mut ids = Vec::new();
        for named in &args.destinations {
            ids.push(call.client.destination_id(named).await?);
        }
        rest.insert("destinations".to_owned(), ids.into());
    }
    let rest = serde_json::Value::Object(rest).to_string();
    // An object with at least the type.
    let body = format!("{},\"data\":{}}}", rest.trim_end_matches('}'), data.get());
    let answer = call.client.post(&LIST, Some(&body)).await?;
    call.print(&answer, |event: AcceptedEvent| {
        let deliveries = count(event.deliveries.into(), "delivery", "deliveries");
        match event.duplicate {
            false => format!("{}: {deliveries}", event.id),
            true => format!("{}: already posted with this idempotency key, {deliveries}", event.id),
        }
    })
}

pub(super) fn table() -> Table<5> {
    Table::new([
        Column::text("id"),
        Column::text("type").flexible(),
        Column::text("tenant").flexible().optional(),
        Column::text("idempotency key").or("key").flexible().optional(),
        Column::number("age"),
    ])
}

pub(super) fn row(event: Event, now: Timestamp) -> [Cell; 5] {
    let age = age(event.created_at, now);
    [event.id.into(), event.event_type.into(), event.tenant.into(), or_none(event.idempotency_key).into(), age.into()]
}

fn shown(EventDetail { event, deliveries }: EventDetail, names: &Names, call: &Call) -> String {
    let mut lines =
        vec![("type", event.event_type), ("tenant", event.tenant), ("created", event.created_at.to_string())];
    lines.extend(event.deliver_at.map(|at| ("deliver at", at.to_string())));
    lines.extend(event.expires_at.map(|at| ("expires", at.to_string())));
    lines.extend(event.cost.map(|cost| ("cost", cost.to_string())));
    let keys = [
        ("idempotency key", event.idempotency_key),
        ("coalesce key", event.coalesce_key),
        ("ordering key", event.ordering_key),
        ("limit key", event.limit_key),
    ];
    lines.extend(keys.into_iter().filter_map(|(name, key)| Some((name, key?))));
    let mut text = format!("{}\n{}", event.id, settings::render(&lines, call.screen));
    if let Some(data) = &event.data {
        let data: Vec<_> = json::pretty(data.get()).lines().map(clean).collect();
        text = format!("{text}\n\n{}", data.join("\n"));
    }
    let rows = deliveries.into_iter().map(|delivery| deliveries::row(delivery, names, call.now));
    format!("{text}\n\n{}", deliveries::table(false).with(rows).render(call.screen))
}
