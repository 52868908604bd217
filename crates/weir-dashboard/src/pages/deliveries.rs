//! The list of deliveries, with every filter of the API in the URL.
//!
//! The first page is live in two regions, because they cost differently: the rows, and the title with the count. For a
//! count the store examines up to 10,000 deliveries, unless all of them are on the first page.

use std::fmt;

use askama::Template;
use axum::extract::RawQuery;
use http::StatusCode;
use weir_api_types::{self as types, Delivery, DeliveryList, ListCount};
use weir_core::access::Role;

use crate::{
    client::{ApiPath, append},
    delivery_filter::{Chip, DeliveryFilter, ERRORS, StateLink},
    example::Example,
    extend::extend,
    fields::Fields,
    frame::{Frame, Me, Section},
    live_region::LiveRegion,
    names::Names,
    refusal::Refusal,
    units::{Count, Units as _},
    visit::{Answered, Visit},
};

pub(crate) const PATH: &str = "/deliveries";

extend! {
    pub(crate) trait DeliveryText for Delivery {
        fn tone(&self) -> &'static str {
            state_tone(&self.state)
        }

        /// Why the last attempt was no success: the status, or the error.
        fn problem(&self) -> String {
            match (self.last_status_code, &self.last_error) {
                (_, Some(error)) => error.clone(),
                (Some(status), None) if !(200..300).contains(&status) => format!("HTTP {status}"),
                _ => String::new(),
            }
        }
    }
}

/// The colour of a state.
pub(crate) fn state_tone(state: &str) -> &'static str {
    match state {
        "delivered" => "good",
        "dead" | "failed" => "bad",
        "retrying" | "expired" => "warn",
        "delivering" | "pending" => "calm",
        _ => "",
    }
}

type Rows = types::List<Delivery>;

/// The rows, and what is below them.
struct List {
    base: String,
    filter: DeliveryFilter,
    cursor: String,
    page: Rows,
    names: Names,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl List {
    async fn new(
        visit: &Visit,
        me: &Me,
        filter: DeliveryFilter,
        cursor: &str,
        (page, version): (Rows, Option<String>),
    ) -> Self {
        let base = visit.site.base.clone();
        let mentioned = page.data.iter().map(|row| &*row.destination_id).chain([&*filter.destination]);
        let names = Names::read(visit, mentioned).await;
        let fragment = filter.link(&format!("{base}/fragments{PATH}"));
        let live = version.filter(|_| cursor.is_empty()).map(|version| match is_costly(&filter, me) {
            true => LiveRegion::slow(fragment),
            false => LiveRegion::prompt(fragment, &version),
        });
        Self { base, filter, cursor: cursor.to_owned(), page, names, example: Example::new(visit, me), live }
    }

    fn path(&self) -> String {
        format!("{}{PATH}", self.base)
    }

    fn first(&self) -> Option<String> {
        (!self.cursor.is_empty()).then(|| self.filter.link(&self.path()))
    }

    fn next(&self) -> Option<String> {
        let mut link = self.filter.link(&self.path());
        append(&mut link, "cursor", self.page.next_cursor.as_deref()?);
        Some(link)
    }

    /// All that match as a file.
    fn export(&self, format: &str) -> String {
        let mut link = self.filter.link(&format!("{}{PATH}/export", self.base));
        append(&mut link, "format", format);
        link
    }

    /// The same rows in the other order.
    fn turned(&self) -> String {
        let order = if self.filter.order == "oldest" { "" } else { "oldest" };
        let filter = DeliveryFilter { order: order.to_owned(), ..self.filter.clone() };
        filter.link(&self.path())
    }
}

/// How many deliveries match. The API counts to 10,000.
#[derive(Debug, Clone, Copy)]
struct CountOf {
    value: Count,
    capped: bool,
}

impl CountOf {
    /// The count of rows that are all on the first page: so it never differs from what the list shows.
    fn of_rows(rows: &Rows, cursor: &str) -> Option<Self> {
        let is_all = cursor.is_empty() && rows.next_cursor.is_none();
        is_all.then_some(Self { value: Count(rows.data.len() as u64), capped: false })
    }

    async fn read(visit: &Visit, filter: &DeliveryFilter, cursor: &str, rows: &Rows) -> Result<Self, Refusal> {
        if let Some(count) = Self::of_rows(rows, cursor) {
            return Ok(count);
        }
        let path = api_path(filter).with("limit", "1").with("count", "true");
        let counted = visit.api.get::<DeliveryList>(&path).await?.count;
        let ListCount { value, capped } = counted.ok_or_else(|| Refusal::broken(&"the list has no count"))?;
        Ok(Self { value: Count(value), capped })
    }
}

impl fmt::Display for CountOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.value, if self.capped { "+" } else { "" })
    }
}

/// The title with the count, and what can be done with all that match.
struct Head {
    base: String,
    filter: DeliveryFilter,
    count: CountOf,
    can_operate: bool,
    live: Option<LiveRegion>,
}

impl Head {
    async fn read(visit: &Visit, me: &Me, filter: DeliveryFilter, cursor: &str, rows: &Rows) -> Result<Self, Refusal> {
        let count = CountOf::read(visit, &filter, cursor, rows).await?;
        let base = visit.site.base.clone();
        let fragment = filter.link(&format!("{base}/fragments{PATH}/head"));
        let is_cheap = CountOf::of_rows(rows, cursor).is_some() && !is_costly(&filter, me);
        let live = cursor.is_empty().then(|| match is_cheap {
            true => LiveRegion::prompt(fragment, &count.to_string()),
            false => LiveRegion::slow(fragment),
        });
        Ok(Self { base, filter, count, can_operate: me.role.includes(Role::Operate), live })
    }

    /// Where all that match can be replayed.
    fn replay(&self) -> Option<String> {
        let is_offered = self.can_operate && self.filter.is_replayable() && self.count.value.0 > 0;
        is_offered.then(|| self.filter.link(&format!("{}/replays/new", self.base)))
    }
}

#[derive(Template)]
#[template(path = "deliveries.html")]
struct DeliveriesPage {
    frame: Frame,
    /// Why the filter matches nothing.
    problem: Option<String>,
    head: Head,
    list: List,
}

#[derive(Template)]
#[template(path = "deliveries_head.html")]
struct DeliveriesHead {
    head: Head,
}

#[derive(Template)]
#[template(path = "deliveries_list.html")]
struct DeliveriesList {
    list: List,
}

impl DeliveriesPage {
    fn chips(&self) -> Vec<Chip> {
        self.list.filter.chips(&self.list.path(), |id| self.list.names.of(id))
    }

    fn states(&self) -> Vec<StateLink> {
        self.list.filter.state_links(&self.list.path())
    }
}

/// Whether a page of these deliveries makes the store examine thousands of them.
fn is_costly(filter: &DeliveryFilter, me: &Me) -> bool {
    filter.is_costly() || me.is_bound()
}

fn api_path(filter: &DeliveryFilter) -> ApiPath {
    filter.api_path(ApiPath::of(["deliveries"]))
}

async fn read_rows(visit: &Visit, filter: &DeliveryFilter, cursor: &str) -> Result<(Rows, String), Refusal> {
    visit.api.get_versioned(&api_path(filter).with("cursor", cursor)).await
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let (filter, cursor) = (DeliveryFilter::read(&fields), fields.text("cursor"));
    let rows = match filter.resolved(&visit).await? {
        // The link of the page has the id, whatever was typed.
        Ok(found) if found != filter => return visit.redirect(&found.link(PATH), None),
        Ok(_) => read_rows(&visit, &filter, cursor).await,
        Err(refusal) => Err(refusal),
    };
    let me = visit.me().await?;
    let (rows, problem) = match rows {
        Ok((rows, version)) => ((rows, Some(version)), None),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            let none = Rows { data: Vec::new(), next_cursor: None };
            ((none, None), Some(refusal.sentence()))
        }
        Err(refusal) => return Err(refusal),
    };
    // What matches nothing has one page, and nothing changes on it.
    let cursor = if problem.is_some() { "" } else { cursor };
    let mut head = Head::read(&visit, &me, filter.clone(), cursor, &rows.0).await?;
    head.live = head.live.filter(|_| problem.is_none());
    let list = List::new(&visit, &me, filter, cursor, rows).await;
    let frame = visit.frame(me, Section::Deliveries, "Deliveries").live_if_first(cursor);
    visit.page(&DeliveriesPage { frame, problem, head, list })
}

/// The rows of the first page, for live updates.
pub(crate) async fn fragment(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let filter = DeliveryFilter::read(&fields);
    let rows = read_rows(&visit, &filter, "").await?;
    if rows.1 == fields.text("seen") {
        return visit.unchanged();
    }
    let me = visit.me().await?;
    let list = List::new(&visit, &me, filter, "", (rows.0, Some(rows.1))).await;
    visit.fragment(&DeliveriesList { list })
}

/// The title with the count, for live updates.
pub(crate) async fn head_fragment(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let filter = DeliveryFilter::read(&fields);
    let (me, (rows, _)) = tokio::try_join!(visit.me(), read_rows(&visit, &filter, ""))?;
    let head = Head::read(&visit, &me, filter, "", &rows).await?;
    if head.count.to_string() == fields.text("seen") {
        return visit.unchanged();
    }
    visit.fragment(&DeliveriesHead { head })
}
