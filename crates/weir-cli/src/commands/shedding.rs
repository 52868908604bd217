//! `weir shedding`: what is refused under overload, and the limits.

use reqwest::Method;
use serde_json::{Map, Value, json};
use weir_api_types::{ShedClassNow, ShedClientNow, Shedding, SheddingNow};

use super::{
    Call,
    client::{Answer, Fields, Request},
    settings,
};
use crate::{
    exit::Misuse,
    flags::watch::{ShedLimit, ShedLimits, SheddingCommand},
    output::{
        Screen,
        table::{Cell, Column, Table},
        texts::NONE,
    },
};

const PATH: [&str; 2] = ["v1", "shedding"];

pub(super) async fn run(call: &Call, command: Option<SheddingCommand>) -> anyhow::Result<()> {
    let answer = match command {
        None => call.client.get(&PATH, &Fields::new()).await?,
        Some(SheddingCommand::Set(limits)) => set(call, limits).await?,
    };
    call.print(&answer, |shedding| text(&shedding, call.screen))
}

/// Sets the named limits. The API replaces all of them, so the others are sent as they are.
async fn set(call: &Call, limits: ShedLimits) -> anyhow::Result<Answer> {
    let mut fields: Map<String, Value> = call.client.get(&PATH, &Fields::new()).await?.read()?;
    fields.remove("now");
    let body = changed(Value::Object(fields), limits)?.to_string();
    call.client.send(Request { body: Some(&body), ..Request::new(Method::PUT, &PATH) }).await
}

fn changed(mut body: Value, limits: ShedLimits) -> anyhow::Result<Value> {
    let ShedLimits { mode, target_ms, class, client } = limits;
    if mode.is_none() && target_ms.is_none() && class.is_empty() && client.is_empty() {
        return Err(Misuse("nothing to set: give at least one limit, such as --class heavy=4".into()).into());
    }
    if let Some(mode) = mode {
        body["mode"] = if mode == "auto" { Value::Null } else { mode.into() };
    }
    if let Some(target_ms) = target_ms {
        body["target_ms"] = target_ms.into();
    }
    for ShedLimit { of, limit } in class {
        // An unknown class is refused by the server, which names those that there are.
        body["classes"][of] = json!({"in_flight": limit.map(|(in_flight, _)| in_flight)});
    }
    for ShedLimit { of, limit } in client {
        let limit = limit.map(|(in_flight, weight)| json!({"in_flight": in_flight, "weight": weight.unwrap_or(1)}));
        if of == "default" {
            body["clients"]["default"] = limit.unwrap_or(Value::Null);
            continue;
        }
        let kind = if of.starts_with("key_") { "key" } else { "tenant" };
        if let Some(overrides) = body["clients"]["overrides"].as_array_mut() {
            overrides.retain(|known| known[kind] != of);
            overrides.extend(limit.map(|mut limit| {
                limit[kind] = of.into();
                limit
            }));
        }
    }
    Ok(body)
}

fn text(shedding: &Shedding, screen: Screen) -> String {
    let SheddingNow { mode, level, blind, processes, classes, clients } = &shedding.now;
    let state = match level {
        0 => "none".to_owned(),
        1 => "level 1: heavy requests are refused".to_owned(),
        2 => "level 2: heavy requests and reads are refused".to_owned(),
        _ => format!("level {level}: heavy requests and reads are refused, and events are bounded"),
    };
    let seen = if *blind { "; the queue does not answer, so each process counts alone" } else { "" };
    let lines = [
        ("mode", mode.clone()),
        ("pressure", state),
        ("target", format!("an event waits at most {} ms for the store", shedding.target_ms)),
        ("processes", format!("{processes}{seen}")),
    ];
    let classes = class_table().with(classes.iter().map(class_row)).render(screen);
    let clients = client_table().with(clients.iter().map(client_row)).render(screen);
    let lines = settings::render(&lines, screen);
    format!("Requests in the process that answered\n{lines}\n\n{classes}\n\n{clients}")
}

fn class_table() -> Table<6> {
    Table::new([
        Column::text("class"),
        Column::number("in flight"),
        Column::number("limit"),
        Column::number("p99 of peaks").or("p99"),
        Column::number("highest"),
        Column::number("suggested limit").or("suggested"),
    ])
}

fn class_row(of: &ShedClassNow) -> [Cell; 6] {
    [
        of.class.clone().into(),
        of.in_flight.to_string().into(),
        of.limit.to_string().into(),
        of.peaks.peak_p99.to_string().into(),
        of.peaks.peak_max.to_string().into(),
        or_none(of.peaks.suggested).into(),
    ]
}

fn client_table() -> Table<6> {
    Table::new([
        Column::text("client").flexible(),
        Column::number("in flight"),
        Column::number("limit"),
        Column::number("highest"),
        Column::number("suggested limit").or("suggested"),
        Column::number("refused"),
    ])
}

fn client_row(of: &ShedClientNow) -> [Cell; 6] {
    [
        of.name.clone().into(),
        of.in_flight.to_string().into(),
        or_none(of.limit).into(),
        of.peaks.peak_max.to_string().into(),
        or_none(of.peaks.suggested).into(),
        of.refused.to_string().into(),
    ]
}

fn or_none(number: Option<u32>) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::watch::Threshold;

    #[test]
    fn named_limits_are_changed_and_the_others_stay() {
        let known = json!({
            "mode": null, "target_ms": 250, "classes": {"heavy": {"in_flight": null}, "read": {"in_flight": 90}},
            "clients": {"default": {"in_flight": 7, "weight": 1}, "overrides": [{"tenant": "a"}, {"tenant": "b"}]},
        });
        let limit = |of: &str, limit| ShedLimit { of: of.to_owned(), limit };
        let limits = ShedLimits {
            mode: Some("dry-run".to_owned()),
            target_ms: None,
            class: vec![limit("heavy", Some((Threshold(Some(4)), None)))],
            client: vec![limit("a", None), limit("b", Some((Threshold(Some(32)), Some(4))))],
        };
        let expected = json!({
            "mode": "dry-run", "target_ms": 250, "classes": {"heavy": {"in_flight": 4}, "read": {"in_flight": 90}},
            "clients": {
                "default": {"in_flight": 7, "weight": 1},
                "overrides": [{"tenant": "b", "in_flight": 32, "weight": 4}],
            },
        });
        assert_eq!(changed(known, limits).unwrap(), expected);
    }
}
