//! The interface to a tracer of requests that send events. How spans are exported is not known here.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use utoipa::IntoParams;
use weir_core::{Clock, EventId, Timestamp, TraceParent, trace};

use crate::problem::ApiResult;

/// Records a span for each request that sends events. The calls must not block, because the producer would wait.
pub trait RequestSpans: Send + Sync {
    /// Begins the span of a request, under the producer's context if there is one. `None`: the request has no span, and
    /// its events keep the producer's context.
    fn begin(&self, parent: Option<TraceParent>) -> Option<StartedSpan>;

    /// Ends the span when the request is answered.
    fn end(&self, span: RequestSpan);
}

/// A span that has begun.
#[derive(Debug, Clone, Copy)]
pub struct StartedSpan {
    /// The context that is stored with the events. If the span is not recorded, it is the producer's context or that of
    /// a new unrecorded trace, so that the whole trace has one sampling decision.
    pub context: TraceParent,
    pub is_recorded: bool,
}

/// An answered request.
#[derive(Debug)]
pub struct RequestSpan {
    pub context: TraceParent,
    pub parent: Option<TraceParent>,
    pub route: &'static str,
    pub began_at: Timestamp,
    pub ended_at: Timestamp,
    pub status: StatusCode,
    /// The number of accepted events, duplicates included.
    pub event_count: usize,
    /// The event, if the request sent a single event.
    pub event_id: Option<EventId>,
}

/// The events that a handler accepted.
#[derive(Default)]
pub(crate) struct AcceptedEvents {
    pub(crate) event_count: usize,
    pub(crate) event_id: Option<EventId>,
}

/// Handles a request in a span. Without a tracer there is no span, and the events get the producer's context, if there
/// is one.
pub(crate) async fn in_span(
    spans: Option<&dyn RequestSpans>,
    clock: &dyn Clock,
    route: &'static str,
    parent: Option<TraceParent>,
    handle: impl AsyncFnOnce(Option<TraceParent>, &mut AcceptedEvents) -> ApiResult<Response>,
) -> ApiResult<Response> {
    let mut accepted = AcceptedEvents::default();
    let Some(spans) = spans else { return handle(parent, &mut accepted).await };
    let began_at = clock.now();
    let Some(StartedSpan { context, is_recorded }) = spans.begin(parent) else {
        return handle(parent, &mut accepted).await;
    };
    let response = handle(Some(context), &mut accepted).await.into_response();
    if is_recorded {
        let AcceptedEvents { event_count, event_id } = accepted;
        let (ended_at, status) = (clock.now(), response.status());
        spans.end(RequestSpan { context, parent, route, began_at, ended_at, status, event_count, event_id });
    }
    Ok(response)
}

/// The trace of the request.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header, which `parent` reads without refusing any value")]
pub(crate) struct TraceParameters {
    /// The producer's span (W3C Trace Context). Receivers get the same trace in a header of this name. A value that
    /// does not follow the specification is ignored.
    #[param(value_type = String, required = false, example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
}

/// The context of the `traceparent` header. Several headers or an invalid one count as none.
pub(crate) fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(trace::HEADER).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { TraceParent::parse(value.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_valid_header_gives_the_context() {
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for (values, known) in [
            (&[][..], false),
            (&[valid], true),
            (&[valid, valid], false),
            (&["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"], false),
            (&["", valid], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(trace::HEADER, value.parse().unwrap());
            }
            assert_eq!(
                parent(&headers).map(|context| context.to_string()),
                known.then(|| valid.to_owned()),
                "{values:?}"
            );
        }
    }
}
