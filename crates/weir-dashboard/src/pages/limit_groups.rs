//! Limit groups: the list with a form for a new group, and one group with the shares of its members, its limits and its
//! proof.

pub(crate) mod history;

use askama::Template;
use axum::extract::Query;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::{
    Audit, LimitGroup, LimitGroupMember, LimitGroupOverview, LimitGroupRow, List, Preview, RateLimit, Reservation,
};
use weir_core::access::Role;

use super::destination::{
    limits::PreviewPart,
    limits_form::{ForecastText as _, Typed},
    proof::{AuditText as _, IntervalText as _, JudgedText as _},
};
use crate::{
    client::{ApiPath, Call, append},
    extend::extend,
    faults::{Faults, Refused},
    fields::Fields,
    flash::Flash,
    frame::{Also, Frame, Me, Section},
    names::label,
    path_id::PathId,
    refusal::Refusal,
    units::{Seconds, Units as _},
    views::{Drain, LimitText as _, OverrideText as _, reason_in_words},
    visit::{Answered, Visit},
};

const PATH: &str = "/limit-groups";
/// How many reservations are shown: those of the last seconds or minutes.
const RESERVATIONS: &str = "10";
/// The width of the bar of shares, in its own units.
const BAR: f64 = 1_000.0;
/// The colours of the bar. The members after them share the last one.
const COLOURS: [&str; 8] = ["share-0", "share-1", "share-2", "share-3", "share-4", "share-5", "share-6", "share-7"];

/// The colour of what callers outside Weir take.
const OF_CALLERS: &str = "share-callers";

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

extend! {
    trait GroupText for LimitGroupRow {
        /// The limits in force, and those after the override.
        fn limits(&self) -> String {
            let listed = |limits: &[RateLimit]| match limits {
                [] => "unlimited".to_owned(),
                limits => limits.iter().map(|limit| limit.short()).collect::<Vec<_>>().join(", "),
            };
            let own = listed(&self.limit_group.rate_limits);
            let overridden = self.limit_group.overridden.as_ref().and_then(|of| of.rate_limits.as_deref());
            overridden.map_or_else(|| own.clone(), |now| format!("{} now, then {own}", listed(now)))
        }

        fn tenant(&self) -> &str {
            self.limit_group.tenant.as_deref().unwrap_or("all")
        }

        fn drain(&self) -> Drain {
            match (self.backlog, self.drain_eta_s, self.drains) {
                (0, _, _) => Drain::Empty,
                (_, Some(eta), _) => Drain::In(eta.seconds()),
                (_, None, Some(false)) => Drain::Never,
                (_, None, _) => Drain::Stopped,
            }
        }
    }
}

extend! {
    trait MemberText for LimitGroupMember {
        fn label(&self) -> &str {
            label(&self.name, &self.url)
        }

        fn why(&self) -> String {
            self.reason.as_deref().map_or("", reason_in_words).to_owned()
        }
    }
}

extend! {
    trait ReservationText for Reservation {
        /// How long the call may begin.
        fn width(&self) -> Seconds {
            Seconds(self.ends_at.since(self.starts_at).as_secs_f64())
        }

        fn state_in_words(&self) -> &str {
            match self.state.as_str() {
                "coming" => "coming",
                "given_back" => "given back",
                _ => "over",
            }
        }
    }
}

/// A part of the bar: what one member uses of the rate, or what the last ones use together.
struct Part {
    colour: &'static str,
    x: u32,
    width: u32,
    title: String,
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

/// The figures of a group.
struct Live {
    base: String,
    /// Where programs reach the API.
    url: String,
    may_change: bool,
    shown: LimitGroupOverview,
    /// The last ones.
    reserved: Vec<Reservation>,
}

impl Live {
    fn path(&self) -> String {
        format!("{}{PATH}/{}", self.base, self.shown.row.limit_group.id)
    }

    fn colour(&self, index: &usize) -> &'static str {
        COLOURS[(*index).min(COLOURS.len() - 1)]
    }

    /// Which part of the group's rate each member and the callers outside Weir use. If the group is unlimited, which part of all
    /// that is used.
    fn parts(&self) -> Vec<Part> {
        let members = self.shown.data.iter().enumerate();
        let members = members.map(|(index, member)| (self.colour(&index), member.label(), member.achieved_per_s));
        let of_callers = (OF_CALLERS, "Reservations", self.shown.reservations.per_s);
        let users: Vec<(&str, &str, f64)> = members.chain([of_callers]).collect();
        let used: f64 = users.iter().map(|(.., per_s)| per_s).sum();
        let whole = self.shown.row.configured_per_s.unwrap_or(used).max(used);
        let mut x = 0.0;
        let mut parts = Vec::new();
        for (colour, name, per_s) in users {
            let width = if whole > 0.0 { per_s / whole * BAR } else { 0.0 };
            if width > 0.0 {
                let title = format!("{name}: {}", per_s.per_s());
                // Rounded at both ends, so that parts meet.
                let (from, to) = (x as u32, (x + width).round() as u32);
                parts.push(Part { colour, x: from, width: to.saturating_sub(from), title });
            }
            x += width;
        }
        parts
    }
}

/// The part of the page that live updates replace.
#[derive(Template)]
#[template(path = "limit_group_live.html")]
struct LivePart {
    live: Live,
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
pub(crate) struct Place {
    cursor: String,
}

fn api_path(id: &str) -> ApiPath {
    ApiPath::of(["limit-groups", id])
}

/// Whether the caller may change groups of this tenant; those of all tenants are for admins of the installation.
fn may_change(me: &Me, tenant: Option<&str>) -> bool {
    match tenant {
        Some(_) => me.role.includes(Role::Operate),
        None => me.role.includes(Role::Admin) && !me.is_bound(),
    }
}

pub(crate) async fn list(visit: Visit, Query(place): Query<Place>) -> Answered {
    let page = read_list(&visit, place).await?;
    visit.page(&page)
}

async fn read_list(visit: &Visit, place: Place) -> Result<ListPage, Refusal> {
    let path = ApiPath::of(["limit-groups"]).with("cursor", &place.cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    let (may_for_all, may_change) = (may_change(&me, None), may_change(&me, Some("")));
    let tenants = me.tenants.clone();
    let frame = visit.frame(me, Section::LimitGroups, "Limit groups");
    let editor = Editor::of(None, String::new());
    Ok(ListPage { frame, page, is_later: !place.cursor.is_empty(), may_change, may_for_all, tenants, editor })
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
            let page = read_list(&visit, Place::default()).await?;
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

async fn read_live(visit: &Visit, id: &str) -> Result<Live, Refusal> {
    let overview = ApiPath::of(["limit-groups", id, "overview"]);
    let reservations = ApiPath::of(["limit-groups", id, "reservations"]).with("limit", RESERVATIONS);
    let (me, shown, reserved): (_, LimitGroupOverview, List<Reservation>) =
        tokio::try_join!(visit.me(), visit.api.get(&overview), visit.api.get(&reservations))?;
    let may_change = may_change(&me, shown.row.limit_group.tenant.as_deref());
    Ok(Live { base: visit.site.base.clone(), url: visit.public_url(), may_change, shown, reserved: reserved.data })
}

async fn read(visit: &Visit, id: &str) -> Result<GroupPage, Refusal> {
    let call = Call::get(&api_path(id));
    let (me, answer, live) = tokio::try_join!(visit.me(), visit.api.send(&call), read_live(visit, id))?;
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

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId) -> Answered {
    let live = read_live(&visit, &id).await?;
    visit.fragment(&LivePart { live })
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
