//! Connection poolers: those that give sessions of the server to transactions, as PgBouncer with `pool_mode = transaction`,
//! and those that do not pass the settings of a session on.

use std::{str::FromStr as _, sync::Arc};

use parking_lot::Mutex;

use sqlx::postgres::PgConnectOptions;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use weir_sealing::Keyring;
use weir_store_postgres::{Connections, OpenError, PostgresStore};

use crate::{database::Database, fixtures::NOW};

const SSL_REQUEST: u32 = 80_877_103;

/// What a pooler does with the settings of a session.
#[derive(Clone, Copy)]
enum Pooler {
    /// `ignore_startup_parameters = options`
    Drops,
    /// The default of PgBouncer.
    Refuses,
    /// As a plain proxy does.
    PassesOn,
    /// Each transaction gets the session of the server that was used last.
    PoolsTransactions,
}

/// Starts a pooler before the database, and returns the URL of the database behind it.
async fn before(database: &Database, pooler: Pooler) -> String {
    let server = PgConnectOptions::from_str(&database.url()).unwrap();
    let server = (server.get_host().to_owned(), server.get_port());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let idle = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            tokio::spawn(pool(client, server.clone(), pooler, idle.clone()));
        }
    });
    let (user_and_host, name) = database.url().rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let (user, _) = user_and_host.rsplit_once('@').unwrap();
    format!("{user}@{address}/{name}")
}

async fn pool(mut client: TcpStream, server: (String, u16), pooler: Pooler, idle: Arc<Mutex<Vec<TcpStream>>>) {
    let mut startup = message(&mut client).await;
    while startup[..4] == SSL_REQUEST.to_be_bytes() {
        client.write_all(b"N").await.unwrap();
        startup = message(&mut client).await;
    }
    let mut words: Vec<&[u8]> = startup[4..].split(|byte| *byte == 0).collect();
    let options = words.iter().position(|word| word == b"options");
    match (pooler, options) {
        (Pooler::Refuses, Some(_)) => {
            let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
            let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
            client.write_all(&[&b"E"[..], &length, fields].concat()).await.unwrap();
            return;
        }
        (Pooler::Drops, Some(place)) => drop(words.drain(place..place + 2)),
        _ => {}
    }
    let body = [&startup[..4], &words.join(&0)].concat();
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    let startup = [&length[..], &body].concat();
    if matches!(pooler, Pooler::PoolsTransactions) {
        return pool_transactions(client, server, startup, &idle).await;
    }
    let mut server = TcpStream::connect(server).await.unwrap();
    server.write_all(&startup).await.unwrap();
    // The connection ends when one side closes it.
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

/// Gives each transaction of the client a session of the server, until the client ends.
async fn pool_transactions(
    mut client: TcpStream,
    server: (String, u16),
    startup: Vec<u8>,
    idle: &Mutex<Vec<TcpStream>>,
) {
    let mut session = None;
    let (mut questions, mut is_start) = (startup, true);
    loop {
        // The start of a client makes a session, and each of its transactions takes the one that was used last.
        let reused = || if is_start { None } else { idle.lock().pop() };
        let mut current = match session.take().or_else(reused) {
            Some(current) => current,
            None => TcpStream::connect(server.clone()).await.unwrap(),
        };
        is_start = false;
        current.write_all(&questions).await.unwrap();
        // `Z` ends an answer, and says whether a transaction is open.
        loop {
            let (kind, content) = typed_message(&mut current).await.unwrap();
            let length = u32::try_from(content.len() + 4).unwrap().to_be_bytes();
            client.write_all(&[&[kind][..], &length, &content].concat()).await.unwrap();
            if kind == b'Z' {
                match content[0] {
                    b'I' => idle.lock().push(current),
                    _ => session = Some(current),
                }
                break;
            }
        }
        // A simple query, or everything up to the synchronisation.
        questions = Vec::new();
        loop {
            let Some((kind, content)) = typed_message(&mut client).await else { return };
            let length = u32::try_from(content.len() + 4).unwrap().to_be_bytes();
            questions.extend([&[kind][..], &length, &content].concat());
            match kind {
                b'X' => return,
                b'Q' | b'S' => break,
                _ => {}
            }
        }
    }
}

/// `None`: the connection has ended.
async fn typed_message(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await.ok()?;
    Some((kind, message(stream).await))
}

/// A message of the start, which has no type: its content behind its length.
async fn message(client: &mut TcpStream) -> Vec<u8> {
    let length = client.read_u32().await.unwrap() as usize;
    let mut content = vec![0; length - 4];
    client.read_exact(&mut content).await.unwrap();
    content
}

#[tokio::test]
async fn a_pooler_that_drops_or_refuses_the_settings_of_a_session_is_refused() {
    let database = Database::create().await;
    for (pooler, reason) in
        [(Pooler::Drops, "plan_cache_mode is auto"), (Pooler::Refuses, "unsupported startup parameter")]
    {
        let error = PostgresStore::open(&before(&database, pooler).await, NOW).await.unwrap_err();
        assert!(matches!(error, OpenError::Pooler { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(reason) && text.contains("; connect to PostgreSQL itself"), "{text}");
    }
}

#[tokio::test]
async fn a_pooler_of_transactions_is_refused_although_the_role_has_the_settings() {
    let database = Database::create().await;
    let error = PostgresStore::open(&before(&database, Pooler::PoolsTransactions).await, NOW).await.unwrap_err();
    assert!(matches!(error, OpenError::Pooler { .. }), "{error}");
    assert!(error.to_string().contains("pools transactions, not sessions"), "{error}");
}

#[tokio::test]
async fn a_proxy_that_passes_the_settings_on_is_used() {
    let database = Database::create().await;
    let connections = Connections { pool: 3, ..Connections::default() };
    let url = before(&database, Pooler::PassesOn).await;
    let store = PostgresStore::open_with(&url, connections, NOW, Keyring::default()).await.unwrap();
    assert_eq!(store.pool_use().most, 3);
    store.close().await;
}
