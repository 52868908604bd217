//! Journeys through the dashboard in a real browser. Each test starts Weir and plays one file of
//! `crates/weir-dashboard/journeys` with Node; `browser.mjs` there says what must hold on every page.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{net::TcpListener, process::Command};

use crate::support::{App, servers::provided};

/// The key of the settings, with which a journey makes its data.
const KEY: &str = "key-of-the-journeys";
const ENDS_WITHIN: Duration = Duration::from_secs(300);

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../weir-dashboard/journeys"))
}

/// Plays the journeys of a file against a Weir with these settings.
async fn play(file: &str, settings: &[(&str, &str)]) {
    let data = tempfile::tempdir().unwrap();
    let settings: Vec<_> = settings.iter().copied().chain([("WEIR_API_KEYS", KEY)]).collect();
    let mut app = App::start_with(data.path(), &settings).await;
    let requests = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Without `--test`: that would start another process, which could outlive this one.
    let mut node = Command::new(provided("WEIR_TEST_NODE"));
    node.arg(folder().join(file)).env("WEIR_URL", &app.url).env("WEIR_KEY", KEY);
    node.env("WEIR_RESTART", requests.local_addr().unwrap().to_string());
    for variable in ["WEIR_TEST_CHROMIUM", "WEIR_TEST_BROWSER_TOOLS"] {
        node.env(variable, provided(variable));
    }
    // A journey connects to have Weir killed and started again, and the end of the connection says that it listens.
    let restarts = async {
        loop {
            let (_connection, _) = requests.accept().await.unwrap();
            let address = app.address().to_string();
            app.kill().await;
            let settings: Vec<_> = settings.iter().copied().chain([("WEIR_LISTEN", &*address)]).collect();
            app = App::start_with(data.path(), &settings).await;
        }
    };
    let output = tokio::select! {
        output = tokio::time::timeout(ENDS_WITHIN, node.stdin(Stdio::null()).kill_on_drop(true).output()) => output,
        () = restarts => unreachable!("they have no end"),
    };
    let output = output.unwrap_or_else(|_| panic!("{file} did not end in {ENDS_WITHIN:?}")).expect("Node starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{file}:\n{}{}", text(&output.stdout), text(&output.stderr));
}

/// One test for each file of journeys.
macro_rules! journeys {
    ($($name:ident $(with [$($setting:expr),+])?,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                play(concat!(stringify!($name), ".mjs"), &[$($($setting),+)?]).await;
            }
        )+

        #[test]
        fn every_file_of_journeys_is_played() {
            let played = [$(concat!(stringify!($name), ".mjs")),+];
            for file in std::fs::read_dir(folder()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                let is_part = ["browser.mjs", "pictures.mjs", "receiver.mjs"].contains(&name.as_str());
                assert!(is_part || played.contains(&name.as_str()), "{name} is not played");
            }
        }
    };
}

journeys! {
    dead_letters,
    destination,
    every_page,
    installation,
    limits,
    overview,
    restart,
    session,
    sub_path with [("WEIR_PUBLIC_URL", "http://localhost/weir")],
}
