//! Limit groups: the list with a form for a new group, and one group with the shares of its members, its limits and its
//! proof.

pub(crate) mod history;
pub(crate) mod live;

use askama::Template;
use axum::extract::Query;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::{Audit, LimitGroup, LimitGroupRow, List, Preview};

use self::live::{GroupText as _, Live, MemberText as _, PATH, ReservationText as _, may_change};
use super::destination::{
    limits::PreviewPart,
    limits_form::{ForecastText as _, Typed},
    proof::{AuditText as _, IntervalText as _, JudgedText as _},
};
use crate::{
    client::{ApiPath, Call, append},
    faults::{Faults, Refused},
    fields::Fields,
    flash::Flash,
    frame::{Also, Frame, Section},
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::{Drain, OverrideText as _},
    visit::{Answered, Visit},
};

/// The form of a group, with what was typed.
struct Editor {
    name: String,
    /// Of a new group; empty: the default one.
    tenant: String,
    for_all: bool,
    typed: Typed,
    etag: String,
    faults: Faults,
}

impl Editor {
    fn of(group: Option<&LimitGroup>, etag: String) -> Self {
        let limits = group.map_or(&[][..], |group| &group.rate_limits);
        Self {
            name: group.map(|group| group.name.clone()).unwrap_or_default(),
            tenant: String::new(),
            for_all: group.is_some_and(|group| group.tenant.is_none()),
            typed: Typed::of_limits(limits, None, group.and_then(|group| group.max_in_flight)),
            etag,
            faults: Faults::default(),
        }
    }

    fn read(fields: &Fields) -> Self {
        Self {
            name: fields.text("name").to_owned(),
            tenant: fields.text("tenant").to_owned(),
            for_all: fields.is_ticked("for_all"),
            typed: Typed::read(fields),
            etag: fields.text("etag").to_owned(),
            faults: Faults::default(),
        }
    }

    fn limits(&self) -> Value {
        let mut body = self.typed.body();
        json!({"rate_limits": body["rate_limits"].take()})
    }

    /// As the API takes it.
    fn body(&self) -> Value {
        let mut body = self.limits();
        body["name"] = self.name.as_str().into();
        body["max_in_flight"] = self.typed.body()["max_in_flight"].take();
        body
    }

    /// What the API refused, beside the fields that have it.
    fn refused(mut self, refusal: &Refusal) -> Self {
        self.faults = self.typed.faults_beside(refusal, &[("name", "Name"), ("tenant", "Tenant")]);
        self
    }
}

#[derive(Template)]
#[template(path = "limit_groups.html")]
struct ListPage {
    frame: Frame,
    page: List<LimitGroupRow>,
    is_later: bool,
    may_change: bool,
    may_for_all: bool,
    /// The tenants of a key that is bound to some.
    tenants: Option<Vec<String>>,
    editor: Editor,
}

impl ListPage {
    fn link(&self, cursor: &str) -> String {
        let mut link = format!("{}{PATH}", self.frame.base());
        append(&mut link, "cursor", cursor);
        link
    }

    fn first(&self) -> Option<String> {
        self.is_later.then(|| self.link(""))
    }

    fn next(&self) -> Option<String> {
        self.page.next_cursor.as_deref().map(|cursor| self.link(cursor))
    }
}

#[derive(Template)]
#[template(path = "limit_group.html")]
struct GroupPage {
    frame: Frame,
    live: Live,
    may_change: bool,
    editor: Editor,
    preview: Option<Preview>,
    for_a_while: Refused,
}

impl GroupPage {
    fn path(&self) -> String {
        self.live.path()
    }
}

#[derive(Template)]
#[template(path = "limit_group_proof.html")]
struct Proof {
    audit: Audit,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListQuery {
    cursor: String,
}

fn api_path(id: &str) -> ApiPath {
    ApiPath::of(["limit-groups", id])
}

pub(crate) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Answered {
    let page = read_list(&visit, query).await?;
    visit.page(&page)
}

async fn read_list(visit: &Visit, query: ListQuery) -> Result<ListPage, Refusal> {
    let path = ApiPath::of(["limit-groups"]).with("cursor", &query.cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    let (may_for_all, may_change) = (may_change(&me, None), may_change(&me, Some("")));
    let tenants = me.tenants.clone();
    let frame = visit.frame(me, Section::LimitGroups, "Limit groups");
    let editor = Editor::of(None, String::new());
    Ok(ListPage { frame, page, is_later: !query.cursor.is_empty(), may_change, may_for_all, tenants, editor })
}

pub(crate) async fn create(visit: Visit, fields: Fields) -> Answered {
    let editor = Editor::read(&fields);
    let mut body = editor.body();
    if editor.for_all {
        body["tenant"] = Value::Null;
    } else if !editor.tenant.is_empty() {
        body["tenant"] = editor.tenant.as_str().into();
    }
    match visit.api.post::<LimitGroup>(&ApiPath::of(["limit-groups"]), &body).await {
        Ok(made) => {
            let done =
                format!("{} is created. Put its name into the settings of the destinations that share it.", made.name);
            visit.redirect(&format!("{PATH}/{}", made.id), Some(Flash::done(done)))
        }
        Err(refusal) if is_shown(&refusal) => {
            let page = read_list(&visit, ListQuery::default()).await?;
            let page = ListPage { editor: editor.refused(&refusal), ..page };
            visit.page_with(refusal.status, &page)
        }
        Err(refusal) => Err(refusal),
    }
}

/// Whether a form is shown again with the refusal.
fn is_shown(refusal: &Refusal) -> bool {
    [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::CONFLICT, StatusCode::PRECONDITION_FAILED].contains(&refusal.status)
}

async fn read(visit: &Visit, id: &str) -> Result<GroupPage, Refusal> {
    let call = Call::get(&api_path(id));
    let (me, answer, live) = tokio::try_join!(visit.me(), visit.api.send(&call), live::read(visit, id))?;
    let group: LimitGroup = answer.read()?;
    let may_change = live.may_change;
    let editor = Editor::of(Some(&group), answer.etag().unwrap_or_default());
    let frame = visit.frame(me, Section::LimitGroups, &group.name).live(Also::Time.query());
    Ok(GroupPage { frame, live, may_change, editor, preview: None, for_a_while: Refused::default() })
}

/// The page with a refused override or hold.
pub(super) async fn refused_for_a_while(visit: &Visit, id: &str, form: Refused) -> Answered {
    let page = read(visit, id).await?;
    visit.page_with(StatusCode::UNPROCESSABLE_ENTITY, &GroupPage { for_a_while: form, ..page })
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    let page = read(&visit, &id).await?;
    visit.page(&page)
}

/// The audit of the last hour.
pub(crate) async fn proof(visit: Visit, PathId(id): PathId) -> Answered {
    let from = visit.site.clock.now() - std::time::Duration::from_secs(3_600);
    let path = ApiPath::of(["limit-groups", &id, "audit"]).with("from", &from.to_string());
    let audit = visit.api.get(&path).await?;
    visit.fragment(&Proof { audit })
}

pub(crate) async fn preview(visit: Visit, PathId(id): PathId, headers: http::HeaderMap, fields: Fields) -> Answered {
    let editor = Editor::read(&fields);
    let answer = visit.api.post::<Preview>(&ApiPath::of(["limit-groups", &id, "preview"]), &editor.limits()).await;
    if headers.contains_key("hx-request") {
        let in_words =
            |refusal: Refusal| Refusal { detail: editor.typed.faults(&refusal).text(), errors: Vec::new(), ..refusal };
        return visit.fragment(&PreviewPart { preview: answer.map_err(in_words)? });
    }
    let page = read(&visit, &id).await?;
    match answer {
        Ok(preview) => visit.page(&GroupPage { editor, preview: Some(preview), ..page }),
        Err(refusal) if is_shown(&refusal) => {
            visit.page_with(refusal.status, &GroupPage { editor: editor.refused(&refusal), ..page })
        }
        Err(refusal) => Err(refusal),
    }
}

pub(crate) async fn save(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let editor = Editor::read(&fields);
    let edit = Call::new(Method::PATCH, &api_path(&id)).json(&editor.body())?.if_match(&editor.etag)?;
    match visit.api.send(&edit).await {
        Ok(_) => visit.redirect(&format!("{PATH}/{id}"), Some(Flash::done("Saved. In effect within 100 ms."))),
        Err(refusal) if is_shown(&refusal) => {
            let page = read(&visit, &id).await?;
            let mut refused = editor.refused(&refusal);
            if refusal.status == StatusCode::PRECONDITION_FAILED {
                refused.faults = Faults::default();
                refused.faults.add_other("Somebody else has changed the group meanwhile: save again to replace that.");
                refused.etag.clone_from(&page.editor.etag);
            }
            visit.page_with(refusal.status, &GroupPage { editor: refused, ..page })
        }
        Err(refusal) => Err(refusal),
    }
}

pub(crate) async fn delete(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let back = format!("{PATH}/{id}");
    if !fields.is_ticked("sure") {
        return visit.redirect(&back, Some(Flash::error("Nothing was deleted: tick the box first.")));
    }
    match visit.api.send(&Call::new(Method::DELETE, &api_path(&id))).await {
        Err(refusal) if refusal.status == StatusCode::CONFLICT => {
            visit.redirect(&back, Some(Flash::error(refusal.text())))
        }
        answer => visit.after(PATH, answer, |_| "The limit group is deleted.".to_owned()),
    }
}
