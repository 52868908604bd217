//! The OpenAPI document.
//!
//! Each handler describes itself in its own file. This file collects the descriptions and adds the shared parts: rules
//! between fields, and the refusals that follow from the shape of a route. A test checks that document and routes
//! agree. [`plain`] puts the document into the form that generators of code accept, and [`examples`] adds a request and
//! an answer to each operation.

mod examples;
mod plain;

use std::sync::OnceLock;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, header};
use serde_json::Value;
use strum::IntoEnumIterator as _;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        ContentBuilder, OpenApi as Document, Ref, RefOr, ResponseBuilder, Schema,
        extensions::Extensions,
        path::{Operation, ParameterIn, PathItem},
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use crate::{
    auth::access::Access,
    docs,
    problem::{Problem, ProblemKind},
    readers::{query::Query, texts},
    resources::{
        activity, alerts, audit, backlog, deliveries, destinations,
        destinations::{
            body::BodyRequest, egress::TlsRequest, key_limits, rates::RateLimitRequest, request::DestinationRequest,
            retry::RetryRequest, signature::SignatureRequest,
        },
        event_types, events, health, history, ingest, keys, limit_groups, limit_keys, overview, preview, purge, rate,
        replays, secrets, session, shedding, simulate, status, stream, temporary, test_event, verify,
    },
};
use weir_api_types as types;
use weir_core::access::Role;

/// A member of a request's schema: a schema that the request must also match. Generators of code make nothing useful of
/// rules between fields, and some refuse the whole schema, so the rules stand beside it.
const RULES: &str = "x-weir-rules";
/// A member of an operation: the role that the key of a request needs. OpenAPI knows scopes for OAuth only.
const ROLE: &str = "x-weir-role";

/// Rules between fields, which the derived schemas do not contain, by the name of the schema.
fn keywords() -> Vec<(&'static str, Value)> {
    vec![
        ("DestinationRequest", DestinationRequest::keywords()),
        ("DestinationPatch", DestinationRequest::keywords()),
        ("DestinationReplacement", DestinationRequest::keywords()),
        ("KeyLimitsRequest", key_limits::keywords()),
        ("KeyOverrideRequest", key_limits::keywords()),
        ("RateLimitRequest", RateLimitRequest::keywords()),
        ("RetryRequest", RetryRequest::keywords()),
        ("SignatureRequest", SignatureRequest::keywords()),
        ("BodyRequest", BodyRequest::keywords()),
        ("TlsRequest", TlsRequest::keywords()),
        ("PreviewRequest", preview::PreviewRequest::keywords()),
        ("SimulateRequest", preview::PreviewRequest::keywords()),
        ("LimitsOverrideRequest", temporary::LimitsOverrideRequest::keywords()),
        ("HoldRequest", temporary::HoldRequest::keywords()),
        ("LimitGroupRequest", limit_groups::keywords()),
        ("LimitGroupPatch", limit_groups::keywords()),
        ("LimitGroupReplacement", limit_groups::keywords()),
        ("LimitGroupPreviewRequest", limit_groups::keywords()),
        ("VerifyRequest", verify::VerifyRequest::keywords()),
    ]
}

/// The document as served. It is made with the router, from the same table.
static DOCUMENT: OnceLock<Bytes> = OnceLock::new();

/// Makes the document that [`openapi`] serves.
pub(crate) fn describe(routes: impl Iterator<Item = (Method, &'static str, Access)>) {
    DOCUMENT.get_or_init(|| document(routes));
}

/// The document of these routes, with who may use each. An operation without a route keeps the document's default: it
/// needs a key.
pub(crate) fn document(routes: impl Iterator<Item = (Method, &'static str, Access)>) -> Bytes {
    let mut document = Api::openapi();
    for (method, path, access) in routes {
        let item = document.paths.paths.get_mut(path);
        if let Some(operation) = item.and_then(|item| operation_of(item, &method)) {
            guard(operation, access);
        }
    }
    let json = serde_json::to_value(&document).and_then(|mut document| {
        plain::simplify(&mut document);
        examples::add(&mut document);
        serde_json::to_string_pretty(&document)
    });
    json.unwrap_or_else(|error| format!(r#"{{"error": "{error}"}}"#)).into()
}

/// Says who may use an operation: for programs in `security` and an extension, for people in the description.
fn guard(operation: &mut Operation, access: Access) {
    let (security, needs) = match access {
        Access::Open => (SecurityRequirement::default(), None),
        Access::EveryKey => (SecurityRequirement::new(SECURITY_SCHEME, [""; 0]), Some("Needs a key.".to_owned())),
        Access::Role(role) => {
            operation.extensions = Some(Extensions::from_iter([(ROLE, role.as_str())]));
            (SecurityRequirement::new(SECURITY_SCHEME, [""; 0]), Some(needs(role)))
        }
    };
    operation.security = Some(vec![security]);
    let texts = operation.description.take().into_iter().chain(needs);
    operation.description = Some(texts.collect::<Vec<_>>().join("\n\n")).filter(|text| !text.is_empty());
}

/// The roles that may do what needs this role.
fn needs(role: Role) -> String {
    let names: Vec<_> = Role::ALL.iter().filter(|one| one.includes(role)).map(|one| format!("`{one}`")).collect();
    match names.split_last() {
        Some((last, [])) => format!("Needs a key with the role {last}."),
        Some((last, others)) => format!("Needs a key with the role {} or {last}.", others.join(", ")),
        None => String::new(),
    }
}

fn operation_of<'i>(item: &'i mut PathItem, method: &Method) -> Option<&'i mut Operation> {
    let operation = match *method {
        Method::GET => &mut item.get,
        Method::PUT => &mut item.put,
        Method::POST => &mut item.post,
        Method::PATCH => &mut item.patch,
        Method::DELETE => &mut item.delete,
        _ => return None,
    };
    operation.as_mut()
}

/// Show the OpenAPI document
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "operation",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json"))
)]
pub(crate) async fn openapi(_: Query<()>) -> Response {
    let document = DOCUMENT.get().cloned().unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}

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
            no key. A request must name a loopback host or a configured host; otherwise the answer is 421. Every answer has an \
            `x-request-id`: the one of the request if it has 1 to 64 characters of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, \
            or else a new one. The log of the server names it with the reason of a 500 or 503.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "events", description = "Facts that a producer sends once and Weir delivers to several destinations."),
        (name = "destinations", description = "The endpoints that receive events, with their limits and settings."),
        (name = "limit groups", description = "Budgets that several destinations share, because the receiver counts them as one account."),
        (name = "deliveries", description = "One event owed to one destination, and its attempts."),
        (name = "replays", description = "Ended deliveries that are sent again beside live traffic."),
        (name = "alerts", description = "Thresholds for alerts about destinations. Alerts are events whose type begins with `weir.`."),
        (name = "event types", description = "The catalogue of event types: what producers may send, with descriptions, examples and schemas."),
        (name = "session", description = "Who sends the requests, and the sessions of browsers. In a session the cookie replaces the key on every path."),
        (name = "keys", description = "API keys with a role, for all tenants or for some. Each operation states the role that it needs."),
        (name = "activity", description = "Who changed what, and when."),
        (name = "operation", description = "The state of the installation. Health, metrics and this documentation, which need no key.")
    ),
    paths(
        ingest::post, ingest::post_batch, events::list, events::show,
        destinations::create, destinations::list, destinations::show, destinations::edit, destinations::delete,
        destinations::put, destinations::release,
        destinations::temporary::override_limits, destinations::temporary::end_override, destinations::temporary::hold,
        destinations::temporary::end_hold,
        limit_keys::list, limit_keys::pause, limit_keys::resume,
        secrets::show, secrets::rotate, backlog::show, history::show, destinations::health::show,
        overview::list, overview::history, overview::show, stream::follow, preview::show, rate::show, destinations::filter::try_filter, purge::purge, audit::show, simulate::run, test_event::send,
        deliveries::list::show, deliveries::groups::show, deliveries::show, deliveries::retry, deliveries::cancel,
        verify::verify, deliveries::discard::discard_one, deliveries::discard::discard_all,
        replays::create, replays::list, replays::show, replays::cancel,
        alerts::show, alerts::set, alerts::active::list,
        limit_groups::create, limit_groups::list, limit_groups::show, limit_groups::edit, limit_groups::delete,
        limit_groups::reservations::create, limit_groups::reservations::create_by_name, limit_groups::reservations::list,
        limit_groups::reservations::cancel,
        limit_groups::by_name::put, limit_groups::figures::overview, limit_groups::figures::show_preview, limit_groups::audit::show,
        limit_groups::history::show,
        limit_groups::temporary::override_limits, limit_groups::temporary::end_override, limit_groups::temporary::hold,
        limit_groups::temporary::end_hold,
        event_types::list, event_types::show, event_types::put, event_types::delete,
        session::me, session::create, session::delete,
        keys::create, keys::list, keys::delete, activity::list,
        shedding::show, shedding::set, status::show, health::live, health::ready, health::metrics, openapi, docs::page, docs::index
    ),
    components(schemas(
        types::Problem,
        texts::ApiKeyIdText, texts::AttemptErrorText, texts::DeliveryIdText, texts::DeliveryStatesText, texts::DestinationIdText,
        texts::DestinationConditionText, texts::EventIdText, texts::EventPatternText,
        texts::FailureStatesText, texts::IdempotencyKeyText, texts::LimitGroupIdText, texts::ListOrderText, activity::ActorText,
        destinations::health::WindowText, history::StepText,
        limit_keys::KeyOrderText, texts::LimitKeyText, overview::OrderText, overview::OverviewIdsText, overview::OverviewSearchText, overview::StandingText,
        types::Snapshot, types::StreamChange, texts::ReplayIdText, texts::ReservationIdText, texts::SearchText, texts::TenantText,
        texts::TimeText, texts::AnyTenantText, alerts::active::ActiveAlertText
    )),
    servers(
        (url = "/", description = "The server that shows this document"),
        (url = "http://127.0.0.1:8080", description = "A server with the default settings, on the same machine")
    ),
    security(("api_key" = [])),
    modifiers(&Shared)
)]
struct Api;

/// Adds the security scheme and the refusals that follow from the shape of a route.
struct Shared;

impl Modify for Shared {
    fn modify(&self, document: &mut Document) {
        if let Some(components) = document.components.as_mut() {
            // How requests authenticate. The document's `security` refers to this scheme by name.
            let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
                "An API key: one of the settings, or one that `POST /v1/keys` created. A browser may send the \
                     cookie of `POST /v1/session` instead.",
            ));
            let scheme = RefOr::T(SecurityScheme::Http(bearer.build()));
            components.security_schemes.insert(SECURITY_SCHEME.to_owned(), scheme);
            // Add the rules between fields.
            for (name, keywords) in keywords() {
                if let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(name) {
                    schema.extensions = Some(Extensions::from_iter([(RULES, keywords)]));
                }
            }
            // Define each refusal once; the operations below refer to it by name.
            for kind in ProblemKind::iter() {
                components.responses.insert(response_name(kind), RefOr::T(response(kind)));
            }
        }

        // Add the refusals that follow from the shape of each route. A response that a handler describes itself stays.
        for (path, item) in &mut document.paths.paths {
            let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in methods.into_iter().filter_map(Option::as_mut) {
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

/// The refusals that a request of this shape may get.
fn refusals(path: &str, operation: &Operation) -> Vec<ProblemKind> {
    let has = |place: ParameterIn| {
        operation.parameters.iter().flatten().any(|parameter| match parameter {
            RefOr::T(parameter) => parameter.parameter_in == place,
            RefOr::Ref(_) => false,
        })
    };

    // Every route checks the host that a request names, and refuses unknown parameters.
    let mut kinds = vec![ProblemKind::Invalid, ProblemKind::Misdirected];
    // The routes of the API check the key and use the store.
    if path.starts_with("/v1/") {
        kinds.extend([
            ProblemKind::Unauthorized,
            ProblemKind::Forbidden,
            ProblemKind::Internal,
            ProblemKind::Unavailable,
            ProblemKind::TooMany,
        ]);
    }
    // Readiness asks the store, and in some roles the queue.
    if path == "/readyz" {
        kinds.extend([ProblemKind::Internal, ProblemKind::Unavailable]);
    }
    // No row may have the id in the path, or in the body of a request to verify. `/metrics` is absent if a separate
    // listener serves the metrics.
    if has(ParameterIn::Path) || ["/metrics", "/v1/verify"].contains(&path) {
        kinds.push(ProblemKind::NotFound);
    }
    // The refusals of `readers::body`, which reads every body.
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

fn response(kind: ProblemKind) -> utoipa::openapi::Response {
    let example = serde_json::to_value(Problem::new(kind, kind.title()).document()).ok();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).example(example).build();
    ResponseBuilder::new().description(kind.title()).content("application/problem+json", content).build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn document() -> Value {
        serde_json::from_slice(&super::document(std::iter::empty())).unwrap()
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
    fn rules_between_fields_stand_beside_the_schemas() {
        let document = document();
        for (name, keywords) in keywords() {
            let schema = &document["components"]["schemas"][name];
            assert!(schema["properties"].is_object(), "{name}");
            assert_eq!(schema[RULES], keywords, "{name}");
            assert!(["allOf", "anyOf", "oneOf", "not"].iter().all(|keyword| schema[keyword].is_null()), "{name}");
        }
    }

    #[test]
    fn every_list_has_its_own_cursors() {
        let document = document();
        let parameters =
            document["paths"].as_object().unwrap().values().flat_map(|item| item["get"]["parameters"].as_array());
        let cursors = parameters.flatten().filter(|parameter| parameter["name"] == "cursor");
        // That of event types is a name.
        let patterns: Vec<&str> = cursors.filter_map(|cursor| cursor["schema"]["pattern"].as_str()).collect();
        assert_eq!((patterns.len(), BTreeSet::from_iter(&patterns).len()), (11, 11), "{patterns:?}");
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
                }
            }
        }
    }
}
