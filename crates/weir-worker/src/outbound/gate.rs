//! The gate: a stream that writes no byte of a request outside its slot.
//!
//! hyper owns the stream and decides when to write; the gate decides whether the first byte of a request may be
//! written. It reads the clock and writes in one step; the time that it read is the send start. While the gate is shut,
//! a write is pending. A missed slot therefore sends no byte and keeps the connection: the holder of the connection
//! asks for another slot and opens the gate again.
//!
//! ```text
//! Shut ──open(slot)──▶ Open ──first write inside the slot──▶ Passed(send start) ──shut──▶ Shut
//!   │                   ├─── first write outside the slot ─▶ Missed ──open(slot)──▶ Open
//!   └── the server sends data or closes, or a write pends ─┴─▶ Dead
//! ```

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_core::{Clock, Slot, Timestamp};

use super::{fault::Broken, status_line::StatusReader, stream::Stream};

/// The maximum size of an answer's head. Common servers limit their own to 8 or 16 KiB.
pub(super) const MAX_HEAD: usize = 32 * 1024;
/// The most interim answers (1xx) to one request. Servers send one or two.
const MOST_INTERIM: usize = 8;
/// The most bytes from the begin of an answer to the end of its final head: 16 KiB of interim answers, and a head.
/// hyper reads interim answers as long as some arrive, so an endless stream of them would never let go of its thread.
const MOST_BEFORE_HEAD: usize = 16 * 1024 + MAX_HEAD;

/// The side of the gate that the holder of the connection uses.
pub(super) struct Gate {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: GateState,
    answer: AnswerStart,
    /// Everything that was written is flushed.
    flushed: bool,
    /// The error after which nothing can be written.
    unwritable: Option<io::ErrorKind>,
}

/// What has arrived of an answer.
#[derive(Debug, Default)]
struct AnswerStart {
    /// The bytes that were read before the final head.
    bytes: usize,
    interim: usize,
    has_head: bool,
    status: StatusReader,
}

impl AnswerStart {
    fn excess(&self) -> Option<Broken> {
        let is_too_large = !self.has_head && self.bytes > MOST_BEFORE_HEAD;
        match self.interim {
            0 => is_too_large.then_some(Broken::TooLarge),
            // The final answer has begun, and its head is too large.
            1..=MOST_INTERIM if self.status.status().is_some() => is_too_large.then_some(Broken::TooLarge),
            1..=MOST_INTERIM => is_too_large.then_some(Broken::Endless),
            _ => Some(Broken::Endless),
        }
    }
}

/// Whether the first byte of the request may be written, or was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GateState {
    Shut,
    Open(Slot),
    /// The write was outside the slot. No byte was sent.
    Missed,
    /// The first write of the request was made at this time: the send start.
    Passed(Timestamp),
    /// No request can be sent on the connection any more. No byte of this one was sent.
    Dead,
}

impl Gate {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let answer = AnswerStart::default();
        let inner = Inner { state: GateState::Shut, answer, flushed: true, unwritable: None };
        Arc::new(Self { clock, inner: Mutex::new(inner) })
    }

    /// Shuts the gate after a request, before the next one.
    pub(super) fn shut(&self) {
        let mut inner = self.inner.lock();
        inner.state = GateState::Shut;
        inner.answer = AnswerStart::default();
    }

    pub(super) fn open(&self, slot: Slot) {
        let mut inner = self.inner.lock();
        if inner.state != GateState::Dead {
            inner.state = GateState::Open(slot);
        }
    }

    pub(super) fn state(&self) -> GateState {
        self.inner.lock().state
    }

    pub(super) fn has_received(&self) -> bool {
        self.inner.lock().answer.bytes > 0
    }

    /// Counts an interim answer.
    pub(super) fn count_interim(&self) {
        self.inner.lock().answer.interim += 1;
    }

    /// The final head has arrived.
    pub(super) fn head_arrived(&self) {
        self.inner.lock().answer.has_head = true;
    }

    /// The final status, if its line has arrived: hyper does not tell it when the rest of the head is too large.
    pub(super) fn status(&self) -> Option<u16> {
        self.inner.lock().answer.status.status()
    }

    /// What there is too much of before the final head. Nothing more of the answer is read.
    pub(super) fn excess(&self) -> Option<Broken> {
        self.inner.lock().answer.excess()
    }

    pub(super) fn has_flushed(&self) -> bool {
        let inner = self.inner.lock();
        inner.flushed && inner.unwritable.is_none()
    }

    pub(super) fn unwritable(&self) -> Option<io::ErrorKind> {
        self.inner.lock().unwritable
    }
}

/// The side of the gate that hyper uses.
pub(super) struct GatedStream {
    stream: Stream,
    gate: Arc<Gate>,
}

impl GatedStream {
    pub(super) fn new(stream: Stream, gate: Arc<Gate>) -> Self {
        Self { stream, gate }
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.gate.inner.lock();
        // A write has failed before: hyper waits until a read finds the end of the connection.
        if inner.unwritable.is_some() {
            return Poll::Pending;
        }
        let written = match inner.state {
            // The rest of a request that has begun needs no slot.
            GateState::Passed(_) => write(Pin::new(&mut self.stream), cx),
            GateState::Open(slot) => {
                // The clock is read and the bytes are written in one step: this time is the send start.
                let at = self.gate.clock.now();
                if !slot.contains(at) {
                    inner.state = GateState::Missed;
                    return Poll::Pending;
                }
                let written = write(Pin::new(&mut self.stream), cx);
                // An idle connection accepts the first write at once, or is unusable. With TLS, an error does not prove
                // that no byte was sent, so it counts as sent.
                inner.state = if written.is_ready() { GateState::Passed(at) } else { GateState::Dead };
                written
            }
            GateState::Shut | GateState::Missed | GateState::Dead => return Poll::Pending,
        };
        match written {
            // hyper would stop at this error, but an answer that arrived before can still be read. So the error is not
            // returned: a later read finds the end of the connection.
            Poll::Ready(Err(error)) => {
                inner.unwritable = Some(error.kind());
                Poll::Pending
            }
            written => {
                inner.flushed = false;
                written
            }
        }
    }
}

impl AsyncRead for GatedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gate.excess().is_some() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if read.is_ready() {
            let mut inner = this.gate.inner.lock();
            match inner.state {
                GateState::Passed(_) => {
                    inner.answer.bytes += buf.filled().len() - before;
                    inner.answer.status.feed(&buf.filled()[before..]);
                }
                // Data that answers no request, or the end of the connection: nothing may be sent after it.
                _ => inner.state = GateState::Dead,
            }
        }
        read
    }
}

impl AsyncWrite for GatedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        let mut inner = this.gate.inner.lock();
        match flushed {
            // hyper flushes after it has written everything.
            Poll::Ready(Ok(())) => {
                inner.flushed = true;
                flushed
            }
            Poll::Ready(Err(error)) => {
                inner.unwritable = Some(error.kind());
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::{
        super::fixed_clock::{FixedClock, NOW},
        *,
    };

    async fn gated() -> (GatedStream, Arc<Gate>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let gate = Gate::new(Arc::new(FixedClock));
        let far = listener.accept().await.unwrap().0;
        (GatedStream::new(Stream::Plain(near), gate.clone()), gate, far)
    }

    fn slot(start: Timestamp) -> Slot {
        Slot { start, end: start + Duration::from_millis(10) }
    }

    async fn write(stream: &mut GatedStream) -> bool {
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_write(cx, b"POST").is_ready())).await
    }

    #[tokio::test]
    async fn a_request_is_written_only_inside_its_slot() {
        let (mut stream, gate, mut far) = gated().await;
        assert!(!write(&mut stream).await, "without a slot");
        for start in [NOW + Duration::from_nanos(1), NOW - Duration::from_millis(10)] {
            gate.open(slot(start));
            assert!(!write(&mut stream).await);
            assert_eq!(gate.state(), GateState::Missed);
            assert!(!write(&mut stream).await, "a missed slot is not used later");
        }
        gate.open(slot(NOW));
        assert!(write(&mut stream).await);
        assert_eq!(gate.state(), GateState::Passed(NOW));
        gate.shut();
        assert!(!write(&mut stream).await);
        drop(stream);
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.unwrap();
        assert_eq!(seen, b"POST");
    }

    #[tokio::test]
    async fn a_connection_on_which_the_server_sent_unrequested_data_is_not_used() {
        let (mut stream, gate, mut far) = gated().await;
        far.write_all(b"HTTP/1.1 408").await.unwrap();
        gate.open(slot(NOW));
        stream.read_u8().await.unwrap();
        gate.open(slot(NOW));
        assert!(!write(&mut stream).await);
        assert_eq!(gate.state(), GateState::Dead);
    }

    #[tokio::test]
    async fn an_answer_can_be_read_after_a_failed_write() {
        let (mut stream, gate, mut far) = gated().await;
        gate.open(slot(NOW));
        assert!(write(&mut stream).await);
        far.write_all(b"HTTP/1.1 413").await.unwrap();
        far.set_zero_linger().unwrap();
        drop(far);
        while gate.unwritable().is_none() {
            write(&mut stream).await;
            tokio::task::yield_now().await;
        }
        assert!(!write(&mut stream).await, "hyper must not see the error");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413");
        assert!(gate.has_received() && !gate.has_flushed());
    }
}
