//! Distant receivers: a TLS handshake of half a second, answers after a second, connections that are closed after each
//! answer.

use std::{path::Path, sync::Arc, time::Duration};

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::support::{self, Answer, App, Arrival, Machine, Receiver, assert_cap, eventually};

const SECOND: Duration = Duration::from_secs(1);
const HANDSHAKE: Duration = Duration::from_millis(500);
/// Long enough for everything to arrive on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A certificate for `name`, and the file an app must trust to accept it.
fn certificate(folder: &Path, name: &str) -> (TlsAcceptor, String) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let file = folder.join(format!("{name}.pem"));
    std::fs::write(&file, certified.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let chain = vec![CertificateDer::from(certified.cert.der().to_vec())];
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    (TlsAcceptor::from(Arc::new(config)), file.display().to_string())
}

/// Sends per second ÷ the limit, from two seconds after the first arrival to the last.
fn utilisation_after_two_seconds(arrivals: &[Arrival], rate: f64) -> f64 {
    let from = arrivals[0].at + SECOND * 2;
    let late: Vec<_> = arrivals.iter().filter(|arrival| arrival.at >= from).cloned().collect();
    support::utilisation(&late, rate, SECOND)
}

/// A backlog of several seconds drains: each event is sent once, no window exceeds the limit, and the limit is used.
async fn limit_is_held_and_used(rate: usize, seconds: usize, answer: Answer) {
    let folder = tempfile::tempdir().unwrap();
    let (acceptor, trusted) = certificate(folder.path(), "localhost");
    let (receiver, machine) = (Receiver::start_tls(acceptor, HANDSHAKE).await, Machine::watched());
    receiver.script("/far", [answer]);
    let app = App::start_with(folder.path(), &[("SSL_CERT_FILE", &trusted)]).await;
    let settings = json!({
        "url": receiver.url("/far"),
        "rate_limits": [{"limit": rate, "period": "second"}],
        "max_in_flight": 256,
    });
    let id = app.destination(settings).await;
    let count = rate * seconds;
    app.events("far", count).await;
    let arrivals = receiver.wait_for("/far", count, TIMEOUT).await;
    app.drained(&id, TIMEOUT).await;
    app.assert_audit_clean(&id).await;
    assert_eq!(receiver.count("/far"), count, "every event is delivered, once");
    assert_cap(&arrivals, rate, SECOND);
    let used = utilisation_after_two_seconds(&arrivals, rate as f64);
    machine.judge_use(&format!("{rate} per second ({})", app.audit(&id).await), used, 0.95);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_a_second_over_slow_handshakes_and_slow_answers_is_used() {
    limit_is_held_and_used(10, 8, Answer::status(200).after(SECOND)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_a_second_over_slow_handshakes_and_slow_answers_is_used() {
    limit_is_held_and_used(200, 8, Answer::status(200).after(SECOND)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_closes_after_each_answer_is_used() {
    limit_is_held_and_used(20, 6, Answer::status(200).header("connection", "close")).await;
}

/// The connections are requested under the old limit and established under the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_limit_binds_for_connections_that_were_being_made() {
    let folder = tempfile::tempdir().unwrap();
    let (acceptor, trusted) = certificate(folder.path(), "localhost");
    let receiver = Receiver::start_tls(acceptor, Duration::from_millis(1_600)).await;
    receiver.script("/stalled", [Answer::status(200)]);
    let app = App::start_with(folder.path(), &[("SSL_CERT_FILE", &trusted)]).await;
    let ten = json!({"url": receiver.url("/stalled"), "rate_limits": [{"limit": 10, "period": "second"}]});
    let id = app.destination(ten).await;
    app.events("far", 14).await;
    // The first handshakes are almost complete.
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    app.patch(&id, json!({"rate_limits": [{"limit": 1, "period": "second"}]})).await;
    let in_effect = support::now() + Duration::from_millis(100);
    let arrivals = receiver.wait_for("/stalled", 6, TIMEOUT).await;
    let after: Vec<_> = arrivals.into_iter().filter(|arrival| arrival.at >= in_effect).collect();
    assert!(after.len() >= 5, "it goes on: {}", after.len());
    assert_cap(&after, 1, SECOND);
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_certificate_and_a_wrong_name_are_refused_and_retried() {
    let folder = tempfile::tempdir().unwrap();
    let (untrusted, _) = certificate(folder.path(), "localhost");
    let (misnamed, trusted) = certificate(folder.path(), "elsewhere.example");
    let untrusted = Receiver::start_tls(untrusted, Duration::ZERO).await;
    let misnamed = Receiver::start_tls(misnamed, Duration::ZERO).await;
    let app = App::start_with(folder.path(), &[("SSL_CERT_FILE", &trusted)]).await;
    for receiver in [&untrusted, &misnamed] {
        let retry = json!({"max_attempts": 2, "schedule_ms": [50]});
        let id = app.destination(json!({"url": receiver.url("/tls"), "event_types": ["tls"], "retry": retry})).await;
        app.event("tls").await;
        eventually("attempts are exhausted", Duration::from_secs(10), async || {
            let page = app.get(&format!("/v1/deliveries?destination={id}&state=dead")).await;
            page["data"].as_array().is_some_and(|rows| rows.len() == 1)
        })
        .await;
        let page = app.get(&format!("/v1/deliveries?destination={id}")).await;
        let delivery = app.get(&format!("/v1/deliveries/{}", page["data"][0]["id"].as_str().unwrap())).await;
        let error = delivery["attempts"][0]["error"].as_str().unwrap();
        assert!(error.contains("certificate"), "{delivery}");
        assert_eq!(delivery["attempts"].as_array().unwrap().len(), 2);
        assert_eq!(receiver.count("/tls"), 0);
    }
}
