//! The activity log: who changed what, from what to what.

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use weir_api_types::{Activity, ActivitySubject, List};
use weir_core::access::Role;

use super::{
    activity_changes::{Change, changes},
    destination::{Head, Tab, read as read_destination},
    export::Export,
};
use crate::{
    client::{ApiPath, append},
    delivery_filter::instant,
    example::Example,
    extend::extend,
    faults::Faults,
    frame::{Also, Frame, Me, Section},
    live_region::LiveRegion,
    names::destination_id,
    path_id::PathId,
    range::Picker,
    refusal::Refusal,
    units::Units as _,
    views::DestinationText as _,
    visit::{Answered, Visit},
};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filter {
    destination: String,
    actor: String,
    from: String,
    to: String,
    cursor: String,
    /// The version of the list that the browser has.
    seen: String,
    /// Not empty for the list on the page of its destination.
    within: String,
}

impl Filter {
    /// The path of the API with this filter.
    fn conditions(&self, path: ApiPath) -> ApiPath {
        path.with("destination", self.destination.trim())
            .with("actor", self.actor.trim())
            .with("from", &instant(&self.from))
            .with("to", &instant(&self.to))
    }

    fn api_path(&self) -> ApiPath {
        self.conditions(ApiPath::of(["activity"])).with("cursor", &self.cursor)
    }

    /// The page of this list: its own one, or that of its destination.
    fn page(&self) -> String {
        if self.within.is_empty() {
            "/activity".to_owned()
        } else {
            format!("/destinations/{}/activity", self.destination)
        }
    }

    /// A link to the page of this list.
    fn page_link(&self, base: &str, cursor: &str) -> String {
        let of_all = if self.within.is_empty() { self.destination.clone() } else { String::new() };
        Self { destination: of_all, ..self.clone() }.link(&format!("{base}{}", self.page()), cursor)
    }

    fn link(&self, path: &str, cursor: &str) -> String {
        let mut link = path.to_owned();
        let parameters =
            [("destination", &*self.destination), ("actor", &*self.actor), ("from", &*self.from), ("to", &*self.to)];
        for (name, value) in parameters.into_iter().chain([("cursor", cursor)]) {
            append(&mut link, name, value);
        }
        link
    }

    fn is_empty(&self) -> bool {
        let is_of_all = self.within.is_empty() && !self.destination.is_empty();
        !is_of_all && [&self.actor, &self.from, &self.to, &self.cursor].iter().all(|value| value.is_empty())
    }
}

extend! {
    pub(crate) trait ActivityText for Activity {
        /// What the actor is, if it is not a stored key, whose id is shown: names of keys are chosen by people.
        fn actor_kind(&self) -> &str {
            match self.actor_kind.as_str() {
                "setting" => "key of the settings",
                "anonymous" => "without a key",
                "system" => "Weir itself",
                other => other,
            }
        }

        /// `destination.edited` in words.
        fn what(&self) -> String {
            let (noun, verb) = self.action.split_once('.').unwrap_or(("", &self.action));
            format!("{noun} {verb}").replace('_', " ").trim().to_owned()
        }

        /// The page of what was changed, and its name.
        fn subject(&self) -> Option<(Option<String>, String)> {
            let ActivitySubject { kind, id, name } = self.subject.as_ref()?;
            let page = match kind.as_str() {
                "destination" => Some(format!("/destinations/{id}")),
                "delivery" => Some(format!("/deliveries/{id}")),
                "replay" => Some(format!("/replays/{id}")),
                "limit_group" => Some(format!("/limit-groups/{id}")),
                "event_type" => Some(format!("/event-types/{id}")),
                _ => None,
            };
            let label = name.clone().filter(|name| !name.trim().is_empty()).unwrap_or_else(|| id.clone());
            // What is deleted has no page any more.
            Some((page.filter(|_| !self.action.ends_with(".deleted")), label))
        }

        fn changes(&self) -> Vec<Change> {
            changes(self.before.as_ref(), self.after.as_ref())
        }
    }
}

/// The rows, and the links below them.
struct Log {
    base: String,
    filter: Filter,
    page: List<Activity>,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl Log {
    /// Every filter has an index, so the first page may be read again at every snapshot.
    fn new(visit: &Visit, me: &Me, filter: Filter, (page, version): (List<Activity>, Option<String>)) -> Self {
        let base = visit.site.base.clone();
        let mut fragment = filter.link(&format!("{base}/fragments/activity"), "");
        append(&mut fragment, "within", &filter.within);
        let version = version.filter(|_| filter.cursor.is_empty());
        let live = version.map(|version| LiveRegion::prompt(fragment, &version));
        Self { base, filter, page, example: Example::new(visit, me), live }
    }

    fn path(&self) -> String {
        format!("{}{}", self.base, self.filter.page())
    }

    fn first(&self) -> Option<String> {
        (!self.filter.cursor.is_empty()).then(|| self.filter.page_link(&self.base, ""))
    }

    fn next(&self) -> Option<String> {
        Some(self.filter.page_link(&self.base, self.page.next_cursor.as_deref()?))
    }

    /// The whole list as a file.
    fn export(&self, format: &str) -> String {
        let mut link = self.filter.link(&format!("{}/activity/export", self.base), "");
        append(&mut link, "format", format);
        link
    }
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    frame: Frame,
    faults: Faults,
    range: Picker,
    log: Log,
}

/// The same on the page of a destination.
#[derive(Template)]
#[template(path = "destination_activity.html")]
struct OfDestination {
    frame: Frame,
    head: Head,
    faults: Faults,
    range: Picker,
    log: Log,
}

#[derive(Template)]
#[template(path = "activity_log.html")]
struct ActivityLog {
    log: Log,
}

/// The rows, and why the filter matches none.
async fn read(visit: &Visit, me: &Me, filter: Filter, faults: Faults) -> Result<(Log, Faults), Refusal> {
    let nothing = (List { data: Vec::new(), next_cursor: None }, None);
    if !faults.is_empty() {
        return Ok((Log::new(visit, me, filter, nothing), faults));
    }
    let (read, faults) = match visit.api.get_versioned(&filter.api_path()).await {
        Ok((page, version)) => ((page, Some(version)), faults),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            let label = |field: &str| match field {
                "destination" => "Destination",
                "actor" => "Who",
                "from" => "From",
                _ => "Before",
            };
            (
                nothing,
                Faults::of(&refusal, |pointer| {
                    let field = pointer.strip_prefix('/').unwrap_or(pointer);
                    ["destination", "actor", "from", "to"]
                        .contains(&field)
                        .then(|| (field.to_owned(), label(field).to_owned()))
                }),
            )
        }
        Err(refusal) => return Err(refusal),
    };
    Ok((Log::new(visit, me, filter, read), faults))
}

pub(crate) async fn show(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let filter = Filter { within: String::new(), ..filter };
    let given = filter.destination.trim().to_owned();
    let mut faults = Faults::default();
    match destination_id(&visit, &given).await? {
        // The link of the page has the id, whatever was typed.
        Ok(id) if id != given => {
            return visit.redirect(&Filter { destination: id, ..filter }.link("/activity", ""), None);
        }
        Ok(_) => {}
        Err(problem) => faults.add("destination", "Destination", problem),
    }
    let me = visit.me().await?;
    let (log, faults) = read(&visit, &me, filter, faults).await?;
    let range = Picker::of(&visit.site, &log.filter.from, &log.filter.to);
    let frame = visit.frame(me, Section::Activity, "Activity").live_if_first(&log.filter.cursor, Also::Activity);
    visit.page(&ActivityPage { frame, faults, range, log })
}

pub(crate) async fn of_destination(visit: Visit, PathId(id): PathId, Query(filter): Query<Filter>) -> Answered {
    let (me, (destination, etag)) = tokio::try_join!(visit.me(), read_destination(&visit, &id))?;
    let filter = Filter { destination: id, within: "destination".to_owned(), ..filter };
    let (log, faults) = read(&visit, &me, filter, Faults::default()).await?;
    let range = Picker::of(&visit.site, &log.filter.from, &log.filter.to);
    let (base, can_operate) = (visit.site.base.clone(), me.role.includes(Role::Operate));
    let frame = visit.frame(me, Section::None, format!("Activity of {}", destination.label()));
    let frame = if log.live.is_some() { frame.live(format!("?destination={}", destination.id)) } else { frame };
    let head = Head { base, destination, etag, tab: Tab::Activity, can_operate };
    visit.page(&OfDestination { frame, head, faults, range, log })
}

/// The rows of the first page, for live updates.
pub(crate) async fn fragment(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let read = visit.api.get_versioned(&filter.api_path()).await?;
    if read.1 == filter.seen {
        return visit.unchanged();
    }
    let me = visit.me().await?;
    visit.fragment(&ActivityLog { log: Log::new(&visit, &me, filter, (read.0, Some(read.1))) })
}

/// The whole list as a file.
pub(crate) async fn export(visit: Visit, Query(filter): Query<Filter>, Query(export): Query<Export>) -> Answered {
    export.activity(visit, filter.conditions(ApiPath::of(["activity"]))).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_activity_names_what_was_done_and_leads_to_its_subject() {
        let entry: Activity = serde_json::from_value(json!({
            "id": "act_1", "at": "2026-11-21T07:30:00.000Z", "actor": "billing", "actor_kind": "key", "actor_key_id": "key_1",
            "action": "destination.secret_rotated", "tenant": "acme", "request_id": "r1", "before": null, "after": null,
            "subject": {"type": "destination", "id": "dst_1", "name": "Acme"},
        }))
        .unwrap();
        assert_eq!(entry.what(), "destination secret rotated");
        let entry = Activity { action: "limit_group.overridden".to_owned(), ..entry };
        assert_eq!(entry.what(), "limit group overridden");
        assert_eq!(entry.subject(), Some((Some("/destinations/dst_1".to_owned()), "Acme".to_owned())));
    }

    #[test]
    fn the_list_of_a_destination_stays_on_its_page() {
        let filter = Filter { destination: "dst_1".to_owned(), actor: "ann".to_owned(), ..Filter::default() };
        assert_eq!(filter.page_link("/weir", "c"), "/weir/activity?destination=dst_1&actor=ann&cursor=c");
        let within = Filter { within: "destination".to_owned(), ..filter };
        assert_eq!(within.page_link("/weir", "c"), "/weir/destinations/dst_1/activity?actor=ann&cursor=c");
    }
}
