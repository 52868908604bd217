//! Look-ups of names: the servers that are asked, the number of queries, and the effect of a changed record.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    task::JoinSet,
    time::{advance, pause, resume, timeout},
};
use weir_core::outcome::Failure;
use weir_worker::outbound::{Checkout, Outbound};

use crate::support::*;

const A: u16 = 1;

/// How the name server answers for a name.
#[derive(Clone, Copy)]
enum Record {
    /// An address and its TTL in seconds.
    Address(Ipv4Addr, u32),
    /// An address. Questions for IPv6 addresses get no answer.
    NoIpv6Answer(Ipv4Addr),
    /// Two addresses.
    Two(Ipv4Addr, Ipv4Addr),
    /// Only a response code.
    Code(u8),
    /// No answer.
    Silent,
}

/// A name server on loopback, and how often each name was asked for its IPv4 addresses.
#[derive(Clone, Default)]
struct NameServer {
    zone: Arc<Mutex<HashMap<String, Record>>>,
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl NameServer {
    /// Starts a server, and an outbound client that asks it. Names that are not in the zone get no answer.
    async fn start(zone: impl IntoIterator<Item = (&str, Record)>) -> (Self, Outbound) {
        let server = Self::default();
        zone.into_iter().for_each(|(name, record)| server.set(name, record));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let outbound = outbound().with_name_servers(&[socket.local_addr().unwrap()]);
        let serving = server.clone();
        tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut query).await.unwrap();
                if let Some(answer) = serving.answer(&query[..length]) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        (server, outbound)
    }

    fn set(&self, name: &str, record: Record) {
        self.zone.lock().unwrap().insert(name.to_owned(), record);
    }

    fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    /// Source of the format: RFC 1035, section 4.
    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let (name, record_type, question) = question(query);
        if record_type == A {
            *self.asked.lock().unwrap().entry(name.clone()).or_default() += 1;
        }
        let record = self.zone.lock().unwrap().get(&name).copied().unwrap_or(Record::Silent);
        let (code, mut answers, ttl) = match record {
            Record::Address(address, ttl) => (0, vec![address], ttl),
            Record::NoIpv6Answer(address) if record_type == A => (0, vec![address], 60),
            Record::Two(first, second) => (0, vec![first, second], 60),
            Record::Code(code) => (code, Vec::new(), 0),
            Record::NoIpv6Answer(_) | Record::Silent => return None,
        };
        if record_type != A {
            answers.clear();
        }
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80 | code, 0, 1, 0, answers.len() as u8, 0, 0, 0, 0]);
        answer.extend(question);
        for address in answers {
            // A pointer to the name in the question.
            answer.extend([0xc0, 12, 0, 1, 0, 1]);
            answer.extend(ttl.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(address.octets());
        }
        Some(answer)
    }
}

/// The name, the type, and the bytes of a query's only question.
fn question(query: &[u8]) -> (String, u16, &[u8]) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        at = end;
    }
    let record_type = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    (labels.join("."), record_type, &query[12..at + 5])
}

async fn receiver_at(address: Ipv4Addr, port: u16) -> TcpListener {
    TcpListener::bind(SocketAddr::from((address, port))).await.unwrap()
}

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[tokio::test]
async fn many_dials_cause_one_look_up_of_a_name() {
    let (server, outbound) = NameServer::start([("receiver.example", Record::Address(HERE, 60))]).await;
    let listener = receiver_at(HERE, 0).await;
    let target = target(&format!("http://receiver.example:{}/", listener.local_addr().unwrap().port()));
    let connections = join_all((0..50).map(|_| connect(&outbound, &target))).await;
    assert!(connections.iter().all(Result::is_ok));
    assert_eq!(server.asked("receiver.example"), 1);
}

#[tokio::test]
async fn names_in_a_zone_that_does_not_answer_delay_no_other_name() {
    let (server, outbound) = NameServer::start([("receiver.example", Record::Address(HERE, 60))]).await;
    let outbound = Arc::new(outbound);
    let mut hanging = JoinSet::new();
    // As many queries as the buffer of the server's socket holds while the server does not read.
    for number in 0..64 {
        let (outbound, name) = (outbound.clone(), format!("http://{number}.silent.example/"));
        hanging.spawn(async move { connect(&outbound, &target(&name)).await.is_ok() });
    }
    let all_asked = async {
        while (0..64).any(|number| server.asked(&format!("{number}.silent.example")) == 0) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, all_asked).await.unwrap();
    let listener = receiver_at(HERE, 0).await;
    let target = target(&format!("http://receiver.example:{}/", listener.local_addr().unwrap().port()));
    // The other look-ups time out after five seconds.
    let connected = timeout(Duration::from_secs(4), connect(&outbound, &target)).await;
    assert!(connected.expect("the dial must not wait for the others").is_ok());
    hanging.abort_all();
}

/// The servers of many names drop questions for IPv6 addresses. A resolver waits seconds for such an answer.
#[tokio::test]
async fn a_name_whose_servers_answer_no_question_for_ipv6_is_resolved_at_once() {
    let (server, outbound) = NameServer::start([("receiver.example", Record::NoIpv6Answer(HERE))]).await;
    let listener = receiver_at(HERE, 0).await;
    let target = target(&format!("http://receiver.example:{}/", listener.local_addr().unwrap().port()));
    let connected = timeout(Duration::from_millis(1_500), connect(&outbound, &target)).await;
    assert!(connected.expect("the answer for IPv4 is there").is_ok());
    assert_eq!(server.asked("receiver.example"), 2, "once with IPv6, and once without");
}

/// A listener whose queue of connections is full, and the connections in it: a further one hangs.
async fn hanging_at(address: Ipv4Addr, port: u16) -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    let address = SocketAddr::from((address, port));
    socket.bind(address).unwrap();
    let listener = socket.listen(0).unwrap();
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        queued.push(connected.unwrap());
        assert!(queued.len() < 16, "the queue does not fill");
    }
    (listener, queued)
}

#[tokio::test]
async fn a_name_with_an_address_that_hangs_is_reached_at_its_other_address_soon() {
    let (_server, outbound) = NameServer::start([("receiver.example", Record::Two(THERE, HERE))]).await;
    let listener = receiver_at(HERE, 0).await;
    let port = listener.local_addr().unwrap().port();
    let _hanging = hanging_at(THERE, port).await;
    let target = target(&format!("http://receiver.example:{port}/"));
    let connected = timeout(Duration::from_millis(1_500), connect(&outbound, &target)).await;
    assert!(connected.expect("the second address is tried soon").is_ok());
}

#[tokio::test]
async fn a_missing_name_is_distinguished_from_a_failing_name_server() {
    let zone = [("nobody.example", Record::Code(3)), ("broken.example", Record::Code(2))];
    let (_server, outbound) = NameServer::start(zone).await;
    for (name, error) in [
        ("nobody.example", "no address found for nobody.example"),
        ("broken.example", "the name servers failed for broken.example"),
    ] {
        let refused = unreachable(connect(&outbound, &target(&format!("http://{name}/"))).await);
        assert_eq!((refused.failure, &*refused.error), (Failure::Dns, error));
    }
}

/// Advances the time while nothing waits for the network.
async fn pass(seconds: u64) {
    pause();
    advance(Duration::from_secs(seconds)).await;
    resume();
}

#[tokio::test]
async fn a_changed_record_takes_effect_when_the_connection_is_old() {
    let (server, outbound) = NameServer::start([("receiver.example", Record::Address(HERE, 60))]).await;
    let here = receiver_at(HERE, 0).await;
    let port = here.local_addr().unwrap().port();
    let there = receiver_at(THERE, port).await;
    let target = target(&format!("http://receiver.example:{port}/"));

    let Checkout { connection, .. } = connect(&outbound, &target).await.unwrap();
    let mut wire = Wire::accept(&here).await;
    let (result, ()) = tokio::join!(send(&outbound, &target, connection), wire.answer(OK));
    assert_eq!(status(&sent(result)), 200);
    server.set("receiver.example", Record::Address(THERE, 60));

    let mut seconds = 0;
    loop {
        pass(30).await;
        seconds += 30;
        let Checkout { connection, warm } = connect(&outbound, &target).await.unwrap();
        if !warm {
            break;
        }
        let (result, ()) = tokio::join!(send(&outbound, &target, connection), wire.answer(OK));
        assert_eq!(status(&sent(result)), 200);
    }
    assert!(seconds <= 300, "{seconds} s");
    timeout(PATIENCE, there.accept()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_name_that_changes_to_a_private_address_is_refused_at_the_next_dial() {
    let (server, outbound) = NameServer::start([("receiver.example", Record::Address(HERE, 1))]).await;
    let listener = receiver_at(HERE, 0).await;
    let target = target(&format!("http://receiver.example:{}/", listener.local_addr().unwrap().port()));
    drop(connect(&outbound, &target).await.unwrap());
    server.set("receiver.example", Record::Address(Ipv4Addr::new(10, 0, 0, 1), 1));
    pass(2).await;
    assert_eq!(unreachable(connect(&outbound, &target).await).failure, Failure::Forbidden);
}
