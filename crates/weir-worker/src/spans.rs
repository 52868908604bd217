//! The interface between attempts and a tracer. The export of spans is elsewhere.

use url::Url;
use weir_core::{EventId, Timestamp, TraceParent, claim::Claim, outcome::Failure};

/// Records a span for each attempt. Neither call may block, because both are made around the send.
pub trait AttemptSpans: Send + Sync {
    /// Starts the span of an attempt. `parent` is the trace context of the event. `None`: the attempt is not recorded.
    /// The receiver gets the context of the span, or that of the event if there is no span.
    fn begin(&self, parent: Option<TraceParent>) -> Option<StartedSpan>;

    /// Ends the span of an attempt. A permit that was withdrawn before the send has no attempt, so its span is never
    /// ended and not recorded.
    fn end(&self, span: AttemptSpan<'_>);
}

/// A span that is recorded once its attempt has ended.
#[derive(Debug, Clone, Copy)]
pub struct StartedSpan {
    pub context: TraceParent,
    /// The parent span.
    pub parent: Option<TraceParent>,
}

/// An attempt that ended.
#[derive(Debug)]
pub struct AttemptSpan<'a> {
    pub span: StartedSpan,
    pub event_id: EventId,
    pub claim: Claim,
    /// The number of the attempt, from 1 on.
    pub number: u32,
    /// The send start, or the end of an attempt without a connection.
    pub sent_at: Timestamp,
    pub ended_at: Timestamp,
    /// The query may contain a credential.
    pub url: &'a Url,
    /// The status of the answer, if its head arrived.
    pub status_code: Option<u16>,
    pub failure: Option<Failure>,
}
