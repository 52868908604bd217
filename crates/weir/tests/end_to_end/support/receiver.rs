//! A receiver on loopback that keeps each request with its time of reading and answers from a script.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;

use super::now;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// How much earlier than `at` the request may have arrived, because this process did not run.
    pub(crate) stalled: Duration,
    /// The status of the answer.
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Arrival {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// The answer of a path.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) after: Duration,
    pub(crate) body: AnswerBody,
}

#[derive(Debug, Clone)]
pub(crate) enum AnswerBody {
    Text(String),
    /// This many bytes.
    Large(usize),
    /// One byte every interval, without end.
    Drip(Duration),
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), after: Duration::ZERO, body: AnswerBody::Text(String::new()) }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.after = delay;
        self
    }

    pub(crate) fn body(mut self, body: AnswerBody) -> Self {
        self.body = body;
        self
    }
}

#[derive(Default)]
struct Path {
    arrivals: Vec<Arrival>,
    /// The answers in turn; the last one is repeated. Empty: always 200.
    script: Vec<Answer>,
    /// How many requests are taken in each second from the first one on; the others get 429.
    takes: Option<usize>,
}

impl Path {
    /// The answer to the next request, which arrives now.
    fn answer(&self, at: Instant) -> Answer {
        let second = |at: Instant| self.arrivals.first().map_or(0, |first| (at - first.at).as_secs());
        let of_second = self.arrivals.iter().rev().take_while(|arrival| second(arrival.at) == second(at));
        let taken = of_second.filter(|arrival| arrival.status != 429).count();
        if self.takes.is_some_and(|takes| taken >= takes) {
            return Answer::status(429);
        }
        let turn = self.arrivals.len().min(self.script.len().saturating_sub(1));
        self.script.get(turn).cloned().unwrap_or(Answer::status(200))
    }
}

/// A scripted receiver.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    paths: Arc<Mutex<HashMap<String, Path>>>,
    stalls: Arc<Mutex<Vec<Stall>>>,
}

/// A time in which this process did not run, although it should have.
#[derive(Debug, Clone, Copy)]
struct Stall {
    from: Instant,
    until: Instant,
}

const BEAT: Duration = Duration::from_millis(1);

impl Receiver {
    pub(crate) async fn start() -> Self {
        Self::listen("http", None, Duration::ZERO).await
    }

    /// Listens with TLS and delays each handshake by `handshake`.
    pub(crate) async fn start_tls(acceptor: TlsAcceptor, handshake: Duration) -> Self {
        Self::listen("https", Some(acceptor), handshake).await
    }

    async fn listen(scheme: &'static str, acceptor: Option<TlsAcceptor>, handshake: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let receiver = Self { address, scheme, paths: Arc::default(), stalls: Arc::default() };
        tokio::spawn(watch_for_stalls(Arc::downgrade(&receiver.stalls)));
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (serving, acceptor) = (serving.clone(), acceptor.clone());
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    match acceptor {
                        None => serving.serve(stream).await,
                        Some(acceptor) => {
                            tokio::time::sleep(handshake).await;
                            if let Ok(stream) = acceptor.accept(stream).await {
                                serving.serve(stream).await;
                            }
                        }
                    }
                });
            }
        });
        receiver
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(|request| self.answer(request));
        // The receiver ignores peers that disconnect.
        let _ = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
        let at = now();
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let body = body.collect().await?.to_bytes();
        let answer = {
            let mut paths = self.paths.lock();
            let path = paths.entry(path).or_default();
            let answer = path.answer(at);
            let (stalled, status) = (Duration::ZERO, answer.status);
            path.arrivals.push(Arrival { at, stalled, status, headers: head.headers, body });
            answer
        };
        if !answer.after.is_zero() {
            tokio::time::sleep(answer.after).await;
        }
        let mut response = Response::builder().status(answer.status);
        for (name, value) in &answer.headers {
            response = response.header(*name, value);
        }
        Ok(response.body(answer_body(answer.body)).expect("a response"))
    }

    /// Sets the answers of a path, given in turn; the last one is repeated.
    pub(crate) fn script(&self, path: &str, answers: impl IntoIterator<Item = Answer>) {
        let mut paths = self.paths.lock();
        paths.entry(path.to_owned()).or_default().script = answers.into_iter().collect();
    }

    /// Takes so many requests at a path in each second, and refuses the others.
    pub(crate) fn police(&self, path: &str, takes: usize) {
        self.paths.lock().entry(path.to_owned()).or_default().takes = Some(takes);
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let host = if self.scheme == "https" { "localhost" } else { "127.0.0.1" };
        format!("{}://{host}:{}{path}", self.scheme, self.address.port())
    }

    /// The arrivals at a path so far.
    pub(crate) fn arrivals(&self, path: &str) -> Vec<Arrival> {
        let paths = self.paths.lock();
        let mut arrivals = paths.get(path).map(|path| path.arrivals.clone()).unwrap_or_default();
        drop(paths);
        let stalls = self.stalls.lock();
        for arrival in &mut arrivals {
            arrival.stalled = stalled(&stalls, arrival.at);
        }
        arrivals
    }

    pub(crate) fn count(&self, path: &str) -> usize {
        let paths = self.paths.lock();
        paths.get(path).map_or(0, |path| path.arrivals.len())
    }

    /// The number of arrivals at all paths.
    pub(crate) fn total(&self) -> usize {
        let paths = self.paths.lock();
        paths.values().map(|path| path.arrivals.len()).sum()
    }

    /// Waits until `count` requests have arrived at a path.
    pub(crate) async fn wait_for(&self, path: &str, count: usize, within: Duration) -> Vec<Arrival> {
        super::eventually(&format!("{count} arrivals at {path}"), within, async || self.count(path) >= count).await;
        self.arrivals(path)
    }
}

/// Records the times in which this process does not run. On a shared machine the sender is not at fault for them.
async fn watch_for_stalls(stalls: Weak<Mutex<Vec<Stall>>>) {
    let mut from = now();
    while let Some(stalls) = stalls.upgrade() {
        tokio::time::sleep(BEAT).await;
        let until = now();
        if until - from > super::SLACK {
            stalls.lock().push(Stall { from, until });
        }
        from = until;
    }
}

/// How much earlier than `at` a request may have arrived. A request that is read during a stall, or right after it, may
/// have arrived when the stall began.
fn stalled(stalls: &[Stall], at: Instant) -> Duration {
    let began = stalls.partition_point(|stall| stall.from <= at);
    let recent = stalls[..began].iter().rev().take(8);
    recent
        .filter(|stall| at <= stall.until + (stall.until - stall.from))
        .map(|stall| at - stall.from)
        .max()
        .unwrap_or_default()
}

fn answer_body(body: AnswerBody) -> BoxBody<Bytes, Infallible> {
    match body {
        AnswerBody::Text(text) => Full::new(Bytes::from(text)).boxed(),
        AnswerBody::Large(size) => Full::new(Bytes::from(vec![b'x'; size])).boxed(),
        AnswerBody::Drip(interval) => {
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(async move {
                while sender.send(Ok(Frame::data(Bytes::from_static(b".")))).await.is_ok() {
                    tokio::time::sleep(interval).await;
                }
            });
            StreamBody::new(tokio_stream(receiver)).boxed()
        }
    }
}

fn tokio_stream<T>(mut receiver: mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> {
    futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
}
