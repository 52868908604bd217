//! A new destination: its form, and once it is created the first steps with it: its secret, which is shown here once, a
//! test event with the answer of the receiver, and the lines that send the first event.
//!
//! The page of the first steps is the answer to the form, and no redirect, because the secret must be stored nowhere. A
//! reload sends the form again, with the same idempotency key: it creates nothing, and shows the same page.

use askama::Template;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_api_types::{CreatedDestination, DeliveryDetail};

use crate::{
    client::{ApiPath, Call},
    example::Example,
    faults::Faults,
    fields::Fields,
    frame::{Frame, Section},
    path_id::PathId,
    units::Units as _,
    views::{DestinationText as _, WaitsForText as _},
    visit::{Answered, Visit},
};

/// The periods of limits, with the labels of their fields.
const PERIODS: [(&str, &str); 4] = [
    ("second", "Most sends in any second"),
    ("minute", "Most sends in any minute"),
    ("hour", "Most sends in any hour"),
    ("day", "Most sends in any day"),
];

#[derive(Template)]
#[template(path = "new_destination.html")]
struct FormPage {
    frame: Frame,
    /// What was typed.
    typed: Fields,
    faults: Faults,
    /// The tenants of a key that is bound to some.
    tenants: Option<Vec<String>>,
    /// Makes a form that is sent twice create one destination.
    form: String,
}

impl FormPage {
    fn value(&self, name: &str) -> &str {
        self.typed.raw(name)
    }

    fn limit(&self, period: &str) -> &str {
        self.typed.raw(&format!("limit_{period}"))
    }
}

#[derive(Template)]
#[template(path = "first_steps.html")]
struct FirstSteps {
    frame: Frame,
    created: CreatedDestination,
    example: Example,
}

impl FirstSteps {
    fn path(&self) -> String {
        format!("{}/destinations/{}", self.frame.base(), self.created.destination.id)
    }

    /// A type of events that the destination takes.
    fn event_type(&self) -> String {
        let patterns = &self.created.destination.settings.event_types;
        let taken = patterns.iter().find(|pattern| !pattern.starts_with("weir.")).map_or("*", String::as_str);
        match taken.strip_suffix('*') {
            Some("") => "video.created".to_owned(),
            Some(prefix) => format!("{prefix}created"),
            None => taken.to_owned(),
        }
    }

    /// The tenant that an event must name.
    fn tenant(&self) -> Option<&str> {
        let tenant = &*self.created.destination.settings.tenant;
        (tenant != weir_core::destination::DEFAULT_TENANT).then_some(tenant)
    }

    fn curl(&self) -> String {
        let mut event = json!({"type": self.event_type(), "data": {"id": 7}});
        if let Some(tenant) = self.tenant() {
            event["tenant"] = json!(tenant);
        }
        self.example.post("/v1/events", &event.to_string())
    }

    fn python(&self) -> String {
        self.example.python(&self.event_type(), self.tenant())
    }

    fn typescript(&self) -> String {
        self.example.typescript(&self.event_type(), self.tenant())
    }
}

/// The delivery of a test event, until the receiver has answered.
#[derive(Template)]
#[template(path = "test_answer.html")]
struct TestAnswer {
    base: String,
    found: DeliveryDetail,
}

impl TestAnswer {
    fn fragment(&self) -> String {
        format!("{}/fragments/test-events/{}", self.base, self.found.delivery.id)
    }

    fn is_waiting(&self) -> bool {
        matches!(&*self.found.delivery.state, "pending" | "delivering" | "retrying")
    }

    fn tone(&self) -> &'static str {
        match &*self.found.delivery.state {
            "delivered" => "good",
            "pending" | "delivering" => "info",
            _ => "bad",
        }
    }

    /// What the receiver answered last, in one sentence.
    fn answer(&self) -> String {
        let Some(attempt) = self.found.attempts.last() else {
            return match &self.found.delivery.waits_for {
                Some(waits_for) => waits_for.sentence(),
                None => "It is on its way.".to_owned(),
            };
        };
        let took = (f64::from(attempt.duration_ms) / 1_000.0).seconds();
        match (attempt.status_code, &attempt.error) {
            (Some(status), _) => format!("The receiver answered {status} in {took}."),
            (None, Some(error)) => format!("No answer: {error}."),
            (None, None) => "No answer.".to_owned(),
        }
    }

    fn body(&self) -> Option<&str> {
        self.found.attempts.last()?.response_body.as_deref().filter(|body| !body.trim().is_empty())
    }
}

async fn form(visit: &Visit, status: StatusCode, typed: Fields, faults: Faults) -> Answered {
    let me = visit.me().await?;
    let tenants = me.tenants.clone();
    let form = format!("form-{}", visit.site.clock.now().as_nanos());
    let frame = visit.frame(me, Section::Overview, "New destination");
    visit.page_with(status, &FormPage { frame, typed, faults, tenants, form })
}

pub(crate) async fn show(visit: Visit) -> Answered {
    form(&visit, StatusCode::OK, Fields::default(), Faults::default()).await
}

pub(crate) async fn create(visit: Visit, fields: Fields) -> Answered {
    let call = Call::new(Method::POST, &ApiPath::of(["destinations"])).json(&body(&fields))?;
    let refusal = match visit.api.send(&call.idempotency_key(fields.text("form"))?).await {
        Ok(answer) => {
            let created: CreatedDestination = answer.read()?;
            let me = visit.me().await?;
            let example = Example::new(&visit, &me);
            let stream = format!("?destination={}", created.destination.id);
            let title = format!("First steps with {}", created.destination.label());
            let frame = visit.frame(me, Section::Overview, title).live(stream);
            return visit.page_with(StatusCode::CREATED, &FirstSteps { frame, created, example });
        }
        Err(refusal) => refusal,
    };
    match refusal.status {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT | StatusCode::NOT_FOUND => {
            let faults = Faults::of(&refusal, |pointer| field_at(pointer, &fields));
            form(&visit, refusal.status, fields, faults).await
        }
        _ => Err(refusal),
    }
}

/// The limits that were typed, in the order of the body.
fn typed_limits(fields: &Fields) -> impl Iterator<Item = (&'static str, &'static str, &str)> {
    let limits = PERIODS.into_iter().map(|(period, label)| (period, label, fields.text(&format!("limit_{period}"))));
    limits.filter(|(.., limit)| !limit.is_empty())
}

/// As the API takes it. A limit that is no number goes to the API as it is, so that everything wrong is named at once.
fn body(fields: &Fields) -> Value {
    let limits: Vec<Value> = typed_limits(fields)
        .map(|(period, _, limit)| {
            let limit = limit.parse::<u64>().map_or_else(|_| json!(limit), |limit| json!(limit));
            json!({"period": period, "limit": limit})
        })
        .collect();
    let types: Vec<&str> =
        fields.raw("event_types").split([',', '\n']).map(str::trim).filter(|pattern| !pattern.is_empty()).collect();
    let mut body = json!({"url": fields.text("url"), "name": fields.text("name"), "rate_limits": limits});
    // Without them the API takes its defaults.
    if !types.is_empty() {
        body["event_types"] = json!(types);
    }
    if !fields.text("tenant").is_empty() {
        body["tenant"] = json!(fields.text("tenant"));
    }
    body
}

/// The field that has the value at a JSON pointer.
fn field_at(pointer: &str, fields: &Fields) -> Option<(String, String)> {
    let parts: Vec<&str> = pointer.split('/').skip(1).collect();
    let named = |name: &str, label: &str| Some((name.to_owned(), label.to_owned()));
    match parts.as_slice() {
        ["url"] => named("url", "URL"),
        ["name"] => named("name", "Name"),
        ["tenant"] => named("tenant", "Tenant"),
        ["event_types", ..] => named("event_types", "Event types"),
        ["rate_limits", index, ..] => {
            let (period, label, _) = typed_limits(fields).nth(index.parse().ok()?)?;
            named(&format!("limit_{period}"), label)
        }
        _ => None,
    }
}

/// Sends a test event, for the page of the first steps.
pub(crate) async fn test(visit: Visit, PathId(id): PathId) -> Answered {
    let call = Call::new(Method::POST, &ApiPath::of(["destinations", &id, "test"]));
    let found: DeliveryDetail = visit.api.send(&call).await?.read()?;
    visit.fragment(&TestAnswer { base: visit.site.base.clone(), found })
}

/// What became of the test event.
pub(crate) async fn answer(visit: Visit, PathId(delivery): PathId) -> Answered {
    let found: DeliveryDetail = visit.api.get(&ApiPath::of(["deliveries", &delivery])).await?;
    visit.fragment(&TestAnswer { base: visit.site.base.clone(), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_empty_is_left_to_the_api() {
        let fields = Fields::parse(b"url=+https://a.example/+&name=&tenant=&event_types=&limit_second=&limit_hour=ten");
        let expected =
            json!({"url": "https://a.example/", "name": "", "rate_limits": [{"period": "hour", "limit": "ten"}]});
        assert_eq!(body(&fields), expected);
        let fields =
            Fields::parse(b"url=u&tenant=acme&event_types=video.*,+a.b%0D%0Ac&limit_second=10&limit_minute=300");
        let body = body(&fields);
        assert_eq!((&body["tenant"], &body["event_types"]), (&json!("acme"), &json!(["video.*", "a.b", "c"])));
        assert_eq!(body["rate_limits"][1], json!({"period": "minute", "limit": 300}));
    }

    #[test]
    fn a_refused_limit_is_found_by_its_place_among_those_that_were_typed() {
        let fields = Fields::parse(b"limit_minute=1&limit_day=0");
        let found = |pointer: &str| field_at(pointer, &fields).map(|(name, _)| name);
        assert_eq!(found("/rate_limits/1/limit").as_deref(), Some("limit_day"));
        assert_eq!(found("/event_types/0").as_deref(), Some("event_types"));
        assert_eq!((found("/rate_limits/2/limit"), found("/retry")), (None, None));
    }
}
