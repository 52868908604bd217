//! The fold of the counters in the running program: recorded changes become totals, and no answer depends on when.

use std::{path::Path, time::Duration};

use serde_json::json;

use crate::support::{Answer, App, Fleet, Receiver, eventually};

/// Many passes of the fold.
const LONG: Duration = Duration::from_secs(30);

/// What is in the file of a database.
#[derive(Debug, PartialEq, Eq)]
struct Stored {
    /// Changes that are not folded yet.
    changes: i64,
    /// The totals of all destinations.
    pending: i64,
    delivered: i64,
    sends: i64,
}

impl Stored {
    fn read(folder: &Path) -> Self {
        let database = rusqlite::Connection::open(folder.join("weir.db")).unwrap();
        let sum = "SELECT (SELECT count(*) FROM count_changes) + (SELECT count(*) FROM traffic_changes),
            (SELECT coalesce(sum(pending), 0) FROM destination_totals),
            (SELECT coalesce(sum(delivered), 0) FROM destination_totals),
            (SELECT coalesce(sum(sends), 0) FROM traffic)";
        let row = database.query_row(sum, [], |row| {
            Ok(Self { changes: row.get(0)?, pending: row.get(1)?, delivered: row.get(2)?, sends: row.get(3)? })
        });
        row.unwrap()
    }

    /// Waits until nothing is left to fold. The totals must be these.
    async fn folds_to(folder: &Path, pending: i64, delivered: i64) {
        eventually("the changes are folded", LONG, async || Self::read(folder).changes == 0).await;
        assert_eq!(Self::read(folder), Self { changes: 0, pending, delivered, sends: delivered });
    }
}

async fn pending(app: &App, destination: &str) -> u64 {
    app.get(&format!("/v1/destinations/{destination}/backlog")).await["pending"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_process_folds_every_change_also_those_from_before_a_kill() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    receiver.script("/goes", [Answer::status(200)]);
    let goes = app.destination(json!({"url": receiver.url("/goes"), "event_types": ["goes"]})).await;
    let waits = app.destination(json!({"url": receiver.url("/waits"), "event_types": ["waits"], "paused": true})).await;
    app.events("waits", 300).await;
    app.events("goes", 200).await;
    app.drained(&goes, LONG).await;
    Stored::folds_to(folder.path(), 300, 200).await;
    assert_eq!(pending(&app, &waits).await, 300);
    let health = app.get(&format!("/v1/destinations/{goes}/health")).await;
    assert_eq!((&health["delivered"], &health["attempts_made"]), (&json!(200), &json!(200)), "{health}");

    // Killed at once, so that most of these changes are not folded yet.
    app.events("waits", 50).await;
    app.kill().await;
    let app = App::start(folder.path()).await;
    assert_eq!(pending(&app, &waits).await, 350);
    Stored::folds_to(folder.path(), 350, 200).await;
    assert_eq!(pending(&app, &waits).await, 350);
}

/// Ends when nothing is left to fold.
const FOLDED: &str = "DO $$ BEGIN
    FOR check_number IN 1..300 LOOP
        IF NOT EXISTS (SELECT FROM count_changes) AND NOT EXISTS (SELECT FROM traffic_changes) THEN RETURN; END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
    RAISE EXCEPTION 'changes are left';
END $$";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schedulers_of_a_fleet_fold_each_change_once() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let waits = json!({"url": "https://example.com/hooks", "event_types": ["waits"], "paused": true});
    let waits = api.destination(waits).await;
    for _ in 0..20 {
        api.events("waits", 10).await;
    }
    // Without a scheduler nobody folds, and the answers are right all the same.
    fleet.sql("DO $$ BEGIN ASSERT (SELECT count(*) >= 20 FROM count_changes), 'somebody folds'; END $$").await;
    assert_eq!(pending(&api, &waits).await, 200);
    let _schedulers = [fleet.launch("scheduler").await, fleet.launch("scheduler").await];
    fleet.sql(FOLDED).await;
    fleet.sql("DO $$ BEGIN ASSERT (SELECT sum(pending) = 200 FROM destination_totals), 'other totals'; END $$").await;
    assert_eq!(pending(&api, &waits).await, 200);
}
