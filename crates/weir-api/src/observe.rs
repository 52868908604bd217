//! The middleware of every request: checks the host and the key, and counts and times the response.
//!
//! The number of labels is bounded: the route is the matched pattern, not the path, and unusual methods share one
//! label.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode};
use metrics::{Counter, Histogram, counter, histogram};

use crate::{
    meters::{DURATION, REQUESTS},
    state::Api,
};

/// The state of the middleware.
#[derive(Clone)]
pub(crate) struct Observer {
    pub(crate) api: Api,
    meters: Arc<Meters>,
}

impl Observer {
    pub(crate) fn of(api: Api) -> Self {
        Self { api, meters: Arc::default() }
    }
}

/// The meters of each requested route. They are cached, because a look-up by labels costs more than the measurement.
#[derive(Default)]
struct Meters(RwLock<HashMap<String, RouteMeters>>);

/// The meters of a route by method and status.
type RouteMeters = HashMap<(&'static str, StatusCode), Meter>;

#[derive(Clone)]
struct Meter {
    requests: Counter,
    duration: Histogram,
}

impl Meter {
    fn of(route: &str, method: &'static str, status: StatusCode) -> Self {
        let (route, code) = (route.to_owned(), status.as_str().to_owned());
        Self {
            duration: histogram!(DURATION, "route" => route.clone(), "method" => method),
            requests: counter!(REQUESTS, "route" => route, "method" => method, "status" => code),
        }
    }

    fn record(&self, seconds: f64) {
        self.duration.record(seconds);
        self.requests.increment(1);
    }
}

impl Meters {
    fn record(&self, route: &str, method: &'static str, status: StatusCode, seconds: f64) {
        // A panic under the lock leaves a valid map.
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = known.get(route).and_then(|meters| meters.get(&(method, status))) {
            return meter.record(seconds);
        }
        drop(known);
        let meter = Meter::of(route, method, status);
        meter.record(seconds);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(route.to_owned()).or_default().insert((method, status), meter);
    }
}

pub(crate) async fn observe(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let Observer { api, meters } = observer;
    let began = api.clock.now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let admitted = api.hosts.admit(&request).and_then(|()| api.api_keys.admit(request.uri(), request.headers()));
    let response = match admitted {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    meters.record(route, method, response.status(), api.clock.now().since(began).as_secs_f64());
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
