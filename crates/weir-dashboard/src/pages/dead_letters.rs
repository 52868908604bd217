//! Dead letters: what failed, by destination, error and status, with the way to replay all of a group.

use askama::Template;
use axum::extract::RawQuery;
use serde::Deserialize;

use crate::{
    client::ApiPath,
    delivery_filter::{Chip, DeliveryFilter, ERRORS},
    example::Example,
    fields::Fields,
    frame::{Frame, Section},
    names::{Names, destination_id},
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

    fn problem(&self) -> String {
        match (self.status_code, &self.error) {
            (Some(status), _) => format!("HTTP {status}"),
            (None, Some(error)) => error.clone(),
            (None, None) => "no error recorded".to_owned(),
        }
    }
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    frame: Frame,
    filter: DeliveryFilter,
    problem: Option<String>,
    groups: Groups,
    names: Names,
    example: Example,
}

impl DeadLettersPage {
    fn chips(&self) -> Vec<Chip> {
        // The states are always the same here.
        let filter = DeliveryFilter { state: String::new(), ..self.filter.clone() };
        filter.chips(&format!("{}{PATH}", self.frame.base()), |id| self.names.of(id))
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
        self.of_group(group).link(&format!("{}/deliveries", self.frame.base()))
    }

    fn replay(&self, group: &Group) -> String {
        self.of_group(group).link(&format!("{}/replays/new", self.frame.base()))
    }

    fn replay_all(&self) -> String {
        self.filter.link(&format!("{}/replays/new", self.frame.base()))
    }
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let mut filter = DeliveryFilter { state: DEAD.to_owned(), order: String::new(), ..DeliveryFilter::read(&fields) };
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
    let path = filter.api_path(ApiPath::of(["deliveries", "groups"]));
    let (me, groups) = tokio::try_join!(visit.me(), visit.api.get::<Groups>(&path))?;
    let names = Names::read(&visit, [&*filter.destination]).await;
    let example = Example::new(&visit, &me);
    let frame = visit.frame(me, Section::DeadLetters, "Dead letters");
    visit.page(&DeadLettersPage { frame, filter, problem, groups, names, example })
}
