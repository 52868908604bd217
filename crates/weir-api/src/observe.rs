//! The middleware of every request: gives it an id; checks the host, the key or session, and the page that sent the
//! request; counts and times the response, and adds the headers for browsers.
//!
//! The number of labels is bounded: the route is the matched pattern, not the path, and unusual methods share one
//! label.

use std::{collections::HashMap, sync::Arc};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode};
use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::RwLock;

use crate::{
    auth::{self, Caller, LastSender, NoCaller, SessionCookie, Trial, access::Changed, same_origin},
    browser_headers,
    meters::{DURATION, REQUESTS},
    problem::ApiResult,
    refused_producers::RefusedProducers,
    request_id::RequestId,
    state::Api,
};

/// The state of the middleware.
#[derive(Clone)]
pub(crate) struct Observer {
    pub(crate) api: Api,
    meters: Arc<Meters>,
    refused_producers: Arc<RefusedProducers>,
}

impl Observer {
    pub(crate) fn of(api: Api) -> Self {
        Self { api, meters: Arc::default(), refused_producers: Arc::default() }
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
        let known = self.0.read();
        if let Some(meter) = known.get(route).and_then(|meters| meters.get(&(method, status))) {
            return meter.record(seconds);
        }
        drop(known);
        let meter = Meter::of(route, method, status);
        meter.record(seconds);
        let mut known = self.0.write();
        known.entry(route.to_owned()).or_default().insert((method, status), meter);
    }
}

pub(crate) async fn observe(State(observer): State<Observer>, mut request: Request, next: Next) -> Response {
    let Observer { api, meters, refused_producers } = observer;
    let began = api.clock.now();
    let request_id = RequestId::give(&mut request);
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let is_guarded = auth::is_guarded(request.uri().path());
    let mut response = match admit(&api, &mut request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if response.extensions().get::<Changed>().is_some() {
        api.live.changed();
    }
    browser_headers::add(&mut response, is_guarded);
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    let ended = api.clock.now();
    meters.record(route, method, response.status(), ended.since(began).as_secs_f64());
    refused_producers.note(route, method, response.status(), ended);
    request_id.answer(response, route)
}

/// Checks the host, the key or session and the page, and adds the caller to the request, whose role the route checks.
fn admit(api: &Api, request: &mut Request) -> ApiResult<()> {
    api.hosts.admit(request)?;
    let (headers, public_url) = (request.headers(), api.public_url.as_ref());
    let now = api.clock.now();
    let caller =
        api.keys.caller(request.uri(), headers, SessionCookie::of(public_url), now).map_err(
            |no_caller| match no_caller {
                NoCaller::WrongKey(key) => {
                    api.keys.refuse(Trial::Request, key, api.proxies.client(request.extensions(), headers), now)
                }
                NoCaller::Refused(problem) => problem,
            },
        )?;
    same_origin::check(caller.as_ref().map(Caller::credential), request.method(), headers, public_url)?;
    if let Some(caller) = caller {
        if let Some(sender) = request.extensions().get::<LastSender>() {
            sender.set(caller.sender().key.id);
        }
        request.extensions_mut().insert(caller);
    }
    Ok(())
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
