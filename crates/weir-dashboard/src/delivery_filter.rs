//! The filter of deliveries, which is in the URL of every page that shows some of them.
//!
//! A page shows the filter as chips. Each chip is a link to the same page without it, so that filters work without
//! JavaScript and can be passed on as a link.

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::Timestamp;

use crate::{
    client::{ApiPath, append},
    fields::Fields,
    names::destination_id,
    refusal::Refusal,
    visit::Visit,
};

/// The states of a delivery, in the order of its life.
pub(crate) const STATES: [&str; 9] =
    ["pending", "delivering", "retrying", "delivered", "failed", "dead", "cancelled", "superseded", "expired"];
/// The states that a replay takes.
pub(crate) const REPLAYABLE: [&str; 4] = ["dead", "failed", "cancelled", "delivered"];
/// Errors in one word; a status such as `503` is one too.
pub(crate) const ERRORS: [&str; 10] =
    ["timeout", "connect", "dns", "tls", "broken", "forbidden", "unknown", "3xx", "4xx", "5xx"];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeliveryFilter {
    pub(crate) destination: String,
    pub(crate) event: String,
    /// Separated by commas, in the order of [`STATES`]. Unknown ones follow them, so that the API refuses the filter
    /// instead of matching everything.
    pub(crate) state: String,
    pub(crate) tenant: String,
    pub(crate) event_type: String,
    pub(crate) error: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) order: String,
}

/// A part of the filter.
pub(crate) struct Chip {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// The same page without it.
    pub(crate) without: String,
}

/// A state that a page can be limited to.
pub(crate) struct StateLink {
    pub(crate) name: &'static str,
    pub(crate) is_on: bool,
    /// The same page with the state added or removed.
    pub(crate) turned: String,
}

impl DeliveryFilter {
    pub(crate) fn read(fields: &Fields) -> Self {
        let text = |name: &str| fields.text(name).to_owned();
        let given = fields.all("state").into_iter().flat_map(|states| states.split(',')).collect::<Vec<_>>();
        Self {
            destination: text("destination"),
            event: text("event"),
            state: joined(&given, |state| given.contains(&state)),
            tenant: text("tenant"),
            event_type: text("event_type"),
            error: text("error"),
            from: text("from"),
            to: text("to"),
            order: text("order"),
        }
    }

    pub(crate) fn has_state(&self, state: &str) -> bool {
        self.states().any(|known| known == state)
    }

    fn states(&self) -> impl Iterator<Item = &str> {
        self.state.split(',').filter(|state| !state.is_empty())
    }

    /// The filter with the id of its destination; or why it matches nothing, as a refusal. A filter that cannot be
    /// understood must never match everything.
    pub(crate) async fn resolved(&self, visit: &Visit) -> Result<Result<Self, Refusal>, Refusal> {
        let refused =
            |reason: String| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "The filter matches nothing", reason);
        let unknown: Vec<&str> = self.states().filter(|state| !STATES.contains(state)).collect();
        if !unknown.is_empty() {
            let states = STATES.join(", ");
            return Ok(Err(refused(format!("There is no state “{}”. The states are {states}.", unknown.join(", ")))));
        }
        let found = destination_id(visit, &self.destination).await?;
        Ok(found.map(|destination| Self { destination, ..self.clone() }).map_err(refused))
    }

    /// The parameters by name, without the states and the order.
    fn conditions(&self) -> [(&'static str, &'static str, &String); 7] {
        [
            ("destination", "Destination", &self.destination),
            ("event", "Event", &self.event),
            ("event_type", "Type", &self.event_type),
            ("error", "Error", &self.error),
            ("tenant", "Tenant", &self.tenant),
            ("from", "From", &self.from),
            ("to", "Before", &self.to),
        ]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.is_empty() && self.conditions().iter().all(|(_, _, value)| value.is_empty())
    }

    /// Whether the store reads the event or the last attempt of thousands of deliveries to find a page of them.
    pub(crate) fn is_costly(&self) -> bool {
        self.event.is_empty() && [&self.tenant, &self.event_type, &self.error].iter().any(|value| !value.is_empty())
    }

    /// A link to `path` with this filter.
    pub(crate) fn link(&self, path: &str) -> String {
        let mut link = path.to_owned();
        for (name, _, value) in self.conditions() {
            append(&mut link, name, value);
        }
        append(&mut link, "state", &self.state);
        append(&mut link, "order", &self.order);
        link
    }

    /// The path of the API with this filter.
    pub(crate) fn api_path(&self, path: ApiPath) -> ApiPath {
        let path = self.conditions().into_iter().fold(path, |path, (name, _, value)| match name {
            "from" | "to" => path.with(name, &instant(value)),
            _ => path.with(name, value),
        });
        path.with("state", &self.state).with("order", &self.order)
    }

    /// The conditions, for chips. `name_of` shows the name of a destination instead of its id.
    pub(crate) fn chips(&self, path: &str, name_of: impl Fn(&str) -> String) -> Vec<Chip> {
        let set = self.conditions().into_iter().filter(|(_, _, value)| !value.is_empty());
        let states: Vec<&str> = self.states().collect();
        // The known states have links of their own.
        let unknown = states.iter().filter(|state| !STATES.contains(state)).map(|state| {
            let others: Vec<&str> = states.iter().copied().filter(|other| other != state).collect();
            let without = Self { state: others.join(","), ..self.clone() }.link(path);
            Chip { name: "State", value: (*state).to_owned(), without }
        });
        set.map(|(parameter, name, value)| Chip {
            name,
            value: if parameter == "destination" { name_of(value) } else { value.clone() },
            without: self.without(parameter).link(path),
        })
        .chain(unknown)
        .collect()
    }

    fn without(&self, parameter: &str) -> Self {
        let mut other = self.clone();
        let field = match parameter {
            "destination" => &mut other.destination,
            "event" => &mut other.event,
            "event_type" => &mut other.event_type,
            "error" => &mut other.error,
            "tenant" => &mut other.tenant,
            "from" => &mut other.from,
            _ => &mut other.to,
        };
        field.clear();
        other
    }

    pub(crate) fn state_links(&self, path: &str) -> Vec<StateLink> {
        let link = |name: &'static str| {
            let is_on = self.has_state(name);
            let given: Vec<&str> = self.states().collect();
            let state = joined(&given, |state| if state == name { !is_on } else { self.has_state(state) });
            StateLink { name, is_on, turned: Self { state, ..self.clone() }.link(path) }
        };
        STATES.into_iter().map(link).collect()
    }

    /// Whether a replay can take all deliveries of this filter: it has no filter by event.
    pub(crate) fn is_replayable(&self) -> bool {
        self.event.is_empty() && !self.state.is_empty() && self.states().all(|state| REPLAYABLE.contains(&state))
    }

    /// The body of `POST /v1/replays` for the deliveries of this filter.
    pub(crate) fn replay(&self) -> Value {
        let given = |value: &str| if value.is_empty() { Value::Null } else { json!(value) };
        let states: Vec<&str> = self.states().collect();
        json!({
            "states": if states.is_empty() { Value::Null } else { json!(states) },
            "destination": given(&self.destination),
            "tenant": given(&self.tenant),
            "event_type": given(&self.event_type),
            "error": given(&self.error),
            "from": given(&instant(&self.from)),
            "to": given(&instant(&self.to)),
        })
    }

    /// The fields of a form that has this filter, as hidden inputs.
    pub(crate) fn hidden(&self) -> Vec<(&'static str, &str)> {
        let conditions = self.conditions().into_iter().map(|(name, _, value)| (name, value.as_str()));
        conditions.chain([("state", &*self.state)]).filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// The known states that are on, and the unknown ones among the given.
fn joined(given: &[&str], is_on: impl Fn(&str) -> bool) -> String {
    let unknown = given.iter().copied().map(str::trim).filter(|state| !state.is_empty() && !STATES.contains(state));
    STATES.into_iter().filter(|state| is_on(state)).chain(unknown).collect::<Vec<_>>().join(",")
}

/// An instant as the API reads it. The field of a form has no zone: `2026-11-21T07:30` is in UTC, and so is what the
/// pages show: `2026-11-21 07:30:00`.
pub(crate) fn instant(value: &str) -> String {
    let value = value.trim().trim_end_matches(" UTC");
    let value = &match value.split_once(' ') {
        Some((day, clock)) if day.len() == 10 && day.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("{day}T{clock}")
        }
        _ => value.to_owned(),
    };
    let is_local = value.len() >= 16 && value.as_bytes()[10] == b'T' && !value.ends_with(['Z', 'z']);
    let has_offset = value.get(16..).is_some_and(|rest| rest.contains(['+', '-']));
    match value.len() {
        16 if is_local => format!("{value}:00Z"),
        _ if is_local && !has_offset => format!("{value}Z"),
        _ => value.to_owned(),
    }
}

/// An instant as the field of a form shows it, in UTC.
pub(crate) fn field_value(value: &str) -> String {
    match instant(value).parse::<Timestamp>() {
        Ok(at) => at.to_string().get(..19).unwrap_or_default().to_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> DeliveryFilter {
        DeliveryFilter::read(&Fields::parse(query.as_bytes()))
    }

    #[test]
    fn a_filter_is_read_from_its_own_link() {
        let filter = read("state=failed&state=dead&error=5xx&event_type=video.*&destination=dst_1");
        assert_eq!(filter.state, "failed,dead");
        let link = filter.link("/deliveries");
        assert_eq!(link, "/deliveries?destination=dst_1&event_type=video.*&error=5xx&state=failed,dead");
        assert_eq!(read(link.split_once('?').unwrap().1), filter);
    }

    #[test]
    fn a_chip_leads_to_the_page_without_it() {
        let chips = read("error=503&tenant=a%26b&state=dead").chips("/dead-letters", str::to_owned);
        let shown: Vec<_> = chips.iter().map(|chip| (chip.name, &*chip.value, &*chip.without)).collect();
        let expected = [
            ("Error", "503", "/dead-letters?tenant=a%26b&state=dead"),
            ("Tenant", "a&b", "/dead-letters?error=503&state=dead"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_state_is_turned_on_and_off_by_its_link() {
        let links = read("state=dead").state_links("/deliveries");
        let turned = |name: &str| links.iter().find(|link| link.name == name).map(|link| (link.is_on, &*link.turned));
        assert_eq!(turned("dead"), Some((true, "/deliveries")));
        assert_eq!(turned("failed"), Some((false, "/deliveries?state=failed,dead")));
    }

    #[test]
    fn a_replay_takes_what_the_filter_shows() {
        let filter = read("state=dead&from=2026-11-21T07:30&error=timeout");
        let body = filter.replay();
        assert_eq!((&body["states"], &body["from"]), (&json!(["dead"]), &json!("2026-11-21T07:30:00Z")));
        assert_eq!((&body["error"], &body["tenant"]), (&json!("timeout"), &Value::Null));
        assert_eq!(read("state=dead,bogus").replay()["states"], json!(["dead", "bogus"]));
        let replayable = ["state=dead", "state=dead,pending", "state=dead&event=evt_1", ""];
        assert_eq!(replayable.map(|query| read(query).is_replayable()), [true, false, false, false]);
    }

    #[test]
    fn a_time_without_a_zone_is_in_utc() {
        for (given, expected) in [
            ("2026-11-21T07:30", "2026-11-21T07:30:00Z"),
            ("2026-11-21 07:30", "2026-11-21T07:30:00Z"),
            ("2026-11-21 07:30:15 UTC", "2026-11-21T07:30:15Z"),
            ("2026-11-21T07:30:15", "2026-11-21T07:30:15Z"),
            ("2026-11-21T07:30:15Z", "2026-11-21T07:30:15Z"),
            ("2026-11-21T07:30:15+02:00", "2026-11-21T07:30:15+02:00"),
            ("yesterday", "yesterday"),
            ("", ""),
        ] {
            assert_eq!(instant(given), expected);
        }
        assert_eq!(field_value("2026-11-21T09:30:15+02:00"), "2026-11-21T07:30:15");
    }
}
