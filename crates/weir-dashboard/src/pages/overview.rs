//! The overview: every destination in one table, those in trouble first.

use askama::Template;
use axum::extract;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use weir_api_types::Overview;

use crate::{
    client::{ApiPath, Call, append},
    example::Example,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Me, Section},
    refusal::Refusal,
    units::Units as _,
    views::{BindingText as _, BriefText as _, Drain, LimitText as _, RowText as _},
    visit::{Answered, Visit, local_path},
};

const ROWS: &str = "50";
/// More rows than a page has cannot be ticked.
const MAX_TICKED: usize = 200;

/// The filter, which is in the URL.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filter {
    q: String,
    tenant: String,
    state: String,
    sort: String,
    cursor: String,
}

pub(crate) type Query = extract::Query<Filter>;

impl Filter {
    fn api_path(&self) -> ApiPath {
        ApiPath::of(["overview"])
            .with("q", self.q.trim())
            .with("tenant", self.tenant.trim())
            .with("state", &self.state)
            .with("sort", &self.sort)
            .with("limit", ROWS)
            .with("cursor", &self.cursor)
    }

    /// The query of a link to this view, on the page that begins at `cursor`.
    fn link(&self, path: &str, cursor: &str) -> String {
        let mut link = path.to_owned();
        let parameters = [("q", &*self.q), ("tenant", &*self.tenant), ("state", &*self.state), ("sort", &*self.sort)];
        for (name, value) in parameters.into_iter().chain([("cursor", cursor)]) {
            append(&mut link, name, value);
        }
        link
    }

    fn is_empty(&self) -> bool {
        [&self.q, &self.tenant, &self.state, &self.cursor].into_iter().all(|value| value.is_empty())
    }
}

/// The table with its totals: the part that live updates replace.
struct Table {
    base: String,
    overview: Overview,
    filter: Filter,
    can_operate: bool,
    /// For the empty state.
    example: Example,
}

impl Table {
    fn new(visit: &Visit, me: &Me, filter: Filter, overview: Overview) -> Self {
        Self {
            base: visit.site.base.clone(),
            overview,
            filter,
            can_operate: me.role.includes(weir_core::access::Role::Operate),
            example: Example::new(visit, me),
        }
    }

    /// The fragment that replaces this table.
    fn fragment(&self) -> String {
        self.filter.link(&format!("{}/fragments/overview", self.base), &self.filter.cursor)
    }

    /// The dead letters that the totals count: those of the tenant, if the table shows one.
    fn dead_letters(&self) -> String {
        let mut link = format!("{}/dead-letters", self.base);
        append(&mut link, "tenant", self.filter.tenant.trim());
        link
    }

    /// The path to return to after an action, without the base.
    fn here(&self) -> String {
        self.filter.link("/", &self.filter.cursor)
    }

    fn first_page(&self) -> Option<String> {
        (!self.filter.cursor.is_empty()).then(|| self.filter.link(&format!("{}/", self.base), ""))
    }

    fn next_page(&self) -> Option<String> {
        let cursor = self.overview.next_cursor.as_deref()?;
        Some(self.filter.link(&format!("{}/", self.base), cursor))
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    table: Table,
}

impl OverviewPage {
    const STATES: [&'static str; 5] = ["active", "waiting", "paused", "held", "breaker"];
    const SORTS: [(&'static str, &'static str); 4] =
        [("trouble", "Trouble first"), ("name", "Name"), ("backlog", "Backlog"), ("oldest_age", "Oldest")];
}

#[derive(Template)]
#[template(path = "overview_table.html")]
struct OverviewTable {
    table: Table,
}

async fn read(visit: &Visit, filter: Filter) -> Result<(Me, Table), Refusal> {
    let path = filter.api_path();
    let (me, overview) = tokio::try_join!(visit.me(), visit.api.get::<Overview>(&path))?;
    let table = Table::new(visit, &me, filter, overview);
    Ok((me, table))
}

pub(crate) async fn show(visit: Visit, extract::Query(filter): Query) -> Answered {
    let (me, table) = read(&visit, filter).await?;
    let mut live = String::new();
    append(&mut live, "tenant", table.filter.tenant.trim());
    let frame = visit.frame(me, Section::Overview, "Overview").live(live);
    visit.page(&OverviewPage { frame, table })
}

/// The table alone, for live updates.
pub(crate) async fn fragment(visit: Visit, extract::Query(filter): Query) -> Answered {
    let (_, table) = read(&visit, filter).await?;
    visit.fragment(&OverviewTable { table })
}

/// Pauses or resumes the ticked destinations, each by a call of its own, as the API has it.
pub(crate) async fn bulk(visit: Visit, fields: Fields) -> Answered {
    let (paused, done) = match fields.text("action") {
        "pause" => (true, "paused"),
        _ => (false, "resumed"),
    };
    let next = local_path(fields.raw("next")).to_owned();
    let ids = fields.all("id");
    if ids.is_empty() {
        return visit.redirect(&next, Some(Flash::error("Tick the destinations first.")));
    }
    let (mut edited, mut failed) = (0, None);
    for id in ids.into_iter().take(MAX_TICKED) {
        let edit = Call::new(Method::PATCH, &ApiPath::of(["destinations", id])).json(&json!({ "paused": paused }))?;
        match visit.api.send(&edit).await {
            Ok(_) => edited += 1,
            Err(refusal) => failed = Some(refusal),
        }
    }
    let word = if edited == 1 { "destination" } else { "destinations" };
    match failed {
        None => visit.redirect(&next, Some(Flash::done(format!("{edited} {word} {done}.")))),
        Some(refusal) if edited > 0 && refusal.status != StatusCode::UNAUTHORIZED => {
            let text = format!("{edited} {word} {done}. The others are not: {}", refusal.sentence());
            visit.redirect(&next, Some(Flash::error(text)))
        }
        Some(refusal) => visit.after(&next, Err::<(), _>(refusal), |()| String::new()),
    }
}
