//! The receiver of the limiters that the harness plays itself.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinHandle};

use super::limiters::{Decision, Limiter};
use crate::clock::now;

/// Limiters by the path of the URL.
pub(super) type Limiters = HashMap<String, Box<dyn Limiter>>;

/// Ends when it is dropped.
pub(super) struct Imitation {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Imitation {
    pub(super) async fn start(limiters: Limiters) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (began, limiters) = (now(), Arc::new(Mutex::new(limiters)));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let limiters = Arc::clone(&limiters);
                tokio::spawn(async move {
                    let service = service_fn(|request| answer(request, &limiters, began));
                    // A receiver ignores clients that disconnect.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { address, accepting })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Imitation {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn answer(
    request: Request<Incoming>,
    limiters: &Mutex<Limiters>,
    began: Instant,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    // A limiter decides when the head is there.
    let decision = limiters.lock().get_mut(request.uri().path()).map(|limiter| limiter.decide(now() - began));
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Empty::new());
    match decision {
        Some(Decision::Accept { after }) => tokio::time::sleep(after).await,
        Some(Decision::Refuse { headers }) => {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            for (name, value) in headers {
                if let Ok(value) = value.parse() {
                    response.headers_mut().insert(name, value);
                }
            }
        }
        None => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;
    use crate::{
        client::Connection,
        receivers::{case::Limit, limiters::Gcra},
    };

    #[tokio::test]
    async fn each_path_has_its_own_limiter() {
        let limiter = || Box::new(Gcra::new(Limit::per_minute(1))) as Box<dyn Limiter>;
        let limiters = ["/0", "/1"].map(|path| (path.to_owned(), limiter())).into();
        let imitation = Imitation::start(limiters).await.unwrap();
        let mut connection = Connection::open(imitation.address()).await.unwrap();
        for (path, status) in [("/0", 200), ("/0", 429), ("/1", 200), ("/2", 404)] {
            assert_eq!(connection.exchange(Method::POST, path, Bytes::new()).await.unwrap().0, status, "{path}");
        }
    }
}
