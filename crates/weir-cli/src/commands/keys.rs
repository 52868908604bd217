//! `weir keys`.

use reqwest::Method;
use serde_json::Value;
use weir_api_types::{ApiKey, CreatedApiKey};
use weir_core::Timestamp;

use super::{
    Call,
    client::{Fields, Request},
    confirm, fields,
};
use crate::{
    flags::api::KeyCommand as Command,
    output::{
        table::{Cell, Column, Table},
        texts::{NONE, age, joined},
    },
};

const LIST: [&str; 2] = ["v1", "keys"];

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { page } => {
            call.print_rows(&call.list(&LIST, &Fields::new(), page).await?, table(), |key| row(key, call.now))
        }
        Command::Create(key) => {
            let body = Value::Object(fields(&key)?).to_string();
            let answer = call.client.post(&LIST, Some(&body)).await?;
            call.print(&answer, |CreatedApiKey { key, secret }| {
                format!("Created {} ({}). The key, which is shown only now:\n{secret}", key.name, key.id)
            })
        }
        Command::Delete { id, consent } => {
            confirm(consent, &format!("Delete the key {id}? Whoever uses it is refused within a second."))?;
            call.client.send(Request::new(Method::DELETE, &["v1", "keys", &id])).await?;
            call.say(&format!("Deleted {id}."))
        }
    }
}

pub(super) fn table() -> Table<8> {
    Table::new([
        Column::text("id"),
        Column::text("name").flexible(),
        Column::text("role"),
        Column::number("age"),
        Column::number("last used").or("used"),
        Column::text("made by").flexible().optional(),
        Column::text("tenants").flexible().optional(),
        Column::text("expires").flexible().optional(),
    ])
}

pub(super) fn row(key: ApiKey, now: Timestamp) -> [Cell; 8] {
    let tenants = key.tenants.as_deref().map_or_else(|| "all".to_owned(), joined);
    let expires = match key.expires_at {
        None => NONE.to_owned(),
        Some(at) if at <= now => "expired".to_owned(),
        Some(at) => at.to_string(),
    };
    // Uses are recorded now and then, so a key may have been used although none is.
    let used = key.last_used_at.map_or_else(|| NONE.to_owned(), |at| age(at, now));
    [
        key.id.into(),
        key.name.into(),
        key.role.into(),
        age(key.created_at, now).into(),
        used.into(),
        key.created_by.as_deref().unwrap_or(NONE).into(),
        tenants.into(),
        Cell::state(&expires),
    ]
}
