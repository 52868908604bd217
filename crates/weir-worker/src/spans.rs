//! What a tracer is told of attempts. Who exports them, and how, is not known here.

use url::Url;
use weir_core::{EventId, Timestamp, TraceParent, claim::Claim, outcome::Failure};

/// Records a span for each attempt. Neither call may wait: both are made on the way to the wire and back.
pub trait AttemptSpans: Send + Sync {
    /// The span of an attempt that begins, of an event with this context; `None` when it is not recorded. The receiver is told the
    /// span's context, or the event's where there is no span.
    fn begin(&self, parent: Option<TraceParent>) -> Option<StartedSpan>;

    /// The attempt was made. One that was withdrawn before it left has no end, and no span.
    fn end(&self, span: AttemptSpan<'_>);
}

/// A span that is recorded once its attempt has ended.
#[derive(Debug, Clone, Copy)]
pub struct StartedSpan {
    pub context: TraceParent,
    /// What it is a child of.
    pub parent: Option<TraceParent>,
}

/// An attempt that ended.
#[derive(Debug)]
pub struct AttemptSpan<'a> {
    pub span: StartedSpan,
    pub event_id: EventId,
    pub claim: Claim,
    /// From 1 on.
    pub number: u32,
    /// When the request left, or when it was clear that none can.
    pub sent_at: Timestamp,
    pub ended_at: Timestamp,
    /// Its query may hold a credential.
    pub url: &'a Url,
    /// Of an answer that came whole.
    pub status_code: Option<u16>,
    pub failure: Option<Failure>,
}
