//! SIGHUP, which reads the settings again, and what a process reports to systemd.

use std::{fs, os::unix::net::UnixDatagram, path::Path, time::Duration};

use tokio::process::Command;

use crate::support::{App, eventually};

const SECOND: Duration = Duration::from_secs(1);
const OLD: &str = "the-old-key-of-the-file";
const NEW: &str = "the-new-key-of-the-file";

fn serve(folder: &Path) -> Command {
    let mut command = App::command(folder);
    // The environment would override the file.
    command.arg("serve").env_remove("WEIR_LOG").stderr(fs::File::create(folder.join("log")).unwrap());
    command
}

async fn status_with(app: &App, key: &str) -> u16 {
    let request = app.http.get(format!("{}/v1/destinations", app.url)).bearer_auth(key);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_reads_keys_and_log_filter_again_and_never_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("weir.toml"), folder.path().join("log"));
    let logged = |text: &str| fs::read_to_string(&log).unwrap().contains(text);
    fs::write(&file, format!("log = \"info\"\napi_keys = \"{OLD}\"\n")).unwrap();
    let app = App::launch(serve(folder.path())).await.unwrap();
    assert_eq!((status_with(&app, OLD).await, status_with(&app, NEW).await), (200, 401));

    // Without an edit it changes nothing.
    app.signal("HUP").await;
    eventually("SIGHUP is handled", SECOND * 5, async || logged("the settings were read again")).await;
    assert_eq!(status_with(&app, OLD).await, 200);

    // A file that is not valid changes nothing.
    fs::write(&file, format!("log = \"info\"\napi_keys = \"{NEW}\"\nno_such_setting = 1\n")).unwrap();
    app.signal("HUP").await;
    eventually("the error is logged", SECOND * 5, async || logged("no_such_setting")).await;
    assert!(logged("those in use stay"));
    assert_eq!((status_with(&app, OLD).await, status_with(&app, NEW).await), (200, 401));

    // A valid one is used; what needs a restart is named.
    fs::write(&file, format!("log = \"warn\"\napi_keys = \"{NEW}\"\nmax_destinations = 5\n")).unwrap();
    app.signal("HUP").await;
    eventually("the new key is valid", SECOND * 5, async || status_with(&app, NEW).await == 200).await;
    assert_eq!(status_with(&app, OLD).await, 401);
    eventually("the edit is named", SECOND * 5, async || logged("need a restart") && logged("max_destinations")).await;

    // With the filter `warn` the last reload has not logged its end, and with `info` the next one does.
    fs::write(&file, format!("log = \"info\"\napi_keys = \"{NEW}\"\n")).unwrap();
    app.signal("HUP").await;
    eventually("the filter is set", SECOND * 5, async || logged("changed=\"log\"")).await;
    assert_eq!(fs::read_to_string(&log).unwrap().matches("the settings were read again").count(), 2);
    assert!(!logged(OLD) && !logged(NEW), "keys are never logged");

    assert!(app.terminate().await.success());
}

/// The reports on a socket, line by line, until one of them is this line.
fn reports_until(systemd: &UnixDatagram, last: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut datagram = [0; 256];
    while lines.last().is_none_or(|line| line != last) {
        let length = systemd.recv(&mut datagram).unwrap_or_else(|error| panic!("{error}; so far {lines:?}"));
        let text = String::from_utf8_lossy(&datagram[..length]).into_owned();
        lines.extend(text.lines().filter(|line| !line.starts_with("STATUS=")).map(str::to_owned));
    }
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_learns_when_a_process_is_ready_reloads_runs_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    systemd.set_read_timeout(Some(SECOND * 10)).unwrap();
    let mut command = serve(folder.path());
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "300000");
    let app = App::launch(command).await.unwrap();

    let started = reports_until(&systemd, "READY=1");
    assert!(started.iter().all(|line| line == "WATCHDOG=1" || line == "READY=1"), "{started:?}");
    reports_until(&systemd, "WATCHDOG=1");
    app.signal("HUP").await;
    let reloaded = reports_until(&systemd, "READY=1");
    assert!(reloaded.iter().any(|line| line == "RELOADING=1"), "{reloaded:?}");
    app.signal("TERM").await;
    reports_until(&systemd, "STOPPING=1");
}
