//! What a tracer is told of requests that bring events. Who exports them, and how, is not known here.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use weir_core::{EventId, Timestamp, TraceParent, trace};

use crate::{problem::Answer, state::ApiState};

/// Records a span for each request that brings events. Neither call may wait: producers would.
pub trait RequestSpans: Send + Sync {
    /// The span of a request that begins, as its producer's context or none asks for. `None`: it has no span, and its events keep the
    /// producer's context.
    fn begin(&self, parent: Option<TraceParent>) -> Option<Begun>;

    /// The request is answered.
    fn end(&self, span: RequestSpan);
}

/// A span that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    /// What is stored with the events. When the span is not recorded: the producer's, or that of a trace nobody records, so that
    /// it is decided once for the whole trace.
    pub context: TraceParent,
    pub is_recorded: bool,
}

/// A request that was answered.
#[derive(Debug)]
pub struct RequestSpan {
    pub context: TraceParent,
    pub parent: Option<TraceParent>,
    pub route: &'static str,
    pub began_at: Timestamp,
    pub ended_at: Timestamp,
    pub status: StatusCode,
    /// How many events were stored, or had been before.
    pub event_count: usize,
    /// The event, when it was one.
    pub event_id: Option<EventId>,
}

/// What a handler makes known of its events.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) event_count: usize,
    pub(crate) event_id: Option<EventId>,
}

/// Handles a request in a span, or without one when nobody records any: then its events have the producer's context, if that
/// named one.
pub(crate) async fn in_span(
    api: &ApiState,
    route: &'static str,
    parent: Option<TraceParent>,
    handle: impl AsyncFnOnce(Option<TraceParent>, &mut Taken) -> Answer<Response>,
) -> Answer<Response> {
    let mut taken = Taken::default();
    let Some(spans) = &api.spans else { return handle(parent, &mut taken).await };
    let began_at = api.clock.now();
    let Some(Begun { context, is_recorded }) = spans.begin(parent) else { return handle(parent, &mut taken).await };
    let response = handle(Some(context), &mut taken).await.into_response();
    if is_recorded {
        let Taken { event_count, event_id } = taken;
        let (ended_at, status) = (api.clock.now(), response.status());
        spans.end(RequestSpan { context, parent, route, began_at, ended_at, status, event_count, event_id });
    }
    Ok(response)
}

/// One header names a context; several, or one that is not valid, name none.
pub(crate) fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(trace::HEADER).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { TraceParent::parse(value.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_valid_header_is_the_context() {
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
