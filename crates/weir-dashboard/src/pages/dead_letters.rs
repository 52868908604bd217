//! Dead letters: what failed, by destination, error and status, with the way to replay all of a group.
//!
//! The store examines up to 10,000 dead letters to group them, so live updates ask seldom.

use askama::Template;
use axum::extract::RawQuery;
use serde::Deserialize;
use weir_core::access::Role;

use crate::{
    client::ApiPath,
    delivery_filter::{Chip, DeliveryFilter, ERRORS},
    example::Example,
    fields::Fields,
    frame::{Frame, Me, Section},
    live_region::LiveRegion,
    names::{Names, destination_id},
    refusal::Refusal,
    units::{At, Count},
    visit::{Answered, Visit},
};

const PATH: &str = "/dead-letters";
/// The states of a dead letter.
const DEAD: &str = "failed,dead";

/// Deliveries that failed alike.
#[derive(Debug, Deserialize)]
struct Group {
    destination_id: String,
    destination_name: String,
    state: String,
    error: Option<String>,
    status_code: Option<u16>,
    deliveries: Count,
    newest_at: At,
    oldest_at: At,
    example_id: String,
}

#[derive(Debug, Deserialize)]
struct Groups {
    data: Vec<Group>,
    scanned: Count,
    capped: bool,
}

impl Group {
    fn destination(&self) -> &str {
        if self.destination_name.is_empty() { &self.destination_id } else { &self.destination_name }
    }

    /// The error as the filter of the API names it: the status, which is more exact, or the word.
    fn error_filter(&self) -> String {
        self.status_code.map(|status| status.to_string()).or_else(|| self.error.clone()).unwrap_or_default()
    }

    /// The id of its row, by which live updates find the row again.
    fn row_id(&self) -> String {
        format!("row-{}-{}-{}", self.destination_id, self.state, self.error_filter())
    }

    fn problem(&self) -> String {
        match (self.status_code, &self.error) {
            (Some(status), _) => format!("HTTP {status}"),
            (None, Some(error)) => error.clone(),
            (None, None) => "no error recorded".to_owned(),
        }
    }
}

/// The groups with their count: the part that live updates replace.
struct Table {
    base: String,
    filter: DeliveryFilter,
    groups: Groups,
    can_operate: bool,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl Table {
    fn new(visit: &Visit, me: &Me, filter: DeliveryFilter, groups: Groups) -> Self {
        let base = visit.site.base.clone();
        let live = Some(LiveRegion::slow(filter.link(&format!("{base}/fragments{PATH}"))));
        let can_operate = me.role.includes(Role::Operate);
        Self { base, filter, groups, can_operate, example: Example::new(visit, me), live }
    }

    fn total(&self) -> Count {
        Count(self.groups.data.iter().map(|group| group.deliveries.0).sum())
    }

    fn is_filtered(&self) -> bool {
        !DeliveryFilter { state: String::new(), ..self.filter.clone() }.is_empty()
    }

    /// The deliveries of a group.
    fn of_group(&self, group: &Group) -> DeliveryFilter {
        DeliveryFilter {
            destination: group.destination_id.clone(),
            error: group.error_filter(),
            state: group.state.clone(),
            ..self.filter.clone()
        }
    }

    fn list(&self, group: &Group) -> String {
        self.of_group(group).link(&format!("{}/deliveries", self.base))
    }

    fn replay(&self, group: &Group) -> String {
        self.of_group(group).link(&format!("{}/replays/new", self.base))
    }

    fn replay_all(&self) -> String {
        self.filter.link(&format!("{}/replays/new", self.base))
    }
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    frame: Frame,
    problem: Option<String>,
    names: Names,
    table: Table,
}

#[derive(Template)]
#[template(path = "dead_letters_table.html")]
struct DeadLettersTable {
    table: Table,
}

impl DeadLettersPage {
    fn chips(&self) -> Vec<Chip> {
        // The states are always the same here.
        let filter = DeliveryFilter { state: String::new(), ..self.table.filter.clone() };
        filter.chips(&format!("{}{PATH}", self.frame.base()), |id| self.names.of(id))
    }
}

fn filter_of(fields: &Fields) -> DeliveryFilter {
    DeliveryFilter { state: DEAD.to_owned(), order: String::new(), ..DeliveryFilter::read(fields) }
}

async fn read(visit: &Visit, filter: DeliveryFilter) -> Result<(Me, Table), Refusal> {
    let path = filter.api_path(ApiPath::of(["deliveries", "groups"]));
    let (me, groups) = tokio::try_join!(visit.me(), visit.api.get::<Groups>(&path))?;
    let table = Table::new(visit, &me, filter, groups);
    Ok((me, table))
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let mut filter = filter_of(&Fields::parse(query.unwrap_or_default().as_bytes()));
    let problem = match destination_id(&visit, &filter.destination).await? {
        Ok(id) if id != filter.destination => {
            let found = DeliveryFilter { destination: id, state: String::new(), ..filter };
            return visit.redirect(&found.link(PATH), None);
        }
        Ok(_) => None,
        Err(problem) => {
            filter.destination.clear();
            Some(problem)
        }
    };
    let (me, table) = read(&visit, filter).await?;
    let names = Names::read(&visit, [&*table.filter.destination]).await;
    let frame = visit.frame(me, Section::DeadLetters, "Dead letters").live("");
    visit.page(&DeadLettersPage { frame, problem, names, table })
}

/// The groups, for live updates.
pub(crate) async fn fragment(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let filter = filter_of(&Fields::parse(query.unwrap_or_default().as_bytes()));
    let (_, table) = read(&visit, filter).await?;
    visit.fragment(&DeadLettersTable { table })
}
