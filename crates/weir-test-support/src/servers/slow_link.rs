use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// Chunks of 16 KiB that are on their way in one direction: 16 MiB. A sender that is faster waits, as on a real link.
const ON_THE_WAY: usize = 1_024;

/// A network path to a server of this machine, as long as a test needs it: a loopback port that forwards each direction
/// after half of the round trip, in order. It ends when it is dropped.
pub struct SlowLink {
    port: u16,
    round_trip: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl SlowLink {
    /// Begins without a delay.
    ///
    /// # Errors
    ///
    /// The system has no free port.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let round_trip = Arc::<AtomicU64>::default();
        let accepting = tokio::spawn(accept(listener, server, round_trip.clone()));
        Ok(Self { port, round_trip, accepting })
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Sets the round trip, for open connections too.
    pub fn set_round_trip(&self, round_trip: Duration) {
        self.round_trip.store(round_trip.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, round_trip: Arc<AtomicU64>) {
    while let Ok((client, _)) = listener.accept().await {
        let round_trip = round_trip.clone();
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else { return };
            let _ = client.set_nodelay(true).and(server.set_nodelay(true));
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            // The end of either direction closes both connections.
            tokio::select! {
                () = forward(from_client, to_server, &round_trip) => {}
                () = forward(from_server, to_client, &round_trip) => {}
            }
        });
    }
}

async fn forward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, round_trip: &AtomicU64) {
    let (sender, mut on_the_way) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let read = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let arrives = Instant::now() + Duration::from_micros(round_trip.load(Ordering::Relaxed) / 2);
            if sender.send((arrives, buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((arrives, bytes)) = on_the_way.recv().await {
            sleep_until(arrives).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
