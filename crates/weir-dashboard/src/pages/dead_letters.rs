//! Dead letters: what failed, by destination, error and status, with the way to replay all of a group.
//!
//! The store examines up to 10,000 dead letters to group them, so live updates ask seldom.

use askama::Template;
use axum::extract::RawQuery;
use http::StatusCode;
use weir_api_types::{DeliveryGroup, DeliveryGroups};
use weir_core::access::Role;

use crate::{
    client::{ApiPath, append},
    delivery_filter::{Chip, DeliveryFilter, ERRORS},
    example::Example,
    extend::extend,
    fields::Fields,
    frame::{Frame, Me, Section},
    live_region::LiveRegion,
    names::{Names, label},
    refusal::Refusal,
    units::{Count, Units as _},
    visit::{Answered, Visit},
};

const PATH: &str = "/dead-letters";
/// The states of a dead letter.
const DEAD: &str = "failed,dead";

extend! {
    trait GroupText for DeliveryGroup {
        fn destination(&self) -> &str {
            label(&self.destination_name, &self.destination_id)
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
}

/// The groups with their count: the part that live updates replace.
struct Table {
    base: String,
    filter: DeliveryFilter,
    groups: DeliveryGroups,
    can_operate: bool,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl Table {
    fn new(visit: &Visit, me: &Me, filter: DeliveryFilter, groups: DeliveryGroups) -> Self {
        let base = visit.site.base.clone();
        let live = LiveRegion::slow(filter.link(&format!("{base}/fragments{PATH}")));
        let can_operate = me.role.includes(Role::Operate);
        Self { base, filter, groups, can_operate, example: Example::new(visit, me), live: Some(live) }
    }

    fn total(&self) -> Count {
        Count(self.groups.data.iter().map(|group| group.deliveries).sum())
    }

    fn is_filtered(&self) -> bool {
        !DeliveryFilter { state: own_states(&self.filter), ..self.filter.clone() }.is_empty()
    }

    /// The deliveries of a group.
    fn of_group(&self, group: &DeliveryGroup) -> DeliveryFilter {
        DeliveryFilter {
            destination: group.destination_id.clone(),
            error: group.error_filter(),
            state: group.state.clone(),
            ..self.filter.clone()
        }
    }

    fn list(&self, group: &DeliveryGroup) -> String {
        self.of_group(group).link(&format!("{}/deliveries", self.base))
    }

    fn replay(&self, group: &DeliveryGroup) -> String {
        self.of_group(group).link(&format!("{}/replays/new", self.base))
    }

    /// All that match as a file: they are deliveries.
    fn export(&self, format: &str) -> String {
        let mut link = self.filter.link(&format!("{}/deliveries/export", self.base));
        append(&mut link, "format", format);
        link
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
        let filter = DeliveryFilter { state: own_states(&self.table.filter), ..self.table.filter.clone() };
        let path = format!("{}{PATH}", self.frame.base());
        let mut chips = filter.chips(&path, |id| self.names.of(id));
        if !filter.state.is_empty() {
            let without = DeliveryFilter { state: String::new(), ..filter.clone() }.link(&path);
            chips.retain(|chip| chip.name != "State");
            chips.push(Chip { name: "State", value: filter.state, without });
        }
        chips
    }
}

fn filter_of(fields: &Fields) -> DeliveryFilter {
    let filter = DeliveryFilter { order: String::new(), ..DeliveryFilter::read(fields) };
    let state = if filter.state.is_empty() { DEAD.to_owned() } else { filter.state };
    DeliveryFilter { state, ..filter }
}

/// The states of the filter, unless they are those of all dead letters.
fn own_states(filter: &DeliveryFilter) -> String {
    if filter.state == DEAD { String::new() } else { filter.state.clone() }
}

/// Deliveries in other states are no dead letters.
fn other_states(filter: &DeliveryFilter) -> Option<Refusal> {
    let is_other = filter.state.split(',').any(|state| !DEAD.split(',').any(|dead| dead == state));
    let text = format!("A dead letter is failed or dead, and never {}.", filter.state.replace(',', " or "));
    is_other.then(|| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "The filter matches nothing", text))
}

async fn read(visit: &Visit, filter: DeliveryFilter) -> Result<(Me, Table), Refusal> {
    let path = filter.api_path(ApiPath::of(["deliveries", "groups"]));
    let (me, groups) = tokio::try_join!(visit.me(), visit.api.get::<DeliveryGroups>(&path))?;
    let table = Table::new(visit, &me, filter, groups);
    Ok((me, table))
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let filter = filter_of(&Fields::parse(query.unwrap_or_default().as_bytes()));
    let read = match filter.resolved(&visit).await? {
        Ok(found) if found != filter => {
            return visit.redirect(&DeliveryFilter { state: own_states(&found), ..found }.link(PATH), None);
        }
        Ok(_) => match other_states(&filter) {
            Some(refusal) => Err(refusal),
            None => read(&visit, filter.clone()).await,
        },
        Err(refusal) => Err(refusal),
    };
    let (me, table, problem) = match read {
        Ok((me, table)) => (me, table, None),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            let me = visit.me().await?;
            let none = DeliveryGroups { data: Vec::new(), scanned: 0, capped: false };
            let table = Table { live: None, ..Table::new(&visit, &me, filter, none) };
            (me, table, Some(refusal.sentence()))
        }
        Err(refusal) => return Err(refusal),
    };
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
