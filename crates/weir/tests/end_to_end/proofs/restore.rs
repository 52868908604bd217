//! A restored backup lacks the sends after the backup. Still no receiver gets more than its limit across the restore.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use serde_json::json;
use weir_core::Period;

use crate::support::{App, Fleet, Receiver, assert_cap, cases::limit};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// The spacing of the limit of twelve a minute; the second send of `/rare` comes after it.
const RARE: Duration = Duration::from_secs(5);

/// A destination with its own path and event type.
struct Capped {
    path: &'static str,
    limit: u32,
    period: &'static str,
    window: Duration,
    events: usize,
}

/// `/fast` has more events than it sends before the restore, also if the backup takes some seconds.
const CAPPED: [Capped; 4] = [
    Capped { path: "/rare", limit: 12, period: "minute", window: MINUTE, events: 3 },
    Capped { path: "/minute", limit: 30, period: "minute", window: MINUTE, events: 6 },
    Capped { path: "/slow", limit: 5, period: "second", window: SECOND, events: 40 },
    Capped { path: "/fast", limit: 20, period: "second", window: SECOND, events: 190 },
];

/// Creates the destinations and posts their backlogs. Returns the ids of both.
async fn load(api: &App, receiver: &Receiver) -> Vec<(String, Vec<String>)> {
    let mut loaded = Vec::new();
    for Capped { path, limit: most, period, events, .. } in CAPPED {
        let mut settings = json!({"url": receiver.url(path), "event_types": [path.trim_start_matches('/')]});
        settings["rate_limits"] = limit(most, period);
        let id = api.destination(settings).await;
        let mut posted = Vec::new();
        for _ in 0..events {
            posted.push(api.event(path.trim_start_matches('/')).await);
        }
        loaded.push((id, posted));
    }
    loaded
}

/// Asserts that every event in the backup has arrived, and that no window of the whole run exceeds its limit.
async fn judge(api: &App, receiver: &Receiver, loaded: &[(String, Vec<String>)]) {
    for (Capped { path, limit, period, window, .. }, (id, posted)) in CAPPED.iter().zip(loaded) {
        api.drained(id, MINUTE).await;
        let delivered = api.get(&format!("/v1/deliveries?destination={id}&state=delivered&limit=200")).await;
        assert_eq!(
            delivered["data"].as_array().unwrap().len(),
            posted.len(),
            "{path}: restored deliveries are delivered"
        );
        let arrivals = receiver.arrivals(path);
        for id in posted {
            assert!(arrivals.iter().any(|arrival| arrival.header("webhook-id") == id), "{path}: {id} arrives");
        }
        assert_cap(&arrivals, *limit as usize, *window);
        // Without a burst the slots are evenly spaced, so the spacing can be judged before a whole window has passed. A
        // send may start anywhere in its slot, so it may be closer to the next one by the width of a slot.
        let slot_width = Period::parse(period).unwrap().widest_slot();
        assert_cap(&arrivals, 1, *window / *limit - slot_width);
        api.assert_audit_clean(id).await;
    }
}

/// The backup command of `docs/operations/backup.md`.
fn back_up_file(folder: &Path) {
    let running = rusqlite::Connection::open(folder.join("weir.db")).unwrap();
    running.execute("VACUUM INTO ?", [folder.join("backup.db").to_str().unwrap()]).unwrap();
    // The command runs with `umask 077`.
    fs::set_permissions(folder.join("backup.db"), fs::Permissions::from_mode(0o600)).unwrap();
}

fn restore_file(folder: &Path) {
    for file in ["weir.db", "weir.db-wal", "weir.db-shm"] {
        let _ = fs::remove_file(folder.join(file));
    }
    fs::rename(folder.join("backup.db"), folder.join("weir.db")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_file_keeps_every_limit_despite_forgotten_sends() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let app = App::start(folder.path()).await;
    let loaded = load(&app, &receiver).await;

    receiver.wait_for("/fast", 30, SECOND * 10).await;
    let backup = folder.path().to_owned();
    tokio::task::spawn_blocking(move || back_up_file(&backup)).await.unwrap();
    app.event("fast").await;
    let forgotten = receiver.count("/fast");
    receiver.wait_for("/rare", 2, RARE * 2).await;
    assert!(receiver.count("/fast") > forgotten + 40, "the backup lacks many sends");
    app.kill().await;

    restore_file(folder.path());
    let marked = App::command(folder.path()).arg("restored").output().await.unwrap();
    assert!(marked.status.success(), "{marked:?}");
    assert!(String::from_utf8_lossy(&marked.stdout).starts_with("marked as restored"), "{marked:?}");
    let app = App::start(folder.path()).await;
    judge(&app, &receiver, &loaded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_dump_keeps_every_limit_despite_forgotten_sends() {
    let (mut fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let mut running = Vec::new();
    for role in ["api", "scheduler", "worker"] {
        running.push(fleet.launch(role).await);
    }
    let loaded = load(&running[0], &receiver).await;

    receiver.wait_for("/fast", 30, SECOND * 10).await;
    let backup = fleet.back_up().await;
    running[0].event("fast").await;
    let forgotten = receiver.count("/fast");
    receiver.wait_for("/rare", 2, RARE * 2).await;
    assert!(receiver.count("/fast") > forgotten + 40, "the backup lacks many sends");
    for process in running {
        process.kill().await;
    }

    fleet.restore(&backup).await;
    let marked = fleet.run("restored").await;
    assert!(marked.status.success(), "{marked:?}");
    let api = fleet.launch("api").await;
    let (_scheduler, _worker) = (fleet.launch("scheduler").await, fleet.launch("worker").await);
    judge(&api, &receiver, &loaded).await;
}
