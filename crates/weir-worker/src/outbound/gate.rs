//! The gate at the wire: a stream that takes no byte of a request before its slot.
//!
//! hyper owns the stream and decides when to write; the gate decides whether the first byte of a request leaves. It looks at the
//! clock and writes in one step, and the moment it read is the send start. While it is shut a write is pending, so that a missed
//! slot costs neither a byte nor the connection: whoever holds the connection asks for another slot and opens the gate again.
//!
//! ```text
//! Shut ──open(slot)──▶ Open ──first write, in the slot──▶ Passed(send start) ──shut──▶ Shut
//!   │                   ├─── first write, outside of it ─▶ Missed ──open(slot)──▶ Open
//!   └── the server speaks or closes, or takes nothing ───┴─▶ Dead
//! ```

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_core::{Clock, Slot, Timestamp};

use super::stream::Stream;

/// The holder's side of the gate.
pub(super) struct Gate {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    passage: Passage,
    /// A byte of the answer has come.
    heard: bool,
    /// All that was written has left.
    flushed: bool,
    /// Why nothing can be written any more.
    unwritable: Option<io::ErrorKind>,
}

/// Whether the first byte of the request may leave, or has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    Shut,
    Open(Slot),
    /// The slot did not hold the moment of the write. Nothing left.
    Missed,
    /// The request has begun to leave.
    Passed(Timestamp),
    /// The connection is of no use for a request that has not begun. Nothing left.
    Dead,
}

impl Gate {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State { passage: Passage::Shut, heard: false, flushed: true, unwritable: None };
        Arc::new(Self { clock, state: Mutex::new(state) })
    }

    /// After a request, before the next.
    pub(super) fn shut(&self) {
        let mut state = self.lock();
        state.passage = Passage::Shut;
        state.heard = false;
    }

    pub(super) fn open(&self, slot: Slot) {
        let mut state = self.lock();
        if state.passage != Passage::Dead {
            state.passage = Passage::Open(slot);
        }
    }

    pub(super) fn passage(&self) -> Passage {
        self.lock().passage
    }

    pub(super) fn has_heard(&self) -> bool {
        self.lock().heard
    }

    pub(super) fn has_flushed(&self) -> bool {
        let state = self.lock();
        state.flushed && state.unwritable.is_none()
    }

    pub(super) fn unwritable(&self) -> Option<io::ErrorKind> {
        self.lock().unwritable
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// hyper's side of the gate.
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
        let mut state = self.gate.lock();
        if state.unwritable.is_some() {
            return Poll::Pending;
        }
        let written = match state.passage {
            Passage::Passed(_) => write(Pin::new(&mut self.stream), cx),
            Passage::Open(slot) => {
                let at = self.gate.clock.now();
                if !slot.contains(at) {
                    state.passage = Passage::Missed;
                    return Poll::Pending;
                }
                let written = write(Pin::new(&mut self.stream), cx);
                // A connection between requests takes the first write at once, or is of no use. With TLS an error does not tell
                // that nothing has left.
                state.passage = if written.is_ready() { Passage::Passed(at) } else { Passage::Dead };
                written
            }
            Passage::Shut | Passage::Missed | Passage::Dead => return Poll::Pending,
        };
        match written {
            // hyper would give up; but what was answered before is still there to be read, and a read meets the end.
            Poll::Ready(Err(error)) => {
                state.unwritable = Some(error.kind());
                Poll::Pending
            }
            written => {
                state.flushed = false;
                written
            }
        }
    }
}

impl AsyncRead for GatedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if read.is_ready() {
            let mut state = this.gate.lock();
            match state.passage {
                Passage::Passed(_) => state.heard |= buf.filled().len() > before,
                // What answers no request, or ends the connection: nothing may be sent after it.
                _ => state.passage = Passage::Dead,
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
        let mut state = this.gate.lock();
        match flushed {
            // hyper flushes once it has written all it has.
            Poll::Ready(Ok(())) => {
                state.flushed = true;
                flushed
            }
            Poll::Ready(Err(error)) => {
                state.unwritable = Some(error.kind());
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

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            NOW
        }

        fn wall(&self) -> Timestamp {
            NOW
        }
    }

    async fn gated() -> (GatedStream, Arc<Gate>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let gate = Gate::new(Arc::new(Still));
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
    async fn nothing_is_written_but_inside_a_slot_after_its_start_and_before_its_end() {
        let (mut stream, gate, mut far) = gated().await;
        assert!(!write(&mut stream).await, "without a slot");
        for start in [NOW + Duration::from_nanos(1), NOW - Duration::from_millis(10)] {
            gate.open(slot(start));
            assert!(!write(&mut stream).await);
            assert_eq!(gate.passage(), Passage::Missed);
            assert!(!write(&mut stream).await, "a slot is looked at once");
        }
        gate.open(slot(NOW));
        assert!(write(&mut stream).await);
        assert_eq!(gate.passage(), Passage::Passed(NOW));
        gate.shut();
        assert!(!write(&mut stream).await);
        drop(stream);
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.unwrap();
        assert_eq!(seen, b"POST");
    }

    #[tokio::test]
    async fn what_the_server_says_before_a_request_makes_the_connection_useless() {
        let (mut stream, gate, mut far) = gated().await;
        far.write_all(b"HTTP/1.1 408").await.unwrap();
        gate.open(slot(NOW));
        stream.read_u8().await.unwrap();
        gate.open(slot(NOW));
        assert!(!write(&mut stream).await);
        assert_eq!(gate.passage(), Passage::Dead);
    }

    #[tokio::test]
    async fn a_write_that_fails_leaves_what_was_answered_to_be_read() {
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
        assert!(!write(&mut stream).await, "hyper must not hear of it");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413");
        assert!(gate.has_heard() && !gate.has_flushed());
    }
}
