//! Answers that never arrive: a proxy swallows them and cuts the connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use weir_core::{Clock as _, Destination, Timestamp, plan::NextRun};
use weir_queue::{Published, Schedule as _, conformance::settings};
use weir_queue_redis::{RedisConfig, RedisQueue, Topology};

use crate::support::{self, Server, claim, destination, eventually, hand_back, permits, publication, wake};

/// Only publications of deliveries whose claims expire at this instant are tampered with.
const MARK: &[u8] = b"4102444800123456";
const MARKED: Timestamp = Timestamp::from_nanos(4_102_444_800_123_456_000);

/// Passes everything on, but cuts a connection instead of passing on the answer to a marked publication, `lost` times.
async fn proxy(server: &Server, lost: Arc<AtomicUsize>) -> String {
    proxy_with_door(server, lost, Arc::default()).await
}

/// Makes no connection while the door is locked.
async fn proxy_with_door(server: &Server, lost: Arc<AtomicUsize>, door: Arc<Mutex<()>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = server.port();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            drop(door.lock().await);
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

/// Publishes three permits through the proxy, which loses this many answers. Answers the queue and the result of the publication.
async fn publish_losing(answers: usize) -> (Server, RedisQueue, Published) {
    let server = Server::start().await;
    let lost = Arc::new(AtomicUsize::new(answers));
    let url = proxy(&server, lost.clone()).await;
    let queue = support::open(RedisConfig::new(Topology::Single(url))).await;
    // The server knows the script from then on; or the answer lost were that it does not.
    let other = support::open(server.config()).await;
    hand_back(&other, &permits(&other, 1).await).await;
    drop(other);
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    let mut publication = publication(&queue, lease, 3, NextRun::Stop);
    publication.deliveries[0].expires_at = MARKED;
    let published = queue.publish(vec![publication]).await.unwrap().remove(0);
    assert_eq!(lost.load(Ordering::Relaxed), 0, "every answer that was to be lost was lost");
    (server, queue, published)
}

#[tokio::test]
async fn a_publication_whose_answer_was_lost_is_repeated_and_done_once() {
    let (_server, queue, published) = publish_losing(1).await;
    assert!(matches!(published, Published::Done), "{published:?}");
    assert_eq!(queue.depths().await.unwrap().entries, 3);
}

#[tokio::test]
async fn a_publication_that_is_never_answered_stays_unknown() {
    let (_server, queue, published) = publish_losing(3).await;
    assert!(matches!(published, Published::Unknown), "{published:?}");
    assert_eq!(queue.depths().await.unwrap().entries, 3, "which is why its claims must not be given back");
}

#[tokio::test]
async fn a_repeat_that_is_refused_leaves_the_publication_unknown() {
    let server = Server::start().await;
    let (lost, door) = (Arc::new(AtomicUsize::new(1)), Arc::new(Mutex::default()));
    let url = proxy_with_door(&server, lost.clone(), door.clone()).await;
    let queue = support::open(RedisConfig::new(Topology::Single(url))).await;
    // The server knows the script from then on; or the answer lost were that it does not.
    let other = support::open(server.config()).await;
    hand_back(&other, &permits(&other, 1).await).await;
    wake(&queue, destination(1)).await.unwrap();
    let mut first = publication(&queue, claim(&queue).await, 3, NextRun::Stop);
    first.deliveries[0].expires_at = MARKED;
    let locked = door.lock().await;
    let another_run = async {
        eventually("the answer is lost", async || lost.load(Ordering::Relaxed) == 0).await;
        wake(&other, destination(1)).await.unwrap();
        let second = publication(&other, claim(&other).await, 0, NextRun::Stop);
        other.publish(vec![second]).await.unwrap();
        // Only now can the first be repeated: its lease is gone, and its name is no longer the last.
        drop(locked);
    };
    let (published, ()) = tokio::join!(queue.publish(vec![first]), another_run);
    let published = published.unwrap().remove(0);
    assert!(matches!(published, Published::Unknown), "{published:?}");
    assert_eq!(other.depths().await.unwrap().entries, 3, "which is why its claims must not be given back");
}

#[tokio::test]
async fn an_admission_whose_answers_were_lost_is_repeated_and_done_once() {
    let server = Server::start().await;
    let lost = Arc::new(AtomicUsize::new(0));
    let queue = support::open(RedisConfig::new(Topology::Single(proxy(&server, lost.clone()).await))).await;
    let run_dry = async || {
        wake(&queue, destination(1)).await.unwrap();
        let publication = publication(&queue, claim(&queue).await, 0, NextRun::Stop);
        queue.publish(vec![publication]).await.unwrap();
    };
    let admit = |expires_at| {
        let to = Arc::new(Destination { id: destination(1), ..settings(&support::per_second(10), 64) });
        assert!(queue.reserve(&to));
        let mut delivery = support::delivery(&queue, to.id, 1, Duration::from_secs(30));
        (delivery.expires_at, delivery.destination) = (expires_at, Some(to));
        queue.admit(vec![delivery]);
    };
    let entries = async || queue.depths().await.map_or(0, |depths| depths.entries);
    run_dry().await;
    // The server knows the script from then on; or the answer lost were that it does not.
    admit(queue.clock().now() + Duration::from_secs(30));
    eventually("it is admitted", async || entries().await == 1).await;
    hand_back(&queue, &support::take(&queue, 1).await).await;
    run_dry().await;
    lost.store(2, Ordering::Relaxed);
    admit(MARKED);
    eventually("it is admitted, and answers were lost", async || {
        lost.load(Ordering::Relaxed) == 0 && entries().await == 1
    })
    .await;
    assert!(tokio::time::timeout(Duration::from_millis(500), queue.declined()).await.is_err(), "it does not come back");
    assert_eq!(entries().await, 1, "it was admitted once");
}

#[tokio::test]
async fn a_publication_that_was_never_sent_is_stale() {
    let mut server = Server::start().await;
    let queue = support::open(server.config()).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    server.kill();
    // The first call after the end finds the connection broken: what it asked may have run.
    assert!(wake(&queue, destination(2)).await.is_err());
    let published = queue.publish(vec![publication(&queue, lease, 3, NextRun::Stop)]).await.unwrap().remove(0);
    assert!(matches!(published, Published::Stale(back) if back.len() == 3));
}
