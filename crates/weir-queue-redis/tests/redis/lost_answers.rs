//! Answers that never arrive: a proxy swallows them and cuts the connection.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use weir_core::{claim::ClaimedBody, event::EventBody, plan::NextRun};
use weir_queue::{Permit, Permits as _, Published, Schedule as _};
use weir_queue_redis::{RedisConfig, RedisQueue, Topology};

use crate::support::{self, Server, claim, destination, permits, publication, wake};

/// Only publications with such a body are tampered with.
const MARK: &[u8] = b"the answer to this is lost";

/// Passes everything on, but cuts a connection instead of passing on the answer to a marked publication, `lost` times.
async fn proxy(server: &Server, lost: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = server.port();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(pass_on(client, server, lost.clone()));
        }
    });
    format!("redis://{address}")
}

async fn pass_on(mut client: TcpStream, mut server: TcpStream, lost: Arc<AtomicUsize>) -> std::io::Result<()> {
    let (mut question, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut marked = false;
    loop {
        tokio::select! {
            read = client.read(&mut question) => {
                let asked = &question[..read?];
                if asked.is_empty() {
                    return Ok(());
                }
                marked |= asked.windows(MARK.len()).any(|window| window == MARK);
                server.write_all(asked).await?;
            }
            read = server.read(&mut answer) => {
                let answered = &answer[..read?];
                let one_less = |left: usize| left.checked_sub(1);
                if answered.is_empty() || marked && lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
                    return Ok(());
                }
                client.write_all(answered).await?;
            }
        }
    }
}

async fn hand_back_all(queue: &RedisQueue, permits: Vec<Permit>) {
    let ids: Vec<_> = permits.iter().map(|permit| permit.id).collect();
    queue.hand_back(&ids).await.unwrap();
}

/// What becomes of a publication of three permits, and how many of them come out, when so many answers to it are lost.
async fn publish_losing(answers: usize) -> (Published, usize) {
    let server = Server::start().await;
    let lost = Arc::new(AtomicUsize::new(answers));
    let url = proxy(&server, lost.clone()).await;
    let queue = support::open(RedisConfig::new(Topology::Single(url))).await;
    // The server knows the script from then on; or the answer lost were that it does not.
    hand_back_all(&queue, permits(&queue, 1).await).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    let mut publication = publication(&queue, lease, 3, NextRun::Stop);
    publication.deliveries[0].body = ClaimedBody::Inline(EventBody::stored(Bytes::from_static(MARK), 0));
    let published = queue.publish(vec![publication]).await.unwrap().remove(0);
    assert_eq!(lost.load(Ordering::Relaxed), 0, "every answer that was to be lost was lost");
    (published, queue.depths().await.unwrap().entries)
}

#[tokio::test]
async fn a_publication_whose_answer_was_lost_is_repeated_and_done_once() {
    let (published, permits) = publish_losing(1).await;
    assert!(matches!(published, Published::Done), "{published:?}");
    assert_eq!(permits, 3);
}

#[tokio::test]
async fn a_publication_that_is_never_answered_stays_unknown() {
    let (published, permits) = publish_losing(3).await;
    assert!(matches!(published, Published::Unknown), "{published:?}");
    assert_eq!(permits, 3, "which is why its claims must not be given back");
}

#[tokio::test]
async fn a_publication_that_was_never_sent_is_stale() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    drop(server);
    // The first call after the end finds the connection broken: what it asked may have run.
    assert!(wake(&queue, destination(2)).await.is_err());
    let published = queue.publish(vec![publication(&queue, lease, 3, NextRun::Stop)]).await.unwrap().remove(0);
    assert!(matches!(published, Published::Stale(back) if back.len() == 3));
}
