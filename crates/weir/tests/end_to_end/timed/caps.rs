//! Limits on real sockets: every limit holds in every sliding window, and is used.

use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command},
};

use serde_json::json;

use crate::support::{
    App, Fleet, Machine, Receiver, assert_cap,
    cases::{self, destination, limit},
    eventually, utilisation,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_is_held_and_used_under_a_standing_backlog() {
    let folder = tempfile::tempdir().unwrap();
    cases::every_limit_is_held_and_used(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_under_backlog_take_effect_within_100_ms_and_reset_no_window() {
    let folder = tempfile::tempdir().unwrap();
    cases::edits_take_effect_at_once(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_binds_within_100_ms_loses_nothing_and_causes_no_burst() {
    let folder = tempfile::tempdir().unwrap();
    cases::a_pause_holds(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_through_one_process_take_effect_in_the_others_within_100_ms() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
    cases::edits_take_effect_at_once(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_through_one_process_holds_the_others_within_100_ms() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
    cases::a_pause_holds(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_stops_and_restarts_sends_no_second_burst() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let id = destination(&app, &receiver, "/restarted", limit(10, "second")).await;
    for round in 1..=4 {
        app.events("restarted", 5).await;
        receiver.wait_for("/restarted", round * 5, Duration::from_secs(10)).await;
        app.drained(&id, Duration::from_secs(5)).await;
    }
    assert_cap(&receiver.arrivals("/restarted"), 10, SECOND);
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_stalled_for_two_seconds_sends_no_burst_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let id = destination(&app, &receiver, "/stalled", limit(100, "second")).await;
    app.events("stalled", 600).await;
    receiver.wait_for("/stalled", 100, Duration::from_secs(10)).await;
    app.signal("STOP").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    app.signal("CONT").await;
    let arrivals = receiver.wait_for("/stalled", 600, Duration::from_secs(30)).await;
    assert_cap(&arrivals, 100, SECOND);
    app.drained(&id, Duration::from_secs(5)).await;
    app.assert_audit_clean(&id).await;
    assert_eq!(receiver.count("/stalled"), 600, "a stall duplicates nothing");
}

/// Two workers use these limits, in sends a second, after `disturb`.
async fn workers_use_the_limits_while<T>(rates: &[u32], disturb: impl Fn(&App) -> T) {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let _scheduler = fleet.launch("scheduler").await;
    let workers = [fleet.launch("worker").await, fleet.launch("worker").await];
    let mut destinations = Vec::new();
    for &rate in rates {
        let path = format!("/disturbed-{rate}");
        destinations.push((rate, destination(&api, &receiver, &path, limit(rate, "second")).await));
        api.events(path.trim_start_matches('/'), rate as usize * 25).await;
    }
    let _disturbances = workers.each_ref().map(disturb);
    let machine = Machine::watched();
    for (rate, id) in destinations {
        let path = format!("/disturbed-{rate}");
        let arrivals = receiver.wait_for(&path, rate as usize * 10, Duration::from_secs(25)).await;
        assert_cap(&arrivals, rate as usize, SECOND);
        api.assert_audit_clean(&id).await;
        machine.judge_use(&path, utilisation(&arrivals, f64::from(rate), SECOND), 0.95);
    }
}

/// At low limits a missed slot usually is the last one. It gives its spacing back, so the next slot starts at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_are_suspended_for_a_third_of_the_time_use_the_limits() {
    workers_use_the_limits_while(&[2, 10], |worker| worker.stutter(30)).await;
}

/// A container has a quota of processor time, which a busy neighbour in the same container uses up in each period.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_in_groups_with_two_thirds_of_a_processor_use_the_limits() {
    if Quota::parent().is_none() {
        println!("not judged, because this user may make no control group");
        return;
    }
    workers_use_the_limits_while(&[2, 10, 100], Quota::on).await;
}

/// A control group with two thirds of a processor, and a process that uses all that is left of it.
#[cfg(target_os = "linux")]
struct Quota {
    group: PathBuf,
    busy: Child,
}

#[cfg(target_os = "linux")]
impl Quota {
    /// The group that holds the groups of the tests: of the second version of control groups, or of the first.
    fn parent() -> Option<PathBuf> {
        let parents = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"].map(PathBuf::from);
        parents.into_iter().find(|parent| {
            let probe = parent.join(format!("weir-probe-{}", std::process::id()));
            let is_made = fs::create_dir(&probe).is_ok();
            let has_quota = ["cpu.max", "cpu.cfs_quota_us"].iter().any(|file| probe.join(file).exists());
            let _ = fs::remove_dir(&probe);
            is_made && has_quota
        })
    }

    /// Moves a process into a new group. It is stopped for up to 7 ms of every 20 ms.
    fn on(app: &App) -> Self {
        let group = Self::parent().unwrap().join(format!("weir-{}", app.pid()));
        fs::create_dir(&group).unwrap();
        let write = |file: &str, value: &str| fs::write(group.join(file), value).unwrap();
        if group.join("cpu.max").exists() {
            write("cpu.max", "13333 20000");
        } else {
            write("cpu.cfs_period_us", "20000");
            write("cpu.cfs_quota_us", "13333");
        }
        write("cgroup.procs", &app.pid().to_string());
        // It ends by itself, even if the test is killed.
        let script = "echo $$ > cgroup.procs; exec timeout 40 sh -c 'while :; do :; done'";
        let busy = Command::new("sh").args(["-c", script]).current_dir(&group).spawn().unwrap();
        Self { group, busy }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Quota {
    fn drop(&mut self) {
        // `timeout` passes the signal on.
        let _ = Command::new("kill").arg(self.busy.id().to_string()).status();
        let _ = self.busy.wait();
        // The worker leaves the group before the group is removed.
        let parent = self.group.parent().map(|parent| parent.join("cgroup.procs"));
        for process in fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = parent.as_ref().map(|parent| fs::write(parent, process));
        }
        let _ = fs::remove_dir(&self.group);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_bounded_by_limit_plus_burst_minus_one() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let limits = json!([{"limit": 10, "period": "second", "burst": 5}]);
    let id = destination(&app, &receiver, "/burst", limits).await;
    app.events("burst", 60).await;
    let arrivals = receiver.wait_for("/burst", 60, Duration::from_secs(20)).await;
    assert_cap(&arrivals, 14, SECOND);
    let first = arrivals[0].at;
    let at_once = arrivals.iter().filter(|arrival| arrival.at < first + Duration::from_millis(80)).count();
    assert!(at_once >= 4, "the burst is used: {at_once} at once");
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_shows_its_depth_rate_and_time_to_drain() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let id = destination(&app, &receiver, "/backlog", limit(10, "second")).await;
    app.events("backlog", 200).await;
    receiver.wait_for("/backlog", 20, Duration::from_secs(10)).await;
    eventually("the backlog is shown", Duration::from_secs(3), async || {
        let backlog = app.get(&format!("/v1/destinations/{id}/backlog")).await;
        let pending = backlog["pending"].as_f64().unwrap();
        let eta = backlog["drain_eta_s"].as_f64().unwrap();
        assert_eq!(backlog["configured_per_s"], 10.0);
        pending > 100.0 && (eta - pending / 10.0).abs() < 2.0 && backlog["achieved_per_s"].as_f64().unwrap() > 0.0
    })
    .await;
}
