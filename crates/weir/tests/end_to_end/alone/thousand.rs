//! A limit of a thousand a second is held and used, by one process in both set-ups.

use crate::support::{App, Fleet, cases};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_holds_and_uses_a_thousand_a_second() {
    let folder = tempfile::tempdir().unwrap();
    cases::a_thousand_a_second_is_held_and_used(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_on_servers_holds_and_uses_a_thousand_a_second() {
    let fleet = Fleet::new().await;
    cases::a_thousand_a_second_is_held_and_used(&fleet.launch("serve").await).await;
}
