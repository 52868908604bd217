//! The table of all pages.

use axum::{
    Router,
    extract::{Request, State},
    middleware,
    response::{IntoResponse, Redirect, Response},
    routing::{MethodRouter, get, post},
};
use http::{Method, StatusCode, header};
use tower::ServiceExt as _;
use tower_http::{CompressionLevel, compression::CompressionLayer};

use crate::{
    assets,
    client::Client,
    guard,
    pages::{
        activity, alerts, dead_letters, deliveries, delivery, destination, discard_plan, event_types, events, export,
        jump, keys, limit_groups, live, login, new_destination, overview, pictures, purge, replay_plan, replays,
        shedding, status,
    },
    refusal::Refusal,
    site::{DashboardSettings, Site, SiteState},
    visit::Visit,
};

/// The dashboard and, at all other paths, the API.
pub fn router(settings: DashboardSettings) -> Router {
    let site = Site::new(SiteState::new(settings));
    let guarded = middleware::from_fn_with_state(site.clone(), guard::guard);
    let pages = table().into_iter().fold(Router::new(), |router, (path, handler)| router.route(path, handler));
    // Tables shrink to a tenth, and higher levels take longer for little more. Streams are not compressed. A page with a
    // secret answers only a POST from a page of this server, so no other site can guess a secret from lengths.
    let compressed = CompressionLayer::new().quality(CompressionLevel::Fastest);
    // The fallback is added after the layers: the API has rules of its own.
    let pages = pages.method_not_allowed_fallback(not_a_page);
    pages.layer(guarded).layer(compressed).fallback(elsewhere).with_state(site)
}

/// Every page, fragment and action. To add one, see the crate's documentation.
fn table() -> Vec<(&'static str, MethodRouter<Site>)> {
    vec![
        ("/", get(home)),
        ("/login", get(login::show).post(login::submit)),
        ("/logout", post(login::logout)),
        ("/assets/{file}", get(assets::serve)),
        ("/live", get(live::stream)),
        ("/jump", get(jump::jump)),
        ("/fragments/overview", get(overview::fragment)),
        ("/fragments/overview/pictures", get(pictures::fragment)),
        ("/destinations/bulk", post(overview::bulk)),
        ("/destinations/{id}", get(destination::now::show)),
        ("/fragments/destinations/{id}/now", get(destination::now::fragment)),
        ("/destinations/{id}/pause", post(destination::pause)),
        ("/destinations/{id}/release", post(destination::release)),
        ("/destinations/{id}/override", post(destination::temporary::override_limits)),
        ("/destinations/{id}/hold", post(destination::temporary::hold)),
        ("/destinations/{id}/adaptive", post(destination::pace::switch)),
        ("/fragments/destinations/{id}/pace", get(destination::pace::recent)),
        ("/destinations/{id}/limits", post(destination::limits::save)),
        ("/destinations/{id}/preview", post(destination::limits::preview)),
        ("/destinations/{id}/simulate", post(destination::limits::simulate)),
        ("/fragments/destinations/{id}/chart", get(destination::proof::recent)),
        ("/destinations/{id}/backlog", get(destination::backlog::show)),
        ("/fragments/destinations/{id}/backlog", get(destination::backlog::fragment)),
        ("/destinations/{id}/keys", get(destination::limit_keys::show).post(destination::limit_keys::save)),
        ("/fragments/destinations/{id}/keys", get(destination::limit_keys::fragment)),
        ("/destinations/{id}/keys/preview", post(destination::limit_keys::preview)),
        ("/destinations/{id}/keys/pause", post(destination::limit_keys::pause)),
        ("/destinations/{id}/keys/override", post(destination::limit_keys::override_key)),
        ("/destinations/{id}/settings", get(destination::settings::show).post(destination::settings::save)),
        ("/destinations/{id}/secret", post(destination::settings::reveal)),
        ("/destinations/{id}/rotate", post(destination::settings::rotate)),
        ("/destinations/{id}/test", post(destination::settings::test)),
        ("/destinations/{id}/verify", post(destination::settings::verify)),
        ("/destinations/{id}/filter", post(destination::settings::try_filter)),
        ("/destinations/{id}/delete", post(destination::settings::delete)),
        ("/destinations/{id}/activity", get(activity::of_destination)),
        ("/destinations/{id}/proof", get(destination::proof::show)),
        ("/destinations/{id}/proof.svg", get(destination::proof::svg)),
        ("/destinations/{id}/proof.csv", get(destination::proof::csv)),
        (deliveries::PATH, get(deliveries::show)),
        ("/fragments/deliveries", get(deliveries::fragment)),
        ("/fragments/deliveries/head", get(deliveries::head_fragment)),
        ("/deliveries/{id}", get(delivery::show)),
        ("/fragments/deliveries/{id}", get(delivery::fragment)),
        ("/deliveries/{id}/retry", post(delivery::retry)),
        ("/deliveries/{id}/cancel", post(delivery::cancel)),
        ("/dead-letters", get(dead_letters::show)),
        ("/fragments/dead-letters", get(dead_letters::fragment)),
        ("/events", get(events::list)),
        ("/fragments/events", get(events::list_fragment)),
        ("/events/{id}", get(events::show)),
        ("/replays", get(replays::list).post(replay_plan::create)),
        ("/replays/new", get(replay_plan::show)),
        ("/replays/{id}", get(replays::show)),
        ("/replays/{id}/cancel", post(replays::cancel)),
        ("/fragments/replays", get(replays::list_fragment)),
        ("/fragments/replays/{id}", get(replays::progress)),
        ("/alerts", get(alerts::show).post(alerts::set)),
        ("/fragments/alerts", get(alerts::fragment)),
        ("/activity", get(activity::show)),
        ("/fragments/activity", get(activity::fragment)),
        ("/activity/export", get(activity::export)),
        ("/deliveries/export", get(export::deliveries)),
        ("/destinations", post(new_destination::create)),
        ("/destinations/new", get(new_destination::show)),
        ("/fragments/destinations/{id}/test", post(new_destination::test)),
        ("/fragments/test-events/{id}", get(new_destination::answer)),
        ("/keys", get(keys::show).post(keys::create)),
        ("/keys/{id}/delete", post(keys::delete)),
        ("/status", get(status::show)),
        ("/fragments/status", get(status::fragment)),
        ("/destinations/{id}/purge", get(purge::show).post(purge::purge)),
        ("/fragments/jump", get(jump::names)),
        ("/dead-letters/discard", get(discard_plan::show).post(discard_plan::discard)),
        ("/deliveries/{id}/discard", post(delivery::discard)),
        ("/event-types", get(event_types::list).post(event_types::create)),
        ("/event-types/{name}", get(event_types::show).post(event_types::save)),
        ("/event-types/{name}/delete", post(event_types::delete)),
        ("/limit-groups", get(limit_groups::list).post(limit_groups::create)),
        ("/limit-groups/{id}", get(limit_groups::show).post(limit_groups::save)),
        ("/limit-groups/{id}/preview", post(limit_groups::preview)),
        ("/limit-groups/{id}/delete", post(limit_groups::delete)),
        ("/limit-groups/{id}/override", post(destination::temporary::override_group)),
        ("/limit-groups/{id}/hold", post(destination::temporary::hold_group)),
        ("/fragments/limit-groups/{id}", get(limit_groups::live::fragment)),
        ("/fragments/limit-groups/{id}/history", get(limit_groups::history::fragment)),
        ("/fragments/limit-groups/{id}/proof", get(limit_groups::proof)),
        ("/fragments/alerts/active", get(alerts::active_fragment)),
        ("/shedding", get(shedding::show).post(shedding::set)),
        ("/fragments/shedding", get(shedding::fragment)),
    ]
}

/// The overview for browsers. A program that asks for anything else gets the answer of the API.
async fn home(visit: Visit, query: overview::Query, request: Request) -> Response {
    if wants_page(&request) {
        return overview::show(visit, query).await.into_response();
    }
    answer(&visit.site, request).await
}

/// The API. Where it has nothing either, a browser gets a page.
async fn elsewhere(State(site): State<Site>, request: Request) -> Response {
    if !wants_page(&request) || request.uri().path().starts_with("/v1") {
        return answer(&site, request).await;
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let api = Client::new(site.api.clone(), site.carry, &parts);
    let response = answer(&site, Request::from_parts(parts, body)).await;
    match response.status() {
        StatusCode::NOT_FOUND => match page_meant(&path) {
            Some(page) => to_page(&site, &page),
            None => guard::page_of(&site, &api, Refusal::not_found("There is no such page.")).await,
        },
        _ => response,
    }
}

/// A path that takes only forms. A browser asks for it when somebody types it, or loads a refused form again.
async fn not_a_page(State(site): State<Site>, request: Request) -> Response {
    match page_meant(request.uri().path()) {
        Some(page) if request.method() == Method::GET && wants_page(&request) => to_page(&site, &page),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn to_page(site: &Site, page: &str) -> Response {
    Redirect::to(&format!("{}{page}", site.base)).into_response()
}

/// The page that somebody means by the path of a form, by another word for a page, or with a slash at the end.
fn page_meant(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let page = match *parts.as_slice() {
        ["destinations" | "destination" | "overview" | "home" | "logout"] | ["destinations", "bulk"] => "/".to_owned(),
        ["destinations", id, "secret" | "rotate" | "filter" | "test" | "verify" | "delete"] => {
            format!("/destinations/{id}/settings")
        }
        [
            "destinations",
            id,
            "pause" | "release" | "override" | "hold" | "adaptive" | "limits" | "preview" | "simulate",
        ] => {
            format!("/destinations/{id}")
        }
        ["destinations", id, "keys", "pause" | "override" | "preview"] => format!("/destinations/{id}/keys"),
        ["deliveries", id, "retry" | "cancel" | "discard"] => format!("/deliveries/{id}"),
        ["replays", id, "cancel"] => format!("/replays/{id}"),
        ["event-types", name, "delete"] => format!("/event-types/{name}"),
        ["limit-groups", id, "preview" | "delete" | "override" | "hold"] => format!("/limit-groups/{id}"),
        ["limit-group" | "groups"] => "/limit-groups".to_owned(),
        ["event-type" | "types"] => "/event-types".to_owned(),
        ["keys", ..] | ["key"] => "/keys".to_owned(),
        ["delivery"] => "/deliveries".to_owned(),
        [name @ ("alert" | "event" | "replay")] => format!("/{name}s"),
        ["dead" | "dead_letters" | "deadletters" | "dead-letter"] => "/dead-letters".to_owned(),
        [_, ..] if path.ends_with('/') => format!("/{}", parts.join("/")),
        _ => return None,
    };
    // Never the same path again.
    (page != path).then_some(page)
}

fn wants_page(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

async fn answer(site: &Site, request: Request) -> Response {
    match site.api.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
