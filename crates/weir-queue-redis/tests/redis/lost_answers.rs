//! Answers that never arrive: a proxy drops them and closes the connection, or keeps them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use weir_core::{Clock as _, Destination, Timestamp, plan::NextRun};
use weir_queue::{Published, QueueError, Schedule as _, SlotAnswer, conformance::settings};
use weir_queue_redis::{RedisConfig, RedisQueue, Topology};

use crate::support::{self, Server, claim, destination, eventually, hand_back, permits, publication, wake};

/// The proxy drops answers only for calls with a claim that expires at this instant.
const MARK: &[u8] = b"4102444800123456";
const MARKED: Timestamp = Timestamp::from_nanos(4_102_444_800_123_456_000);

/// Forwards all data, but `lost` times closes the connection instead of forwarding the answer to a marked call.
async fn proxy(server: &Server, lost: Arc<AtomicUsize>) -> String {
    proxy_with_lock(server, lost, Arc::default()).await
}

/// Accepts no connection while `accepting` is locked.
async fn proxy_with_lock(server: &Server, lost: Arc<AtomicUsize>, accepting: Arc<Mutex<()>>) -> String {
    listen(server, accepting, move |client, server| drop(tokio::spawn(forward(client, server, lost.clone())))).await
}

/// Connects each client to the server with `join`. Accepts no connection while `accepting` is locked.
async fn listen(
    server: &Server,
    accepting: Arc<Mutex<()>>,
    join: impl Fn(TcpStream, TcpStream) + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = server.port();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            drop(accepting.lock().await);
            join(client, TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
    });
    format!("redis://{address}")
}

async fn forward(mut client: TcpStream, mut server: TcpStream, lost: Arc<AtomicUsize>) -> std::io::Result<()> {
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

/// Forwards all data, but no more on a connection from a marked call on. `kept` becomes true then.
async fn keeping_proxy(server: &Server, kept: Arc<AtomicBool>) -> String {
    listen(server, Arc::default(), move |client, server| {
        let ((mut asked, mut answers), (mut answered, mut questions)) = (client.into_split(), server.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut answered, &mut answers).await });
        let kept = kept.clone();
        tokio::spawn(async move {
            let mut question = vec![0; 1 << 16];
            while let Ok(read @ 1..) = asked.read(&mut question).await {
                if question[..read].windows(MARK.len()).any(|window| window == MARK) {
                    kept.store(true, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                }
                questions.write_all(&question[..read]).await.unwrap();
            }
        });
    })
    .await
}

/// Publishes three permits through the proxy, which drops this many answers. Returns the queue and the result of the
/// publication.
async fn publish_losing(answers: usize) -> (Server, RedisQueue, Published) {
    let server = Server::start().await;
    let lost = Arc::new(AtomicUsize::new(answers));
    let url = proxy(&server, lost.clone()).await;
    let queue = support::open(RedisConfig::new(Topology::Single(url))).await;
    // From now on the server knows the script. Otherwise the dropped answer would be NOSCRIPT.
    let other = support::open(server.config()).await;
    hand_back(&other, &permits(&other, 1).await).await;
    drop(other);
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    let mut publication = publication(&queue, lease, 3, NextRun::Stop);
    publication.deliveries[0].expires_at = MARKED;
    let published = queue.publish(vec![publication]).await.unwrap().remove(0);
    assert_eq!(lost.load(Ordering::Relaxed), 0, "the proxy dropped all the answers");
    (server, queue, published)
}

#[tokio::test]
async fn a_publication_whose_answer_was_lost_is_repeated_and_done_once() {
    let (_server, queue, published) = publish_losing(1).await;
    assert!(matches!(published, Published::Done), "{published:?}");
    assert_eq!(queue.depths().await.unwrap().entries, 3);
}

#[tokio::test]
async fn a_slot_is_granted_while_a_publication_has_no_answer() {
    let server = Server::start().await;
    let kept = Arc::new(AtomicBool::new(false));
    let url = keeping_proxy(&server, kept.clone()).await;
    let queue = support::open(RedisConfig::new(Topology::Single(url))).await;
    let permit = permits(&queue, 1).await.remove(0);
    wake(&queue, destination(2)).await.unwrap();
    let mut publication = publication(&queue, claim(&queue).await, 1, NextRun::Stop);
    publication.deliveries[0].expires_at = MARKED;
    let slot = async {
        eventually("the publication is kept", async || kept.load(Ordering::Relaxed)).await;
        support::ask_for_slot(&queue, permit.id).await
    };
    tokio::select! {
        slot = slot => assert!(matches!(slot, SlotAnswer::Granted(..)), "{slot:?}"),
        published = queue.publish(vec![publication]) => panic!("the slot waits for this: {published:?}"),
    }
}

#[tokio::test]
async fn a_publication_that_is_never_answered_stays_unknown() {
    let (_server, queue, published) = publish_losing(3).await;
    assert!(matches!(published, Published::Unknown), "{published:?}");
    assert_eq!(
        queue.depths().await.unwrap().entries,
        3,
        "the permits are published, so their claims must not be released"
    );
}

#[tokio::test]
async fn a_repeat_that_is_refused_leaves_the_publication_unknown() {
    let server = Server::start().await;
    let (lost, accepting) = (Arc::new(AtomicUsize::new(1)), Arc::new(Mutex::default()));
    let url = proxy_with_lock(&server, lost.clone(), accepting.clone()).await;
    let queue = support::open(RedisConfig::new(Topology::Single(url))).await;
    // From now on the server knows the script. Otherwise the dropped answer would be NOSCRIPT.
    let other = support::open(server.config()).await;
    hand_back(&other, &permits(&other, 1).await).await;
    wake(&queue, destination(1)).await.unwrap();
    let mut first = publication(&queue, claim(&queue).await, 3, NextRun::Stop);
    first.deliveries[0].expires_at = MARKED;
    let locked = accepting.lock().await;
    let another_run = async {
        eventually("the answer is lost", async || lost.load(Ordering::Relaxed) == 0).await;
        wake(&other, destination(1)).await.unwrap();
        let second = publication(&other, claim(&other).await, 0, NextRun::Stop);
        other.publish(vec![second]).await.unwrap();
        // Only now the first publication can be repeated: its lease has ended, and its name is not the last one of the
        // job.
        drop(locked);
    };
    let (published, ()) = tokio::join!(queue.publish(vec![first]), another_run);
    let published = published.unwrap().remove(0);
    assert!(matches!(published, Published::Unknown), "{published:?}");
    assert_eq!(
        other.depths().await.unwrap().entries,
        3,
        "the permits are published, so their claims must not be released"
    );
}

#[tokio::test]
async fn an_admission_whose_answers_were_lost_is_repeated_and_done_once() {
    let server = Server::start().await;
    let lost = Arc::new(AtomicUsize::new(0));
    let queue = support::open(RedisConfig::new(Topology::Single(proxy(&server, lost.clone()).await))).await;
    let run_without_backlog = async || {
        wake(&queue, destination(1)).await.unwrap();
        let publication = publication(&queue, claim(&queue).await, 0, NextRun::Stop);
        queue.publish(vec![publication]).await.unwrap();
    };
    let admit = |expires_at| {
        let to = Arc::new(Destination { id: destination(1), ..settings(&support::per_second(10), 64) });
        assert!(queue.reserve(&to, to.id));
        let mut delivery = support::delivery(&queue, to.id, 1, Duration::from_secs(30));
        (delivery.expires_at, delivery.destination) = (expires_at, Some(to));
        queue.admit(vec![delivery]);
    };
    let entries = async || queue.depths().await.map_or(0, |depths| depths.entries);
    run_without_backlog().await;
    // From now on the server knows the script. Otherwise the dropped answer would be NOSCRIPT.
    admit(queue.clock().now() + Duration::from_secs(30));
    eventually("the delivery is admitted", async || entries().await == 1).await;
    hand_back(&queue, &support::take(&queue, 1).await).await;
    run_without_backlog().await;
    lost.store(2, Ordering::Relaxed);
    admit(MARKED);
    eventually("the delivery is admitted, and answers are lost", async || {
        lost.load(Ordering::Relaxed) == 0 && entries().await == 1
    })
    .await;
    assert!(
        tokio::time::timeout(Duration::from_millis(500), queue.declined()).await.is_err(),
        "the delivery is not declined"
    );
    assert_eq!(entries().await, 1, "the delivery was admitted once");
}

#[tokio::test]
async fn a_publication_that_was_never_sent_is_stale() {
    let mut server = Server::start().await;
    let queue = support::open(server.config()).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    server.kill();
    // The first call after the kill finds the connection broken, so its script may have run.
    let unknown = wake(&queue, destination(2)).await;
    assert!(matches!(unknown, Err(QueueError::Unknown(_))), "{unknown:?}");
    let not_sent = wake(&queue, destination(2)).await;
    assert!(matches!(not_sent, Err(QueueError::NotSent(_))), "{not_sent:?}");
    let published = queue.publish(vec![publication(&queue, lease, 3, NextRun::Stop)]).await.unwrap().remove(0);
    assert!(matches!(published, Published::Stale(back) if back.len() == 3));
}

/// A demoted primary keeps its connections and refuses every write.
#[tokio::test]
async fn a_call_that_a_replica_refuses_has_not_run() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = wake(&queue, destination(1)).await;
    assert!(matches!(refused, Err(QueueError::Refused(_))), "{refused:?}");
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(queue.depths().await.unwrap().jobs, 0);
}
