//! The table of all routes: who may use which handler under which path and method, and what is refused first when there
//! are too many requests.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    handler::Handler,
    middleware::{self, Next},
    response::Response,
    routing::{MethodFilter, MethodRouter, on},
};
use http::{Method, Uri};
use weir_core::{
    access::Role::{Admin, Ingest, Operate, Read},
    shed::Class,
};
use weir_store::with_replica;

use crate::{
    auth::access::{
        self,
        Access::{self, EveryKey, Open, Role},
    },
    docs,
    fair_share::{self, FairShare},
    hosts::{self, Hosts},
    meters,
    observe::{self, Observer},
    openapi,
    problem::{Problem, ProblemKind},
    resources::{
        activity, alerts, audit, backlog, deliveries,
        destinations::{self, temporary},
        event_types, events, health, history, ingest, keys,
        limit_groups::{self, reservations},
        limit_keys, overview, preview, purge, rate, replays, secrets, session, shedding, simulate, status, stream,
        test_event, verify,
    },
    shedding::{self as shed, Shedding},
    state::{Api, ApiState, Operations},
};

/// The API, ready to be served.
pub fn router(state: ApiState) -> Router {
    meters::describe();
    let operations = Arc::new(state.operations.clone());
    let api = Arc::new(state);
    let (table, operation_table) = (table(), operation_table());
    openapi::describe(table.iter().map(Route::access).chain(operation_table.iter().map(Route::access)));
    routed(table, Some(&api.shedding))
        .with_state(Arc::clone(&api))
        .merge(routed(operation_table, None).with_state(operations))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(Observer::of(api), observe::observe))
}

/// The routes of a process without the API: health and metrics. They show no secrets and need no key.
pub fn operations_router(operations: Operations, hosts: Hosts) -> Router {
    routed(operation_table(), None)
        .with_state(Arc::new(operations))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(Arc::new(hosts), hosts::check))
}

/// `shedding`: `None` for routes that are never refused.
fn routed<S: Clone + Send + Sync + 'static>(table: Vec<Route<S>>, shedding: Option<&Shedding>) -> Router<S> {
    let shares = Shares::default();
    table.into_iter().fold(Router::new(), |router, route| {
        // What reads much and changes nothing may be read from a replica.
        let handler = match route.work {
            Work::HeavyRead | Work::Audit if route.method != Method::GET => route.handler,
            Work::Light | Work::LightUnlessKeyed | Work::Wait => route.handler,
            _ => route.handler.route_layer(middleware::from_fn(from_replica)),
        };
        let handler = match shedding.zip(route.class) {
            None => handler,
            Some((shedding, class)) => {
                let state = (shedding.clone(), class);
                match route.work {
                    Work::Wait => handler.route_layer(middleware::from_fn_with_state(state, shed::enter_to_wait)),
                    _ => handler.route_layer(middleware::from_fn_with_state(state, shed::enter)),
                }
            }
        };
        let share = match route.work {
            Work::Light if route.class == Some(Class::Control) => Some(shares.changes.clone()),
            Work::Light | Work::Wait => None,
            Work::LightUnlessKeyed | Work::HeavyRead => Some(shares.heavy_reads.clone()),
            Work::Audit => Some(shares.audits.clone()),
            Work::Simulation => Some(shares.simulations.clone()),
        };
        let handler = match share {
            None => handler,
            Some(share) if route.work == Work::LightUnlessKeyed => {
                handler.route_layer(middleware::from_fn_with_state(share, fair_share::if_needed))
            }
            Some(share) => handler.route_layer(middleware::from_fn_with_state(share, fair_share::in_turn)),
        };
        // The last layer comes first: who may not use a route does not wait for it.
        let check = middleware::from_fn_with_state(route.access, access::check);
        router.route(route.path, handler.route_layer(check))
    })
}

async fn from_replica(request: Request, next: Next) -> Response {
    with_replica(next.run(request)).await
}

/// The heavy reads at one time. SQLite has four readers; one key uses at most half of them, so requests of other keys
/// always find one.
const HEAVY_READS: usize = 4;
/// The audits at one time. An audit of a month reads millions of sends and judges each, for up to 100 s.
const AUDITS: usize = 2;
/// The simulations at one time. Each takes a core for some seconds, and up to some hundred megabytes.
const SIMULATIONS: usize = 1;
/// The changes at one time: the limit of their class, so that a bulk of changes waits and is not refused.
const CHANGES: usize = Class::Control.default_in_flight() as usize;
/// The waiting changes of one key: as many as a program that changes everything at once can have connections.
const WAITING_CHANGES: usize = 4_096;
/// How long a change waits: as long as most clients wait for an answer, because a program seldom repeats changes.
const CHANGES_WAIT: Duration = Duration::from_secs(30);

/// What the keys share in a process.
struct Shares {
    heavy_reads: FairShare,
    audits: FairShare,
    simulations: FairShare,
    changes: FairShare,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            heavy_reads: FairShare::new("heavy reads", Class::Read, HEAVY_READS),
            audits: FairShare::new("audits", Class::Heavy, AUDITS),
            simulations: FairShare::new("simulations", Class::Heavy, SIMULATIONS),
            changes: FairShare::new("changes", Class::Control, CHANGES).with_waiting(WAITING_CHANGES, CHANGES_WAIT),
        }
    }
}

/// How much a request of a route may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Single rows, or counters.
    Light,
    /// The same, but of a destination with limit keys the first 20,000 deliveries that are due. Then the handler takes a seat
    /// for a heavy read itself.
    LightUnlessKeyed,
    /// A page of a list, or the traffic of a month: either may read thousands of rows.
    HeavyRead,
    Audit,
    /// It is a `POST`, and changes nothing.
    Simulation,
    /// It may wait for half a minute. Then it leaves its place among the requests of its class.
    Wait,
}

/// One method of one path, and who may use it.
struct Route<S> {
    method: Method,
    path: &'static str,
    access: Access,
    /// `None`: it is never refused for want of room. It is cheap, and needs no key.
    class: Option<Class>,
    work: Work,
    handler: MethodRouter<S>,
}

impl<S> Route<S> {
    fn of(self, work: Work) -> Self {
        Self { work, ..self }
    }

    fn access(&self) -> (Method, &'static str, Access) {
        (self.method.clone(), self.path, self.access)
    }
}

/// A method, in the two forms that the router and the document need.
struct Verb(Method, MethodFilter);

const GET: Verb = Verb(Method::GET, MethodFilter::GET);
const POST: Verb = Verb(Method::POST, MethodFilter::POST);
const PUT: Verb = Verb(Method::PUT, MethodFilter::PUT);
const PATCH: Verb = Verb(Method::PATCH, MethodFilter::PATCH);
const DELETE: Verb = Verb(Method::DELETE, MethodFilter::DELETE);

/// Who may use a route, and the class of its requests.
type Admission = (Access, Option<Class>);

const OPEN: Admission = (Open, None);
const INGESTS: Admission = (Role(Ingest), Some(Class::Ingest));
const READS: Admission = (Role(Read), Some(Class::Read));
const READS_MUCH: Admission = (Role(Read), Some(Class::Heavy));
const OPERATES: Admission = (Role(Operate), Some(Class::Control));
const ADMINISTERS: Admission = (Role(Admin), Some(Class::Control));

fn route<H, T, S>(Verb(method, filter): Verb, path: &'static str, (access, class): Admission, handler: H) -> Route<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Route { method, path, access, class, work: Work::Light, handler: on(filter, handler) }
}

fn operation_table() -> Vec<Route<Arc<Operations>>> {
    vec![
        // Unknown parameters are refused here too, so a wrong probe fails at once.
        route(GET, "/healthz", OPEN, health::live),
        route(GET, "/readyz", OPEN, health::ready),
        route(GET, "/metrics", OPEN, health::metrics),
    ]
}

fn table() -> Vec<Route<Api>> {
    vec![
        route(POST, "/v1/events", INGESTS, ingest::post),
        route(POST, "/v1/events/batch", INGESTS, ingest::post_batch),
        route(GET, "/v1/events", READS, events::list).of(Work::HeavyRead),
        route(GET, "/v1/events/{id}", READS, events::show),
        route(POST, "/v1/destinations", OPERATES, destinations::create),
        route(GET, "/v1/destinations", READS, destinations::list).of(Work::HeavyRead),
        route(GET, "/v1/destinations/{id}", READS, destinations::show),
        route(PATCH, "/v1/destinations/{id}", OPERATES, destinations::edit),
        route(DELETE, "/v1/destinations/{id}", OPERATES, destinations::delete),
        route(PUT, "/v1/destinations/by-name/{tenant}/{name}", OPERATES, destinations::put),
        route(GET, "/v1/destinations/{id}/secret", (Role(Admin), Some(Class::Read)), secrets::show),
        route(POST, "/v1/destinations/{id}/rotate-secret", ADMINISTERS, secrets::rotate),
        route(GET, "/v1/destinations/{id}/backlog", READS, backlog::show).of(Work::LightUnlessKeyed),
        route(GET, "/v1/destinations/{id}/history", READS, history::show).of(Work::HeavyRead),
        route(GET, "/v1/destinations/{id}/health", READS, destinations::health::show).of(Work::HeavyRead),
        route(GET, "/v1/destinations/{id}/rate", READS, rate::show).of(Work::HeavyRead),
        route(GET, "/v1/destinations/{id}/overview", READS, overview::show).of(Work::LightUnlessKeyed),
        route(GET, "/v1/overview", READS, overview::list),
        route(GET, "/v1/overview/history", READS, overview::history),
        route(GET, "/v1/stream", READS, stream::follow),
        route(POST, "/v1/destinations/{id}/preview", READS_MUCH, preview::show).of(Work::HeavyRead),
        route(POST, "/v1/destinations/{id}/simulate", READS_MUCH, simulate::run).of(Work::Simulation),
        route(POST, "/v1/destinations/{id}/filter/try", READS, destinations::filter::try_filter),
        route(POST, "/v1/destinations/{id}/purge", OPERATES, purge::purge),
        route(GET, "/v1/destinations/{id}/audit", READS_MUCH, audit::show).of(Work::Audit),
        route(POST, "/v1/destinations/{id}/test", OPERATES, test_event::send),
        route(POST, "/v1/destinations/{id}/release", OPERATES, destinations::release),
        route(POST, "/v1/destinations/{id}/override", OPERATES, temporary::override_limits),
        route(DELETE, "/v1/destinations/{id}/override", OPERATES, temporary::end_override),
        route(POST, "/v1/destinations/{id}/hold", OPERATES, temporary::hold),
        route(DELETE, "/v1/destinations/{id}/hold", OPERATES, temporary::end_hold),
        route(GET, "/v1/destinations/{id}/keys", READS, limit_keys::list).of(Work::HeavyRead),
        route(POST, "/v1/destinations/{id}/keys/{key}/pause", OPERATES, limit_keys::pause),
        route(POST, "/v1/destinations/{id}/keys/{key}/resume", OPERATES, limit_keys::resume),
        route(GET, "/v1/deliveries", READS, deliveries::list::show).of(Work::HeavyRead),
        route(GET, "/v1/deliveries/groups", READS, deliveries::groups::show).of(Work::HeavyRead),
        route(GET, "/v1/deliveries/{id}", READS, deliveries::show),
        route(POST, "/v1/deliveries/{id}/retry", OPERATES, deliveries::retry),
        route(POST, "/v1/deliveries/{id}/cancel", OPERATES, deliveries::cancel),
        route(POST, "/v1/deliveries/{id}/discard", OPERATES, deliveries::discard::discard_one),
        route(POST, "/v1/deliveries/discard", OPERATES, deliveries::discard::discard_all).of(Work::HeavyRead),
        route(POST, "/v1/verify", READS, verify::verify),
        route(POST, "/v1/replays", (Role(Operate), Some(Class::Heavy)), replays::create).of(Work::HeavyRead),
        route(GET, "/v1/replays", READS, replays::list).of(Work::HeavyRead),
        route(GET, "/v1/replays/{id}", READS, replays::show),
        route(POST, "/v1/replays/{id}/cancel", OPERATES, replays::cancel),
        route(GET, "/v1/alerts", READS, alerts::show),
        route(PUT, "/v1/alerts", ADMINISTERS, alerts::set),
        route(GET, "/v1/alerts/active", READS, alerts::active::list).of(Work::HeavyRead),
        route(GET, "/v1/shedding", ADMINISTERS, shedding::show),
        route(PUT, "/v1/shedding", ADMINISTERS, shedding::set),
        route(GET, "/v1/event-types", READS, event_types::list).of(Work::HeavyRead),
        route(GET, "/v1/event-types/{name}", READS, event_types::show),
        route(PUT, "/v1/event-types/{name}", OPERATES, event_types::put),
        route(DELETE, "/v1/event-types/{name}", OPERATES, event_types::delete),
        route(POST, "/v1/limit-groups", OPERATES, limit_groups::create),
        route(GET, "/v1/limit-groups", READS, limit_groups::list).of(Work::HeavyRead),
        route(GET, "/v1/limit-groups/{id}", READS, limit_groups::show),
        route(PATCH, "/v1/limit-groups/{id}", OPERATES, limit_groups::edit),
        route(DELETE, "/v1/limit-groups/{id}", OPERATES, limit_groups::delete),
        route(PUT, "/v1/limit-groups/by-name/{tenant}/{name}", OPERATES, limit_groups::by_name::put),
        route(POST, "/v1/limit-groups/{id}/reservations", INGESTS, reservations::create).of(Work::Wait),
        route(POST, "/v1/limit-groups/by-name/{tenant}/{name}/reservations", INGESTS, reservations::create_by_name)
            .of(Work::Wait),
        route(GET, "/v1/limit-groups/{id}/reservations", READS, reservations::list).of(Work::HeavyRead),
        route(DELETE, "/v1/limit-groups/{id}/reservations/{rid}", INGESTS, reservations::cancel),
        route(GET, "/v1/limit-groups/{id}/overview", READS, limit_groups::figures::overview),
        route(POST, "/v1/limit-groups/{id}/preview", READS_MUCH, limit_groups::figures::show_preview),
        route(GET, "/v1/limit-groups/{id}/audit", READS_MUCH, limit_groups::audit::show).of(Work::Audit),
        route(GET, "/v1/limit-groups/{id}/history", READS_MUCH, limit_groups::history::show).of(Work::HeavyRead),
        route(POST, "/v1/limit-groups/{id}/override", OPERATES, limit_groups::temporary::override_limits),
        route(DELETE, "/v1/limit-groups/{id}/override", OPERATES, limit_groups::temporary::end_override),
        route(POST, "/v1/limit-groups/{id}/hold", OPERATES, limit_groups::temporary::hold),
        route(DELETE, "/v1/limit-groups/{id}/hold", OPERATES, limit_groups::temporary::end_hold),
        route(GET, "/v1/me", (EveryKey, Some(Class::Control)), session::me),
        route(POST, "/v1/session", OPEN, session::create),
        route(DELETE, "/v1/session", OPEN, session::delete),
        route(POST, "/v1/keys", ADMINISTERS, keys::create),
        route(GET, "/v1/keys", (Role(Admin), Some(Class::Read)), keys::list),
        route(DELETE, "/v1/keys/{id}", ADMINISTERS, keys::delete),
        route(GET, "/v1/activity", READS, activity::list).of(Work::HeavyRead),
        // What an operator looks at first in an overload. It answers within two seconds, whatever is away.
        route(GET, "/v1/status", (Role(Read), Some(Class::Control)), status::show),
        route(GET, "/openapi.json", OPEN, openapi::openapi),
        route(GET, "/docs", OPEN, docs::page),
        route(GET, "/", OPEN, docs::index),
    ]
}

async fn no_route(uri: Uri) -> Problem {
    Problem::not_found(format!("there is no path {}; /docs lists all paths", uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> Problem {
    Problem::new(ProblemKind::MethodNotAllowed, format!("{} does not support {method}", uri.path()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::{Extension, body::Body};
    use futures_util::FutureExt as _;
    use http::Request;
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;
    use crate::auth::{self, Caller};

    /// The method and path of each route, with who may use it.
    fn served() -> BTreeMap<String, Access> {
        let (table, operation_table) = (table(), operation_table());
        let routes = table.iter().map(Route::access).chain(operation_table.iter().map(Route::access));
        routes.map(|(method, path, access)| (format!("{method} {path}"), access)).collect()
    }

    fn described() -> BTreeMap<String, Value> {
        let (table, operation_table) = (table(), operation_table());
        let document =
            openapi::document(table.iter().map(Route::access).chain(operation_table.iter().map(Route::access)));
        let document: Value = serde_json::from_slice(&document).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let operations = paths.flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(move |(method, operation)| {
                let access = json!([operation["security"], operation["x-weir-role"]]);
                (format!("{} {path}", method.to_uppercase()), access)
            })
        });
        operations.collect()
    }

    #[test]
    fn the_document_and_the_router_have_the_same_routes_and_roles() {
        let expected = served().into_iter().map(|(route, access)| {
            let (key, role) = match access {
                Open => (json!({}), None),
                EveryKey => (json!({"api_key": []}), None),
                Role(role) => (json!({"api_key": []}), Some(role.as_str())),
            };
            (route, json!([[key], role]))
        });
        assert_eq!(described(), expected.collect());
    }

    #[test]
    fn what_needs_a_key_has_a_class_and_what_needs_none_is_never_refused() {
        let table = table();
        for route in &table {
            assert_eq!(route.class.is_none(), route.access == Open, "{}", route.path);
            let changes = !route.method.is_safe() && matches!(route.access, Role(Operate | Admin));
            let is_control = matches!(route.class, Some(Class::Control | Class::Heavy));
            assert!(!changes || is_control, "{} keeps an operator out", route.path);
        }
        assert!(operation_table().iter().all(|route| route.class.is_none()));
    }

    #[test]
    fn every_path_under_v1_needs_a_key_except_the_login_and_no_other_path_does() {
        for (route, access) in served() {
            let path = route.split(' ').nth(1).unwrap();
            assert_eq!(access == Open, !auth::is_guarded(path), "{route}");
        }
    }

    /// A single row is read where it is written, and so is all that a change is decided by.
    #[tokio::test]
    async fn only_lists_and_audits_may_be_read_from_a_replica() {
        for (verb, work, expected) in [
            (GET, Work::Light, "false"),
            (GET, Work::LightUnlessKeyed, "false"),
            (GET, Work::HeavyRead, "true"),
            (GET, Work::Audit, "true"),
            (POST, Work::HeavyRead, "false"),
            (POST, Work::Simulation, "true"),
        ] {
            let method = verb.0.clone();
            let handler = || async { weir_store::replica_answers(async { true }).await.to_string() };
            let table = vec![route(verb, "/any", OPEN, handler).of(work)];
            let mut request = Request::builder().method(method).uri("/any").body(Body::empty()).unwrap();
            request.extensions_mut().insert(Caller::for_test(Read));
            let answer = routed(table, None).with_state(()).oneshot(request).await.unwrap();
            let body = axum::body::to_bytes(answer.into_body(), 8).await.unwrap();
            assert_eq!(body, expected, "{work:?}");
        }
    }

    /// One key gets half of the seats for heavy reads, whichever routes it asks.
    #[tokio::test]
    async fn a_route_that_reads_much_of_some_destinations_takes_a_seat_in_its_handler() {
        let handler = |Extension(turn): Extension<fair_share::Turn>| async move {
            let seats = [turn.seat().now_or_never(), turn.seat().now_or_never(), turn.seat().now_or_never()];
            seats.map(|seat| seat.is_some_and(|seat| seat.is_ok()).to_string()).join(" ")
        };
        let table = vec![route(GET, "/any", OPEN, handler).of(Work::LightUnlessKeyed)];
        let mut request = Request::builder().uri("/any").body(Body::empty()).unwrap();
        request.extensions_mut().insert(Caller::for_test(Read));
        let answer = routed(table, None).with_state(()).oneshot(request).await.unwrap();
        assert_eq!(axum::body::to_bytes(answer.into_body(), 64).await.unwrap(), "true true false");
    }

    /// A route whose handler takes no caller is guarded too, and a request whose sender nobody looked for is refused.
    #[tokio::test]
    async fn a_handler_is_reached_by_the_right_role_alone() {
        let asked = |access: Access, caller: Option<Caller>, method: &str| {
            let table = vec![route(GET, "/any", (access, None), || async { "reached" })];
            let router = routed(table, None).with_state(());
            let mut request = Request::builder().method(method).uri("/any").body(Body::empty()).unwrap();
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            async { router.oneshot(request).await.unwrap().status().as_u16() }
        };
        let reader = || Some(Caller::for_test(Read));
        for (access, caller, expected) in [
            (Open, None, 200),
            (EveryKey, None, 500),
            (EveryKey, reader(), 200),
            (Role(Read), None, 500),
            (Role(Read), reader(), 200),
            (Role(Operate), reader(), 403),
            (Role(Admin), reader(), 403),
        ] {
            for method in ["GET", "HEAD"] {
                assert_eq!(asked(access, caller.clone(), method).await, expected, "{access:?} {method}");
            }
            assert_eq!(asked(access, caller, "POST").await, 405, "{access:?}");
        }
    }
}
