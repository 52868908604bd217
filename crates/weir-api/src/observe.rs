//! What every request passes: the key is checked, and the answer is counted and timed.
//!
//! Labels are bounded: the route is the matched pattern, never the path, and unusual methods share one name.

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::Method;
use metrics::{counter, describe_counter, describe_histogram, histogram};

use crate::state::Api;

const REQUESTS: &str = "weir_http_requests_total";
const DURATION: &str = "weir_http_request_duration_seconds";
const INGESTED: &str = "weir_events_ingested_total";

/// Says what the metrics are for. The recorder must be installed by now for the words to reach it.
pub(crate) fn describe() {
    describe_counter!(REQUESTS, "API requests by route, method and status: error rates, and who uses what.");
    describe_histogram!(DURATION, "Time to answer an API request, in seconds: what producers wait for.");
    describe_counter!(INGESTED, "Events stored, duplicates not counted: the load that comes in.");
}

/// Counts stored events.
pub(crate) fn ingested(events: u64) {
    if events > 0 {
        counter!(INGESTED).increment(events);
    }
}

pub(crate) async fn observe(State(api): State<Api>, request: Request, next: Next) -> Response {
    let began = api.clock.now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = match api.api_keys.admit(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let route = route.map_or_else(|| "unmatched".to_owned(), |route| route.as_str().to_owned());
    let seconds = api.clock.now().since(began).as_secs_f64();
    histogram!(DURATION, "route" => route.clone(), "method" => method).record(seconds);
    let status = response.status().as_str().to_owned();
    counter!(REQUESTS, "route" => route, "method" => method, "status" => status).increment(1);
    response
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
