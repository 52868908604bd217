//! The table of all routes.

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{MethodRouter, delete, get, patch, post, put},
};
use http::{Method, Uri};

use crate::{
    docs,
    hosts::{self, Hosts},
    meters,
    observe::{self, Observer},
    openapi,
    problem::{Problem, ProblemKind},
    resources::{
        activity, alerts, audit, backlog, deliveries, destinations, events, health, history, ingest, keys, overview,
        preview, purge, replays, secrets, session, status, stream, test_event, verify,
    },
    state::{Api, ApiState, Operations},
};

/// The API, ready to be served.
pub fn router(state: ApiState) -> Router {
    meters::describe();
    let operations = Arc::new(state.operations.clone());
    let api = Arc::new(state);
    routed(table())
        .with_state(Arc::clone(&api))
        .merge(routed(operation_table()).with_state(operations))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(Observer::of(api, openapi::role), observe::observe))
}

/// The routes of a process without the API: health and metrics. They show no secrets and need no key.
pub fn operations_router(operations: Operations, hosts: Hosts) -> Router {
    routed(operation_table())
        .with_state(Arc::new(operations))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(Arc::new(hosts), hosts::check))
}

fn routed<S: Clone + Send + Sync + 'static>(table: Vec<Route<S>>) -> Router<S> {
    table.into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler))
}

/// One method of one path. A test compares the OpenAPI document with the table.
struct Route<S> {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the test of the document reads it"))]
    method: Method,
    path: &'static str,
    handler: MethodRouter<S>,
}

fn operation_table() -> Vec<Route<Arc<Operations>>> {
    let route = |method, path, handler| Route { method, path, handler };
    vec![
        // Unknown parameters are refused here too, so a wrong probe fails at once.
        route(Method::GET, "/healthz", get(health::live)),
        route(Method::GET, "/readyz", get(health::ready)),
        route(Method::GET, "/metrics", get(health::metrics)),
    ]
}

fn table() -> Vec<Route<Api>> {
    let route = |method, path, handler| Route { method, path, handler };
    vec![
        route(Method::POST, "/v1/events", post(ingest::post)),
        route(Method::POST, "/v1/events/batch", post(ingest::post_batch)),
        route(Method::GET, "/v1/events", get(events::list)),
        route(Method::GET, "/v1/events/{id}", get(events::show)),
        route(Method::POST, "/v1/destinations", post(destinations::create)),
        route(Method::GET, "/v1/destinations", get(destinations::list)),
        route(Method::GET, "/v1/destinations/{id}", get(destinations::show)),
        route(Method::PATCH, "/v1/destinations/{id}", patch(destinations::edit)),
        route(Method::DELETE, "/v1/destinations/{id}", delete(destinations::delete)),
        route(Method::PUT, "/v1/destinations/by-name/{tenant}/{name}", put(destinations::put)),
        route(Method::GET, "/v1/destinations/{id}/secret", get(secrets::show)),
        route(Method::POST, "/v1/destinations/{id}/rotate-secret", post(secrets::rotate)),
        route(Method::GET, "/v1/destinations/{id}/backlog", get(backlog::show)),
        route(Method::GET, "/v1/destinations/{id}/history", get(history::show)),
        route(Method::GET, "/v1/destinations/{id}/health", get(destinations::health::show)),
        route(Method::GET, "/v1/destinations/{id}/overview", get(overview::show)),
        route(Method::GET, "/v1/overview", get(overview::list)),
        route(Method::GET, "/v1/stream", get(stream::follow)),
        route(Method::POST, "/v1/destinations/{id}/preview", post(preview::show)),
        route(Method::POST, "/v1/destinations/{id}/purge", post(purge::purge)),
        route(Method::GET, "/v1/destinations/{id}/audit", get(audit::show)),
        route(Method::POST, "/v1/destinations/{id}/test", post(test_event::send)),
        route(Method::GET, "/v1/deliveries", get(deliveries::list::show)),
        route(Method::GET, "/v1/deliveries/groups", get(deliveries::groups::show)),
        route(Method::GET, "/v1/deliveries/{id}", get(deliveries::show)),
        route(Method::POST, "/v1/deliveries/{id}/retry", post(deliveries::retry)),
        route(Method::POST, "/v1/deliveries/{id}/cancel", post(deliveries::cancel)),
        route(Method::POST, "/v1/verify", post(verify::verify)),
        route(Method::POST, "/v1/replays", post(replays::create)),
        route(Method::GET, "/v1/replays", get(replays::list)),
        route(Method::GET, "/v1/replays/{id}", get(replays::show)),
        route(Method::POST, "/v1/replays/{id}/cancel", post(replays::cancel)),
        route(Method::GET, "/v1/alerts", get(alerts::show)),
        route(Method::PUT, "/v1/alerts", put(alerts::set)),
        route(Method::GET, "/v1/me", get(session::me)),
        route(Method::POST, "/v1/session", post(session::create)),
        route(Method::DELETE, "/v1/session", delete(session::delete)),
        route(Method::POST, "/v1/keys", post(keys::create)),
        route(Method::GET, "/v1/keys", get(keys::list)),
        route(Method::DELETE, "/v1/keys/{id}", delete(keys::delete)),
        route(Method::GET, "/v1/activity", get(activity::list)),
        route(Method::GET, "/v1/status", get(status::show)),
        route(Method::GET, "/openapi.json", get(openapi::openapi)),
        route(Method::GET, "/docs", get(docs::page)),
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_and_the_router_have_the_same_routes() {
        let operations = operation_table();
        let operations = operations.iter().map(|route| format!("{} {}", route.method, route.path));
        let served: BTreeSet<String> =
            table().iter().map(|route| format!("{} {}", route.method, route.path)).chain(operations).collect();
        let document: serde_json::Value = serde_json::from_slice(&openapi::DOCUMENT).unwrap();
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
}
