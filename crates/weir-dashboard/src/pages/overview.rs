//! The overview: every destination in one table, those in trouble first.
//!
//! Nothing moves under the hand: while the pointer or the focus is in the table, the page sends the rows that it shows
//! (`held`), and gets the same rows in the same order, with the figures of now.

use std::{collections::HashMap, time::Duration};

use askama::Template;
use axum::extract;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use weir_api_types::{Overview, OverviewRow};

use super::pictures::{self, Pictures};
use crate::{
    client::{ApiPath, Call, append},
    example::Example,
    fields::Fields,
    flash::Flash,
    frame::{Also, Frame, Me, Section},
    refusal::Refusal,
    units::{Age, At, Count, Left, Units as _, in_one_unit},
    views::{BindingText as _, BriefText as _, Drain, LimitText as _, OverrideText as _, RowText as _},
    visit::{Answered, Visit, local_path},
};

const ROWS: usize = 50;
/// As a parameter of the API.
const ROWS_OF_PAGE: &str = "50";
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
    /// `true`: the order of `sort` turned round.
    reverse: String,
    cursor: String,
    /// The rows that the page shows, separated by commas, while the reader is in them.
    held: String,
}

pub(crate) type Query = extract::Query<Filter>;

impl Filter {
    fn api_path(&self) -> ApiPath {
        ApiPath::of(["overview"])
            .with("q", self.q.trim())
            .with("tenant", self.tenant.trim())
            .with("state", &self.state)
            .with("sort", &self.sort)
            .with("reverse", &self.reverse)
            .with("recent", "true")
            .with("limit", ROWS_OF_PAGE)
            .with("cursor", &self.cursor)
    }

    /// The query of a link to this view, on the page that begins at `cursor`.
    fn link(&self, path: &str, cursor: &str) -> String {
        let mut link = path.to_owned();
        let parameters = [
            ("q", &*self.q),
            ("tenant", &*self.tenant),
            ("state", &*self.state),
            ("sort", &*self.sort),
            ("reverse", &*self.reverse),
            ("cursor", cursor),
        ];
        for (name, value) in parameters {
            append(&mut link, name, value);
        }
        link
    }

    /// A link to the first page in this state.
    fn link_to_state(&self, path: &str, state: &str) -> String {
        Self { state: state.to_owned(), ..self.clone() }.link(path, "")
    }

    /// A link to the first page in this order. The order that is shown already is turned round.
    fn link_to_order(&self, path: &str, sort: &str) -> String {
        let reverse = if self.is_sorted_by(sort) && !self.is_reversed() { "true" } else { "" };
        // The order without a name is that of trouble.
        let sort = if sort == TROUBLE { "" } else { sort };
        Self { sort: sort.to_owned(), reverse: reverse.to_owned(), ..self.clone() }.link(path, "")
    }

    fn is_sorted_by(&self, sort: &str) -> bool {
        self.sort == sort || (self.sort.is_empty() && sort == TROUBLE)
    }

    fn is_reversed(&self) -> bool {
        self.reverse == "true"
    }

    fn is_empty(&self) -> bool {
        [&self.q, &self.tenant, &self.state, &self.cursor].into_iter().all(|value| value.is_empty())
    }
}

/// The order of the API without a name.
const TROUBLE: &str = "trouble";

/// The columns that sort the table: its name, the class of its cells, the order of the API, and whether that begins with
/// the smallest. What matters most to a person comes first, because the last ones are left out where there is no room.
const COLUMNS: [(&str, &str, &str, bool); 10] = [
    ("Destination", "name", "name", true),
    ("Why", "why", TROUBLE, false),
    ("Drains in", "drains number", "drain_eta", false),
    ("Use", "use", "utilisation", false),
    ("Last 30 min", "recent", "", false),
    ("Backlog", "number", "backlog", false),
    ("Oldest", "oldest number", "oldest_age", false),
    ("Sending", "sending number", "sends", false),
    ("Arriving", "arriving number", "arrivals", false),
    ("Limits", "limits", "", false),
];

/// The head of a column.
struct Column {
    name: &'static str,
    class: &'static str,
    /// `None`: the table cannot be sorted by it.
    link: Option<String>,
    /// The value of `aria-sort`, of the column by which the table is sorted.
    sorted: Option<&'static str>,
}

/// A count of destinations that the line above the table names: a link to the table of only these.
struct Part {
    text: String,
    tone: &'static str,
    link: String,
    is_on: bool,
}

/// The table with its totals: the part that live updates replace.
struct Table {
    base: String,
    overview: Overview,
    filter: Filter,
    /// How many rows stand elsewhere than the order has them, because the reader is in the table. `None`: he is not.
    held: Option<usize>,
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
            held: None,
            can_operate: me.role.includes(weir_core::access::Role::Operate),
            example: Example::new(visit, me),
        }
    }

    /// The fragment that replaces this table.
    fn fragment(&self) -> String {
        self.filter.link(&format!("{}/fragments/overview", self.base), &self.filter.cursor)
    }

    /// The picture of a row; empty if its traffic is not known.
    fn spark(&self, row: &OverviewRow) -> String {
        row.recent.as_ref().map(|recent| pictures::spark(recent, self.overview.as_of)).unwrap_or_default()
    }

    /// How long the oldest delivery of a row has waited. The page counts on.
    fn oldest(&self, row: &OverviewRow) -> Option<Age> {
        let age = row.oldest_age_s?;
        Some(At(self.overview.as_of.before(Duration::from_secs_f64(age.max(0.0)))).age(age.seconds()))
    }

    /// When the backlog of a held destination has drained: its hold ends at an instant that is known, so the page counts
    /// down.
    fn left(&self, row: &OverviewRow) -> Option<Left> {
        let eta = row.drain_eta_s.filter(|_| row.destination.held_until.is_some())?;
        Some(At(self.overview.as_of + Duration::from_secs_f64(eta.max(0.0))).left(eta.seconds()))
    }

    fn path(&self) -> String {
        format!("{}/", self.base)
    }

    fn columns(&self) -> Vec<Column> {
        let column = |(name, class, sort, is_rising): (&'static str, &'static str, &'static str, bool)| Column {
            name,
            class,
            link: (!sort.is_empty()).then(|| self.filter.link_to_order(&self.path(), sort)),
            sorted: (!sort.is_empty() && self.filter.is_sorted_by(sort)).then(|| {
                match is_rising != self.filter.is_reversed() {
                    true => "ascending",
                    false => "descending",
                }
            }),
        };
        COLUMNS.into_iter().map(column).collect()
    }

    /// Which destinations need a person, worst first.
    fn parts(&self) -> Vec<Part> {
        let totals = &self.overview.totals;
        let never = if totals.never_drains == 1 { "never drains" } else { "never drain" };
        let parts = [
            ("breaker", totals.breaker, "broken", "bad"),
            ("never_drains", totals.never_drains, never, "bad"),
            ("paused", totals.paused, "paused", "warn"),
            ("held", totals.held, "held", "warn"),
        ];
        let part = |(state, count, word, tone): (&str, u64, &str, &'static str)| {
            let is_on = self.filter.state == state;
            let link = self.filter.link_to_state(&self.path(), if is_on { "" } else { state });
            (count > 0 || is_on).then(|| Part { text: format!("{} {word}", Count(count)), tone, link, is_on })
        };
        parts.into_iter().filter_map(part).collect()
    }

    /// Sends and arrivals of all, in one unit.
    fn rates(&self) -> [String; 2] {
        in_one_unit([self.overview.totals.achieved_per_s, self.overview.totals.arrivals_per_s])
    }

    /// Which rows the page shows: `51–100 of 3,000`, and the number of the page where there are several.
    fn range(&self) -> String {
        let Overview { skipped, matches, data, .. } = &self.overview;
        let (first, last) = (skipped + 1, skipped + data.len() as u64);
        let rows = match (first, last) {
            (1, _) if last == *matches => format!("{} shown", Count(last)),
            _ => format!("{}–{} of {}", Count(first), Count(last), Count(*matches)),
        };
        let pages = matches.div_ceil(ROWS as u64);
        match pages {
            0 | 1 => rows,
            _ => format!("{rows}, page {} of {}", Count(skipped / ROWS as u64 + 1), Count(pages)),
        }
    }

    /// The rows that the reader is in, in the order in which they stand.
    async fn held(mut self, visit: &Visit) -> Result<Self, Refusal> {
        let held: Vec<&str> = self.filter.held.split(',').filter(|id| !id.is_empty()).take(MAX_TICKED).collect();
        if held.is_empty() {
            return Ok(self);
        }
        let natural = std::mem::take(&mut self.overview.data);
        let is_shown = |id: &&str| natural.iter().any(|row| row.destination.id == *id);
        // Rows that the order or the filter now leaves out are read too.
        let others = held.iter().copied().filter(|id| !is_shown(id)).collect::<Vec<_>>().join(",");
        let others: Vec<OverviewRow> = match others.as_str() {
            "" => Vec::new(),
            ids => {
                visit
                    .api
                    .get::<Overview>(
                        &ApiPath::of(["overview"]).with("ids", ids).with("recent", "true").with("limit", "200"),
                    )
                    .await?
                    .data
            }
        };
        let is_moved = |(place, id): &(usize, &&str)| natural.get(*place).is_none_or(|row| row.destination.id != **id);
        self.held = Some(held.iter().enumerate().filter(is_moved).count());
        let mut rows: HashMap<String, OverviewRow> =
            natural.into_iter().chain(others).map(|row| (row.destination.id.clone(), row)).collect();
        self.overview.data = held.into_iter().filter_map(|id| rows.remove(id)).collect();
        Ok(self)
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

    fn previous_page(&self) -> Option<String> {
        let cursor = self.overview.previous_cursor.as_deref()?;
        Some(self.filter.link(&format!("{}/", self.base), cursor))
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
    pictures: Pictures,
    table: Table,
}

impl OverviewPage {
    const STATES: [(&'static str, &'static str); 6] = [
        ("active", "active"),
        ("waiting", "waiting"),
        ("breaker", "broken"),
        ("never_drains", "never drains"),
        ("paused", "paused"),
        ("held", "held"),
    ];
    const SORTS: [(&'static str, &'static str); 8] = [
        (TROUBLE, "Trouble first"),
        ("name", "Name"),
        ("drain_eta", "Drains last"),
        ("backlog", "Backlog"),
        ("oldest_age", "Oldest"),
        ("utilisation", "Use"),
        ("sends", "Sending"),
        ("arrivals", "Arriving"),
    ];
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
    let (me, table) = read(&visit, Filter { held: String::new(), ..filter }).await?;
    let pictures = Pictures::read(&visit, &table.filter.tenant).await?;
    let mut live = Also::Pictures.query().to_owned();
    append(&mut live, "tenant", table.filter.tenant.trim());
    let frame = visit.frame(me, Section::Overview, "Overview").live(live);
    visit.page(&OverviewPage { frame, pictures, table })
}

/// The table alone, for live updates.
pub(crate) async fn fragment(visit: Visit, extract::Query(filter): Query) -> Answered {
    let (_, table) = read(&visit, filter).await?;
    let table = table.held(&visit).await?;
    visit.fragment(&OverviewTable { table })
}

/// Pauses or resumes the ticked destinations, each by a call of its own, as the API has it.
pub(crate) async fn bulk(visit: Visit, fields: Fields) -> Answered {
    let (paused, done) = match fields.text("do") {
        "pause" => (true, "paused"),
        _ => (false, "resumed"),
    };
    let next = local_path(fields.raw("next")).to_owned();
    let ids = fields.all("destination");
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
