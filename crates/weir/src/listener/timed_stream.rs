//! A stream that fails when its client does not send a head, or does not read an answer, in time.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::{
    ConnectionLimits,
    phases::{Phase, PhaseTracker},
};

pub(super) struct TimedStream {
    stream: TcpStream,
    phases: Arc<PhaseTracker>,
    limits: ConnectionLimits,
    /// Fires at the deadline of a head or of an idle connection, or before it. Only then it is set to the new deadline: a
    /// reset for each request would cost more than a wake-up. It is polled while a request is served too, because hyper
    /// may not read again after the response.
    timer: Pin<Box<Sleep>>,
    /// Runs while the client takes no more bytes of an answer.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub(super) fn new(stream: TcpStream, phases: Arc<PhaseTracker>, limits: ConnectionLimits) -> Self {
        let first = limits.head_timeout.min(limits.idle_timeout);
        let timer = Box::pin(sleep_until(phases.current().since + first));
        Self { stream, phases, limits, timer, stalled: None }
    }

    fn has_timed_out(&mut self, phase: Phase, cx: &mut Context<'_>) -> bool {
        let head = phase.head_since.map(|since| since + self.limits.head_timeout);
        if let Some(deadline) = head.filter(|deadline| *deadline < self.timer.deadline()) {
            self.timer.as_mut().reset(deadline);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let idle_since = if phase.is_busy() { now } else { phase.since };
            let deadline = head.unwrap_or(idle_since + self.limits.idle_timeout);
            if now >= deadline {
                return true;
            }
            self.timer.as_mut().reset(deadline);
        }
        false
    }

    /// A write that waits for its client fails after the timeout. Any progress begins the timeout anew.
    fn written(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if self.stalled.take().is_some() {
                self.phases.set_stalled(false);
            }
            return written;
        }
        let (timeout, phases) = (self.limits.write_timeout, &self.phases);
        let stalled = self.stalled.get_or_insert_with(|| {
            phases.set_stalled(true);
            Box::pin(sleep(timeout))
        });
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let phase = this.phases.current();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_pending() && this.has_timed_out(phase, cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        // Bytes that arrive while a request is served belong to its body. Otherwise they begin a head.
        if buffer.filled().len() > before && !phase.is_serving() && phase.head_since.is_none() {
            this.phases.begin_head();
        }
        read
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
