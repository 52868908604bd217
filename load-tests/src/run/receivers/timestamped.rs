//! A connection that knows the arrival time of the bytes that were read last. The kernel takes the time, so it does not
//! depend on when a thread of this process reads. Only Linux stamps TCP data; elsewhere the time is that of reading.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::clock::now;

pub(super) struct TimestampedStream {
    stream: TcpStream,
    arrival_time: ArrivalTime,
    #[cfg(target_os = "linux")]
    control: Vec<u8>,
}

/// The arrival time of the bytes that were read last.
#[derive(Clone)]
pub(super) struct ArrivalTime(Arc<Mutex<Instant>>);

impl ArrivalTime {
    pub(super) fn at(&self) -> Instant {
        *self.0.lock()
    }

    fn set(&self, at: Instant) {
        *self.0.lock() = at;
    }
}

impl TimestampedStream {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        linux::enable_timestamps(&stream)?;
        Ok(Self {
            stream,
            arrival_time: ArrivalTime(Arc::new(Mutex::new(now()))),
            #[cfg(target_os = "linux")]
            control: linux::control(),
        })
    }

    pub(super) fn arrival_time(&self) -> ArrivalTime {
        self.arrival_time.clone()
    }
}

impl AsyncRead for TimestampedStream {
    #[cfg(target_os = "linux")]
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            std::task::ready!(this.stream.poll_read_ready(context))?;
            match linux::receive(&this.stream, buffer.initialize_unfilled(), &mut this.control) {
                Ok((read, arrival_time)) => {
                    buffer.advance(read);
                    this.arrival_time.set(arrival_time.unwrap_or_else(now));
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.arrival_time.set(now());
        read
    }
}

impl AsyncWrite for TimestampedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// `SO_TIMESTAMPNS` of socket(7): a read returns the kernel's arrival time beside the data.
#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io::{self, IoSliceMut},
        os::fd::AsRawFd,
        time::{Duration, Instant, UNIX_EPOCH},
    };

    use nix::sys::{
        socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::ReceiveTimestampns},
        time::TimeSpec,
    };
    use tokio::{io::Interest, net::TcpStream};

    use crate::clock;

    pub(super) fn enable_timestamps(stream: &TcpStream) -> io::Result<()> {
        Ok(setsockopt(stream, ReceiveTimestampns, &true)?)
    }

    /// A buffer for the control message with the timestamp.
    pub(super) fn control() -> Vec<u8> {
        nix::cmsg_space!(TimeSpec)
    }

    pub(super) fn receive(
        stream: &TcpStream,
        bytes: &mut [u8],
        control: &mut [u8],
    ) -> io::Result<(usize, Option<Instant>)> {
        stream.try_io(Interest::READABLE, || {
            let mut bytes = [IoSliceMut::new(bytes)];
            let message = recvmsg::<()>(stream.as_raw_fd(), &mut bytes, Some(control), MsgFlags::empty())?;
            let arrival_time = message.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(at) => Some(clock::of_wall(UNIX_EPOCH + Duration::from(at))),
                _ => None,
            });
            Ok((message.bytes, arrival_time))
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn data_that_waits_to_be_read_has_the_time_of_its_arrival() {
        const WAITS: Duration = Duration::from_millis(20);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut timestamped = TimestampedStream::new(listener.accept().await.unwrap().0).unwrap();
        let arrival_time = timestamped.arrival_time();
        // The kernel begins to stamp a moment after the first socket enables it.
        for _ in 0..100 {
            let before = now();
            sender.write_all(b"here").await.unwrap();
            let sent = now();
            tokio::time::sleep(WAITS).await;
            timestamped.read_exact(&mut [0; 4]).await.unwrap();
            let off = Duration::from_millis(1);
            assert!(arrival_time.at() + off >= before, "before it was sent");
            if arrival_time.at() <= sent + off {
                return;
            }
        }
        panic!("the stamp is only the time of reading");
    }
}
