//! An address that moves to another server while the former one lives on.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering::SeqCst},
};

use sqlx::{Connection as _, PgConnection, query_scalar};
use tokio::net::{TcpListener, TcpStream};
use weir_store::{Destinations as _, Ingest as _, Processes as _};
use weir_store_postgres::PostgresStore;
use weir_test_support::Postgres;

use crate::fixtures::{NOW, creation, destination, event};

/// Whether connections that were open before a moment are dropped without a word.
type Drops = Arc<std::sync::atomic::AtomicBool>;

/// A port in front of a server, which stops forwarding what comes on its older connections once `drops` is set.
async fn forgetful(server: u16, drops: Drops) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (drops, is_new) = (drops.clone(), drops.load(SeqCst));
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", server)).await?;
                let ((mut from, mut to), (mut back, mut answers)) = (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut back, &mut to).await });
                let mut bytes = vec![0; 65_536];
                loop {
                    let read = tokio::io::AsyncReadExt::read(&mut from, &mut bytes).await?;
                    if read == 0 {
                        return Ok::<_, std::io::Error>(());
                    }
                    if is_new || !drops.load(SeqCst) {
                        tokio::io::AsyncWriteExt::write_all(&mut answers, &bytes[..read]).await?;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn idle_connections_that_were_dropped_without_a_word_cost_a_second() {
    let (postgres, drops) = (Postgres::start().await.unwrap(), Drops::default());
    let port = forgetful(postgres.port(), drops.clone()).await;
    let url = postgres.url().replace(&format!(":{}", postgres.port()), &format!(":{port}"));
    let store = PostgresStore::open(&url, NOW).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    store.ingest_part(&[event(1)].into(), 0).await.unwrap();
    drops.store(true, SeqCst);
    // Idle for longer than connections are trusted.
    tokio::time::sleep(std::time::Duration::from_millis(5_200)).await;
    let asked = tokio::time::Instant::now();
    store.ingest_part(&[event(2)].into(), 0).await.unwrap();
    store.create_destination(destination(2), creation()).await.unwrap();
    assert!(asked.elapsed().as_secs() < 15, "{:?}", asked.elapsed());
}

/// A port that forwards each new connection to the server of that moment.
async fn address(server: Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let server = server.load(SeqCst);
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    port
}

#[tokio::test]
async fn nothing_is_written_to_a_server_that_the_address_has_left() {
    let (former, next) = (Postgres::start().await.unwrap(), Postgres::start().await.unwrap());
    let server = Arc::new(AtomicU16::new(former.port()));
    let port = address(server.clone()).await;
    let url = former.url().replace(&format!(":{}", former.port()), &format!(":{port}"));
    // Both have the same rows, as after a promotion.
    let store = PostgresStore::open(&url, NOW).await.unwrap();
    let other = PostgresStore::open(&next.url(), NOW).await.unwrap();
    for store in [&store, &other] {
        store.create_destination(destination(1), creation()).await.unwrap();
        store.register_process().await.unwrap();
    }
    assert!(!store.watch_server().await.unwrap());
    store.ingest_part(&[event(1)].into(), 0).await.unwrap();
    assert!(store.beat(None).await.unwrap());

    server.store(next.port(), SeqCst);
    assert!(store.watch_server().await.unwrap());
    assert!(!store.watch_server().await.unwrap(), "once");
    store.ingest_part(&[event(2)].into(), 0).await.unwrap();
    store.create_destination(destination(2), creation()).await.unwrap();
    assert!(store.beat(None).await.unwrap());
    for (postgres, expected) in [(&former, [1, 1]), (&next, [1, 2])] {
        let mut connection = PgConnection::connect(&postgres.url()).await.unwrap();
        let mut found = [0; 2];
        for (found, table) in found.iter_mut().zip(["events", "destinations"]) {
            let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
            *found = query_scalar::<_, i64>(count).fetch_one(&mut connection).await.unwrap();
        }
        assert_eq!(found, expected);
    }
}
