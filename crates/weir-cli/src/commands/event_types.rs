//! `weir event-types`: the catalogue of event types.

use std::{collections::BTreeSet, path::Path};

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::EventType;
use weir_core::Timestamp;

use super::{
    Call,
    client::{Answer, Fields, Request},
    confirm, fields, read_file, settings,
};
use crate::{
    exit::Misuse,
    flags::event_types::{EventTypeCommand as Command, EventTypeParts},
    output::{
        table::{Cell, Column, Table},
        texts::{NONE, age, clean, count},
    },
};

const LIST: [&str; 2] = ["v1", "event-types"];

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { q, page } => {
            let rows = call.list(&LIST, &fields(&json!({"q": q}))?, page).await?;
            call.print_rows(&rows, table(), |found| row(&found, call.now))
        }
        Command::Show { name } => {
            let answer = call.client.get(&path(&name), &Fields::new()).await?;
            call.print(&answer, |found| shown(&found, call))
        }
        Command::Set { name, parts } => {
            let answer = set(call, &name, parts).await?;
            call.print(&answer, |found| shown(&found, call))
        }
        Command::Apply { file, delete_others, consent } => {
            let wanted = declared(&read_file(&file, "FILE")?)?;
            if delete_others {
                confirm(consent, "Delete all types that the file does not have?")?;
            }
            apply(call, wanted, delete_others).await
        }
        Command::Delete { name, consent } => {
            confirm(consent, &format!("Delete {name}? A strict server refuses its events within a second."))?;
            call.client.send(Request::new(Method::DELETE, &path(&name))).await?;
            call.say(&format!("Deleted {name}."))
        }
    }
}

fn path(name: &str) -> [&str; 3] {
    [LIST[0], LIST[1], name]
}

/// The API replaces the whole type, so the parts that are not named are sent as they are.
async fn set(call: &Call, name: &str, parts: EventTypeParts) -> anyhow::Result<Answer> {
    let EventTypeParts { description, example, schema } = parts;
    let (known, if_match) = match call.client.get(&path(name), &Fields::new()).await {
        Ok(answer) => (answer.read::<Value>()?, answer.etag),
        // There is no such type yet. If it is another error, the request below meets it too.
        Err(error) if error.is::<Misuse>() => (json!({}), None),
        Err(error) => return Err(error),
    };
    let mut body = body_of(&known);
    if let Some(description) = description {
        body["description"] = description.into();
    }
    for (field, flag, file) in [("example", "--example", example), ("schema", "--schema", schema)] {
        if let Some(file) = file {
            body[field] =
                if file == Path::new("none") { Value::Null } else { json_of(&read_file(&file, flag)?, flag)? };
        }
    }
    put(call, name, &body, if_match.as_deref()).await
}

/// What of a type is set, without what the server adds.
fn body_of(known: &Value) -> Value {
    json!({"description": known["description"], "example": known["example"], "schema": known["schema"]})
}

async fn put(call: &Call, name: &str, body: &Value, if_match: Option<&str>) -> anyhow::Result<Answer> {
    let body = body.to_string();
    call.client.send(Request { body: Some(&body), if_match, ..Request::new(Method::PUT, &path(name)) }).await
}

fn json_of(text: &str, from: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(text).map_err(|error| Misuse(format!("this is no JSON ({from}): {error}")))?)
}

#[derive(Debug, Deserialize)]
struct Declared {
    name: String,
    #[serde(flatten)]
    rest: Value,
}

/// The types of a file. What the server adds to a type is left out.
fn declared(text: &str) -> anyhow::Result<Vec<(String, Value)>> {
    let wrong = |error| Misuse(format!("the file is no JSON array of types with a `name` each: {error}"));
    let types: Vec<Declared> = serde_json::from_str(text).map_err(wrong)?;
    let mut names = BTreeSet::new();
    if let Some(twice) = types.iter().find(|declared| !names.insert(declared.name.as_str())) {
        return Err(Misuse(format!("the file has `{}` twice", twice.name)).into());
    }
    let without = |mut rest: Value| {
        if let Value::Object(fields) = &mut rest {
            fields.retain(|field, _| !["created_at", "updated_at"].contains(&field.as_str()));
        }
        rest
    };
    Ok(types.into_iter().map(|declared| (declared.name, without(declared.rest))).collect())
}

/// Types that are as the file says are not changed, so a file can be applied again and again.
async fn apply(call: &Call, wanted: Vec<(String, Value)>, delete_others: bool) -> anyhow::Result<()> {
    let known: Vec<Value> = call.client.list(&LIST, &Fields::new(), usize::MAX).await?.read()?;
    let find = |name: &str| known.iter().find(|known| known["name"] == name);
    let (mut changed, mut deleted) = (0, 0);
    for (name, body) in &wanted {
        let is_same = find(name).is_some_and(|known| {
            body_of(known) == {
                let mut body = body_of(body);
                if body["description"].is_null() {
                    body["description"] = "".into();
                }
                body
            } && body.as_object().is_some_and(|fields| fields.len() <= 3)
        });
        if !is_same {
            put(call, name, body, None).await.map_err(|error| named(error, name))?;
            changed += 1;
        }
    }
    let others = known.iter().filter_map(|known| known["name"].as_str()).filter(|_| delete_others);
    for name in others.filter(|name| !wanted.iter().any(|(wanted, _)| wanted == name)) {
        call.client.send(Request::new(Method::DELETE, &path(name))).await?;
        deleted += 1;
    }
    let same = wanted.len() as u64 - changed;
    let types = |many| count(many, "type", "types");
    call.say(&format!("{} added or changed, {same} as before, {deleted} deleted.", types(changed)))
}

/// The name of a type in front of its refusal, which stays a misuse.
fn named(error: anyhow::Error, name: &str) -> anyhow::Error {
    match error.downcast::<Misuse>() {
        Ok(Misuse(text)) => Misuse(format!("{name}: {text}")).into(),
        Err(error) => error.context(name.to_owned()),
    }
}

pub(super) fn table() -> Table<4> {
    Table::new([
        Column::text("type").flexible(),
        Column::text("description").flexible(),
        Column::text("has").flexible().optional(),
        Column::number("changed"),
    ])
}

pub(super) fn row(found: &EventType, now: Timestamp) -> [Cell; 4] {
    let has = [("example", found.example.is_some()), ("schema", found.schema.is_some())];
    let has: Vec<_> = has.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
    let has = if has.is_empty() { NONE.to_owned() } else { has.join(", ") };
    let description = found.description.lines().next().unwrap_or_default();
    [found.name.as_str().into(), clean(description).into(), has.into(), age(found.updated_at, now).into()]
}

fn shown(found: &EventType, call: &Call) -> String {
    let lines = [("changed", found.updated_at.to_string()), ("created", found.created_at.to_string())];
    let mut text = format!("{}\n{}", clean(&found.name), settings::render(&lines, call.screen));
    for line in found.description.lines() {
        text.push_str(&format!("\n  {}", clean(line)));
    }
    for (title, value) in [("Example", &found.example), ("Schema", &found.schema)] {
        if let Some(value) = value {
            text.push_str(&format!("\n\n{title}\n{value:#}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_each_type_once_without_what_the_server_adds() {
        let file = r#"[{"name": "a", "description": "d", "created_at": "2026-01-01T00:00:00Z"}, {"name": "b"}]"#;
        let expected = [("a".to_owned(), json!({"description": "d"})), ("b".to_owned(), json!({}))];
        assert_eq!(declared(file).unwrap(), expected);
        for (wrong, says) in [
            (r#"[{"name": "a"}, {"name": "a"}]"#, "has `a` twice"),
            (r#"{"a": {}}"#, "no JSON array"),
            (r#"[{"description": "d"}]"#, "name"),
        ] {
            let error = declared(wrong).unwrap_err();
            assert!(error.is::<Misuse>() && error.to_string().contains(says), "{error}");
        }
    }
}
