//! API keys: the list, a new key, whose secret is shown once, and deletion.

use askama::Template;
use axum::extract::Query;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::{ApiKey, CreatedApiKey, List};

use crate::{
    client::{ApiPath, Call, append},
    delivery_filter::instant,
    example::Example,
    faults::Faults,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    path_id::PathId,
    refusal::Refusal,
    units::{At, Units as _},
    visit::{Answered, Visit},
};

/// The roles, with what each may do.
const ROLES: [(&str, &str); 4] = [
    ("ingest", "posts events"),
    ("read", "reads everything except secrets"),
    ("operate", "also posts events, and changes destinations and deliveries"),
    ("admin", "may do everything"),
];

/// What was typed into the form.
#[derive(Debug, Default)]
struct Typed {
    name: String,
    role: String,
    tenants: String,
    expires: String,
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    frame: Frame,
    page: List<ApiKey>,
    cursor: String,
    created: Option<CreatedApiKey>,
    faults: Faults,
    typed: Typed,
    /// Makes a form that is sent twice create one key.
    form: String,
    example: Example,
    now: At,
}

impl KeysPage {
    fn path(&self) -> String {
        format!("{}/keys", self.frame.base())
    }

    fn first(&self) -> Option<String> {
        (!self.cursor.is_empty()).then(|| self.path())
    }

    fn next(&self) -> Option<String> {
        let mut link = self.path();
        append(&mut link, "cursor", self.page.next_cursor.as_deref()?);
        Some(link)
    }

    fn has_expired(&self, key: &ApiKey) -> bool {
        key.expires_at.is_some_and(|at| at <= self.now.0)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListQuery {
    cursor: String,
}

pub(crate) async fn show(visit: Visit, Query(query): Query<ListQuery>) -> Answered {
    let page = read(&visit, query.cursor).await?;
    visit.page(&page)
}

async fn read(visit: &Visit, cursor: String) -> Result<KeysPage, Refusal> {
    let path = ApiPath::of(["keys"]).with("cursor", &cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    // A key that is bound to tenants makes keys only for some of them.
    let tenants = me.tenants.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
    let now = visit.site.clock.now();
    Ok(KeysPage {
        example: Example::new(visit, &me),
        frame: visit.frame(me, Section::Keys, "Keys"),
        page,
        cursor,
        created: None,
        faults: Faults::default(),
        typed: Typed { role: "read".to_owned(), tenants, ..Typed::default() },
        form: format!("form-{}", now.as_nanos()),
        now: At(now),
    })
}

/// Creates a key and shows its secret. The answer is not a redirect, because the secret must be stored nowhere.
pub(crate) async fn create(visit: Visit, fields: Fields) -> Answered {
    let text = |name: &str| fields.text(name).to_owned();
    let typed = Typed { name: text("name"), role: text("role"), tenants: text("tenants"), expires: text("expires") };
    let tenants: Vec<&str> = typed.tenants.split(',').map(str::trim).filter(|tenant| !tenant.is_empty()).collect();
    let body = json!({
        "name": typed.name,
        "role": typed.role,
        "tenants": if tenants.is_empty() { Value::Null } else { json!(tenants) },
        "expires_at": if typed.expires.is_empty() { Value::Null } else { json!(instant(&typed.expires)) },
    });
    let call = Call::new(Method::POST, &ApiPath::of(["keys"])).json(&body)?;
    let answer = visit.api.send(&call.idempotency_key(fields.text("form"))?).await;
    let (status, created, faults) = match answer {
        Ok(answer) => (StatusCode::CREATED, Some(answer.read::<CreatedApiKey>()?), Faults::default()),
        Err(refusal) if [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::CONFLICT].contains(&refusal.status) => {
            (refusal.status, None, Faults::of(&refusal, field_at))
        }
        Err(refusal) => return Err(refusal),
    };
    let mut page = read(&visit, String::new()).await?;
    if !faults.is_empty() {
        page.typed = typed;
    }
    visit.page_with(status, &KeysPage { created, faults, ..page })
}

/// The field that has the value at a JSON pointer.
fn field_at(pointer: &str) -> Option<(String, String)> {
    let (name, label) = match pointer.split('/').nth(1)? {
        "name" => ("name", "Name"),
        "role" => ("role", "Role"),
        "tenants" => ("tenants", "Tenants"),
        "expires_at" => ("expires", "Expires"),
        _ => return None,
    };
    Some((name.to_owned(), label.to_owned()))
}

pub(crate) async fn delete(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    if !fields.is_ticked("sure") {
        return visit.redirect("/keys", Some(Flash::error("Nothing was deleted: tick the box first.")));
    }
    let call = Call::new(Method::DELETE, &ApiPath::of(["keys", &id]));
    let answer = visit.api.send(&call).await;
    visit.after("/keys", answer, |_| "The key is deleted, and refused everywhere within a second.".to_owned())
}
