//! The outbound client when the process can open no more files. The test needs a process of its own, with a low limit
//! of open files.

#[path = "../src/outbound/fixed_clock.rs"]
mod fixed_clock;

use std::{fs::File, iter, sync::Arc, time::Duration};

use fixed_clock::FixedClock;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use weir_core::{address::AddressPolicy, body::BodySettings, signing::SignatureStyle};
use weir_worker::outbound::{NoConnection, Outbound, Target, TimeLimit, TlsRoots};

#[tokio::test]
async fn a_lack_of_files_is_no_failure_of_the_destination() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let target = Target::new(&url, &[], &SignatureStyle::standard(), &BodySettings::default());
    let policy = AddressPolicy {
        allow_http: true,
        allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
        ..AddressPolicy::default()
    };
    let outbound = Outbound::new(policy, TlsRoots::none(), Arc::new(FixedClock));

    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let files: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!files.is_empty());
    let exhausted = outbound.connect(&target, &mut TimeLimit::new(Duration::from_secs(20))).await.err().unwrap();
    assert_eq!(exhausted, NoConnection::Exhausted("the process may open no more files"));

    drop(files);
    assert!(outbound.connect(&target, &mut TimeLimit::new(Duration::from_secs(20))).await.is_ok());
}
