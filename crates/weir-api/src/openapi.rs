//! The OpenAPI document.
//!
//! Each handler describes itself in its own file. This file adds the shared parts: request bodies, parameters, and the
//! refusals that follow from the shape of a route. A test checks that document and routes agree.

mod audit_report;
mod schemas;
mod strings;

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        ContentBuilder, OpenApi as Document, Ref, RefOr, Response, ResponseBuilder, Schema,
        path::{Operation, ParameterIn},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::{
    alerts, audit, backlog, deliveries, destinations, docs, events, health, ingest, page::Listing,
    problem::ProblemKind, purge, replays, secrets,
};

pub(crate) use audit_report::Audit;
pub(crate) use schemas::{
    Alerts, BatchProblem, BatchRequest, DestinationPatchRequest, DestinationRequest, EventRequest, PageParameters,
    PurgeRequest, RangeParameters, Refused, ReplayRequest, RotateSecretRequest, TraceParameters,
};
pub(crate) use strings::{
    AttemptErrorText, DeliveryIdText, DeliveryStateText, DestinationIdText, EventIdText, EventPatternText,
    EventTypeText, ReplayIdText, TenantText,
};

/// The document as served.
pub(crate) static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let json = Api::openapi().to_pretty_json();
    json.unwrap_or_else(|error| format!(r#"{{"error": "{error}"}}"#)).into()
});

/// The attribute below repeats this name, because it accepts only literals.
const SECURITY_SCHEME: &str = "api_key";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weir",
        description = "Outbound webhooks at exactly the rate the other side can take.\n\n\
            Times are RFC 3339 in UTC with milliseconds. Field names include the unit. Lists show the newest row first: \
            follow `next_cursor` until it is null. Every refused request gets a problem (RFC 9457) and changes nothing. \
            `errors` names each invalid value by a JSON pointer, or a query parameter by `/` and its name. Unknown fields \
            and parameters are refused. Without configured API keys the server listens only on loopback and requests need \
            no key. A request must name a loopback host or a configured host; otherwise the answer is 421.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "events", description = "Facts that a producer sends once and Weir delivers to several destinations."),
        (name = "destinations", description = "The endpoints that receive events, with their limits and settings."),
        (name = "deliveries", description = "One event owed to one destination, and its attempts."),
        (name = "replays", description = "Ended deliveries that are sent again beside live traffic."),
        (name = "alerts", description = "Thresholds for alerts about destinations. Alerts are events whose type begins with `weir.`."),
        (name = "operation", description = "Health, metrics and this documentation. These paths need no key.")
    ),
    paths(
        ingest::post, ingest::post_batch, events::list, events::show,
        destinations::create, destinations::list, destinations::show, destinations::edit, destinations::delete,
        secrets::show, secrets::rotate, backlog::show, purge::purge, audit::show,
        deliveries::list, deliveries::show, deliveries::retry, deliveries::cancel,
        replays::create, replays::list, replays::show, replays::cancel,
        alerts::show, alerts::set,
        health::live, health::ready, health::metrics, docs::openapi, docs::page
    ),
    components(schemas(
        crate::problem::ProblemDocument<'_>,
        AttemptErrorText, DeliveryIdText, DeliveryStateText, DestinationIdText, EventIdText, EventPatternText,
        EventTypeText, ReplayIdText, TenantText
    )),
    security(("api_key" = [])),
    modifiers(&Shared)
)]
struct Api;

/// Adds the security scheme and the refusals that follow from the shape of a route.
struct Shared;

impl Modify for Shared {
    fn modify(&self, document: &mut Document) {
        if let Some(components) = document.components.as_mut() {
            let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("A configured API key"));
            let scheme = RefOr::T(SecurityScheme::Http(bearer.build()));
            components.security_schemes.insert(SECURITY_SCHEME.to_owned(), scheme);
            for kind in ProblemKind::ALL {
                components.responses.insert(response_name(kind), RefOr::T(response(kind)));
            }
        }
        for (path, item) in &mut document.paths.paths {
            let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in methods.into_iter().filter_map(Option::as_mut) {
                if let Some(listing) = Listing::at(path) {
                    describe_cursor(operation, &listing.cursor_pattern());
                }
                for kind in refusals(path, operation) {
                    let responses = &mut operation.responses.responses;
                    responses
                        .entry(kind.status().as_str().to_owned())
                        .or_insert_with(|| RefOr::Ref(Ref::from_response_name(response_name(kind))));
                }
            }
        }
    }
}

/// Adds the pattern of the list's cursors to the parameter `cursor`.
fn describe_cursor(operation: &mut Operation, pattern: &str) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && parameter.name == "cursor"
            && let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema
        {
            schema.pattern = Some(pattern.to_owned());
        }
    }
}

/// The refusals that a request of this shape may get.
fn refusals(path: &str, operation: &Operation) -> Vec<ProblemKind> {
    let has = |place: ParameterIn| {
        operation.parameters.iter().flatten().any(|parameter| match parameter {
            RefOr::T(parameter) => parameter.parameter_in == place,
            RefOr::Ref(_) => false,
        })
    };
    let mut kinds = vec![ProblemKind::Invalid, ProblemKind::Misdirected];
    if path.starts_with("/v1/") {
        kinds.extend([ProblemKind::Unauthorized, ProblemKind::Internal, ProblemKind::Unavailable]);
    }
    if path == "/readyz" {
        kinds.extend([ProblemKind::Internal, ProblemKind::Unavailable]);
    }
    if has(ParameterIn::Path) || path == "/metrics" {
        kinds.push(ProblemKind::NotFound);
    }
    if operation.request_body.is_some() {
        kinds.extend([
            ProblemKind::NotJson,
            ProblemKind::Timeout,
            ProblemKind::TooLarge,
            ProblemKind::UnsupportedMediaType,
        ]);
    }
    kinds
}

fn response_name(kind: ProblemKind) -> String {
    format!("{kind:?}")
}

fn response(kind: ProblemKind) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(kind.title()).content("application/problem+json", content).build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::{problem::FieldError, routes, settings};

    fn document() -> Value {
        serde_json::from_slice(&DOCUMENT).unwrap()
    }

    #[test]
    fn the_document_and_the_router_have_the_same_routes() {
        let operations = routes::operation_table();
        let operations = operations.iter().map(|route| format!("{} {}", route.method, route.path));
        let served: BTreeSet<String> =
            routes::table().iter().map(|route| format!("{} {}", route.method, route.path)).chain(operations).collect();
        let document = document();
        let described: BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
            })
            .collect();
        assert_eq!(served, described);
    }

    #[test]
    fn every_reference_of_the_document_resolves() {
        fn references(value: &Value, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        found.insert(reference.clone());
                    }
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 10, "{found:?}");
        for reference in found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_text_that_a_pattern_describes_is_accepted() {
        use proptest::{strategy::Strategy, string::string_regex, test_runner::TestRunner};
        use weir_core::{
            DeliveryId, DeliveryState, DestinationId, EventId, ReplayId, event::valid_type, pattern::EventPattern,
            signing::Secret,
        };
        use weir_store::{ErrorFilter, REPLAYABLE};

        type IsAccepted = fn(&str) -> bool;
        fn parses<T: std::str::FromStr>(text: &str) -> bool {
            text.parse::<T>().is_ok()
        }
        let table: [(&str, IsAccepted); 12] = [
            ("DestinationId", parses::<DestinationId>),
            ("EventId", parses::<EventId>),
            ("DeliveryId", parses::<DeliveryId>),
            ("ReplayId", parses::<ReplayId>),
            ("Tenant", |text| settings::check_tenant(text).is_ok()),
            ("EventType", valid_type),
            ("EventPattern", parses::<EventPattern>),
            ("DeliveryState", |text| DeliveryState::parse(text).is_some()),
            ("WaitingState", |text| DeliveryState::parse(text).is_some()),
            ("ReplayableState", |text| DeliveryState::parse(text).is_some_and(|state| REPLAYABLE.contains(&state))),
            ("AttemptError", parses::<ErrorFilter>),
            ("SigningSecret", parses::<Secret>),
        ];
        let document = document();
        let mut runner = TestRunner::deterministic();
        for (name, is_accepted) in table {
            let schema = document.pointer(&format!("/components/schemas/{name}")).unwrap();
            let pattern = schema["pattern"].as_str().unwrap().trim_start_matches('^').trim_end_matches('$');
            let max_length = schema["maxLength"].as_u64().unwrap_or(u64::MAX);
            let texts = string_regex(pattern).unwrap().prop_filter("too long", |text| text.len() as u64 <= max_length);
            runner
                .run(&texts, |text| {
                    proptest::prop_assert!(is_accepted(&text), "{} {}", name, text);
                    Ok(())
                })
                .unwrap();
        }
    }

    #[test]
    fn every_cursor_has_the_pattern_of_its_list() {
        for (path, item) in document()["paths"].as_object().unwrap() {
            let parameters = item["get"]["parameters"].as_array();
            let cursor = parameters.into_iter().flatten().find(|parameter| parameter["name"] == "cursor");
            let described = cursor.map(|cursor| cursor["schema"]["pattern"].clone());
            assert_eq!(described, Listing::at(path).map(|listing| json!(listing.cursor_pattern())), "{path}");
        }
    }

    #[test]
    fn every_operation_has_a_unique_name() {
        let document = document();
        let operations =
            document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
        let names: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }

    #[test]
    fn every_guarded_route_describes_its_refusals() {
        for (path, item) in document()["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                assert!(responses.contains_key("421") && responses.contains_key("422"), "{method} {path}");
                assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
                assert!(operation["summary"].is_string(), "{method} {path}");
                if path.starts_with("/v1/") {
                    for status in ["401", "500", "503"] {
                        assert!(responses.contains_key(status), "{method} {path} {status}");
                    }
                } else {
                    assert_eq!(operation["security"], json!([{}]), "{method} {path}");
                }
            }
        }
    }

    /// Sends every property of the schema with a value of the wrong type: each must be known, and refused for its type.
    #[test]
    fn the_described_request_matches_the_fields_that_are_read() {
        let document = document();
        for name in ["DestinationRequest", "DestinationPatch"] {
            let properties = document.pointer(&format!("/components/schemas/{name}/properties")).unwrap();
            let names: BTreeSet<String> =
                properties.as_object().unwrap().keys().map(|name| format!("/{name}")).collect();
            let body: Value =
                properties.as_object().unwrap().keys().map(|name| (name.clone(), json!({"": 1}))).collect();
            let problem = settings::read(body, &Default::default()).unwrap_err();
            let unknown =
                |error: &&FieldError| error.pointer.matches('/').count() == 1 && error.detail.contains("known");
            assert_eq!(problem.errors().iter().find(unknown), None, "{name}");
            let refused: BTreeSet<String> = problem
                .errors()
                .iter()
                .filter_map(|error| error.pointer.split('/').nth(1))
                .map(|name| format!("/{name}"))
                .collect();
            assert_eq!(refused, names, "{name}");
        }
    }

    #[test]
    fn the_described_audit_matches_the_audit_that_is_shown() {
        use weir_core::{
            DeliveryId, Period, RateLimit, RateLimits, Timestamp,
            audit::{Auditor, UnknownSend},
        };
        fn names(value: &Value) -> BTreeSet<&String> {
            value.as_object().unwrap().keys().collect()
        }
        let limits = RateLimits::new(vec![RateLimit::new(1, Period::Second).unwrap()]).unwrap();
        let mut auditor = Auditor::new(vec![(Timestamp::MIN, limits)], Timestamp::MIN, Timestamp::MAX);
        let delivery_id = DeliveryId::from_bytes([1; 16]);
        auditor.unknown_send(UnknownSend { delivery_id, number: 1, latest_at: Timestamp::from_secs(1) });
        let shown = serde_json::to_value(auditor.report()).unwrap();
        let document = document();
        let schema = |name: &str| document.pointer(&format!("/components/schemas/{name}/properties")).unwrap().clone();
        let table = [
            ("Audit", &shown),
            ("LimitAudit", &shown["rate_limits"][0]),
            ("Window", &shown["rate_limits"][0]["worst_sliding_window"]),
            ("UnknownSend", &shown["unknown_sends"][0]),
            ("Latency", &shown["delivery_latency_ms"]),
            ("Series", &shown["series"]),
            ("SeriesCap", &shown["series"]["caps"][0]),
        ];
        for (name, value) in table {
            assert_eq!(names(&schema(name)), names(value), "{name}");
        }
    }
}
