//! The stored text form of a replay's filter.

use serde_json::{Map, Value, json};
use weir_core::{DeliveryState, LimitKey, Timestamp, access::TenantScope};

use crate::{DeliveryFilter, ErrorFilter, ReplayFilter};

impl ReplayFilter {
    /// One JSON object, without the terms that are not set.
    pub fn to_stored(&self) -> String {
        let DeliveryFilter { destination_id, limit_key, tenants, event_type, error, from, to, .. } = &self.deliveries;
        let mut object = Map::new();
        let states: Vec<&str> = self.states.iter().map(|state| state.as_str()).collect();
        object.insert("states".to_owned(), json!(states));
        let mut put = |name: &str, value: Option<Value>| {
            object.extend(value.map(|value| (name.to_owned(), value)));
        };
        // With a limit key the destination is an array, for the reason of the tenants below.
        let id = destination_id.map(|id| id.to_string());
        put(
            "destination",
            match limit_key {
                Some(key) => Some(json!([id, key.as_str()])),
                None => id.map(Value::String),
            },
        );
        // Several tenants are written as an array. A program of an earlier version expects one name here, so it refuses
        // to read the array. If the array had a name of its own, that program would not notice it, and would send the
        // deliveries of all tenants.
        put(
            "tenant",
            tenants.tenants().map(|tenants| match tenants.len() {
                1 => json!(tenants.first()),
                _ => json!(tenants),
            }),
        );
        put("event_type", event_type.as_ref().map(|pattern| json!(pattern.to_string())));
        put("error", error.map(|error| json!(error.to_string())));
        // In nanoseconds, because the text form of a time has only milliseconds.
        put("from", from.map(|from| json!(from.as_nanos())));
        put("to", to.map(|to| json!(to.as_nanos())));
        Value::Object(object).to_string()
    }

    /// `None` if [`Self::to_stored`] did not write the text.
    pub fn from_stored(text: &str) -> Option<Self> {
        let object: Map<String, Value> = serde_json::from_str(text).ok()?;
        // A term that is missing is not set. One that is there must be valid, or the text is refused.
        fn parsed<T: std::str::FromStr>(object: &Map<String, Value>, name: &str) -> Option<Option<T>> {
            let Some(value) = object.get(name) else { return Some(None) };
            value.as_str()?.parse().ok().map(Some)
        }
        // The same for instants, in nanoseconds.
        let time = |name: &str| object.get(name).map(|value| value.as_i64().map(Timestamp::from_nanos));
        let time = |name: &str| match time(name) {
            None => Some(None),
            Some(time) => time.map(Some),
        };
        let (destination_id, limit_key) = match object.get("destination") {
            None => (None, None),
            Some(Value::Array(of_key)) => {
                let [id, key] = &of_key[..] else { return None };
                let id = if id.is_null() { None } else { Some(id.as_str()?.parse().ok()?) };
                (id, Some(LimitKey::new(key.as_str()?)))
            }
            Some(id) => (Some(id.as_str()?.parse().ok()?), None),
        };
        let states = object.get("states")?.as_array()?.iter();
        Some(Self {
            states: states.map(|state| DeliveryState::parse(state.as_str()?)).collect::<Option<_>>()?,
            deliveries: DeliveryFilter {
                destination_id,
                limit_key,
                tenants: object.get("tenant").map_or(Some(TenantScope::All), tenants)?,
                event_type: parsed(&object, "event_type")?,
                error: parsed::<ErrorFilter>(&object, "error")?,
                from: time("from")?,
                to: time("to")?,
                ..DeliveryFilter::default()
            },
        })
    }
}

/// One tenant as a string, or several as an array.
fn tenants(stored: &Value) -> Option<TenantScope> {
    match stored {
        Value::String(tenant) => Some(TenantScope::one(tenant)),
        Value::Array(tenants) => {
            let tenants = tenants.iter().map(|tenant| tenant.as_str().map(str::to_owned));
            tenants.collect::<Option<_>>().map(TenantScope::Only)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use weir_core::DestinationId;

    use super::*;

    #[test]
    fn a_filter_is_read_as_it_was_stored() {
        let all = ReplayFilter { states: vec![DeliveryState::Dead], deliveries: DeliveryFilter::default() };
        let some = ReplayFilter {
            states: crate::REPLAYABLE.to_vec(),
            deliveries: DeliveryFilter {
                destination_id: Some(DestinationId::from_bytes([7; 16])),
                tenants: TenantScope::one("acme"),
                event_type: Some("video.*".parse().expect("a pattern")),
                error: Some(ErrorFilter::Status(503)),
                from: Some(Timestamp::from_nanos(1)),
                to: Some(Timestamp::from_nanos(2)),
                ..DeliveryFilter::default()
            },
        };
        let mut kind = some.clone();
        kind.deliveries.error = "timeout".parse().ok();
        let mut several = some.clone();
        several.deliveries.tenants = TenantScope::Only(["acme", "globex"].map(str::to_owned).into());
        let mut of_key = some.clone();
        of_key.deliveries.limit_key = Some(LimitKey::new("cus_1"));
        // An earlier version expects a text, so it refuses the filter.
        let stored: Value = serde_json::from_str(&of_key.to_stored()).expect("JSON");
        assert!(stored["destination"].as_str().is_none());
        // It matches nothing, and is not to become one of all deliveries.
        let mut of_no_destination = of_key.clone();
        of_no_destination.deliveries.destination_id = None;
        for filter in [all, some, kind, several, of_key, of_no_destination] {
            assert_eq!(ReplayFilter::from_stored(&filter.to_stored()).as_ref(), Some(&filter));
        }
        assert_eq!(ReplayFilter::from_stored("{}"), None);
        assert_eq!(ReplayFilter::from_stored(r#"{"states":["dead"],"tenant":7}"#), None);
    }
}
