//! Journeys through the dashboard in a real browser. Each test starts Weir and plays one file of
//! `crates/weir-dashboard/journeys` with Node; `browser.mjs` there says what must hold on every page.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{net::TcpListener, process::Command};

use crate::support::{App, servers::provided};

/// The key of the settings, with which a journey makes its data.
const KEY: &str = "key-of-the-journeys";
/// A file with journeys that hang ends later than its journeys, so that they are named.
const ENDS_WITHIN: Duration = Duration::from_secs(600);

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
    // A journey that needs a restart connects to this port. Weir is then killed and started again. The connection is
    // closed when Weir listens again.
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
    let report = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{file}:\n{report}");
    // Print the report, because some journeys measure times.
    println!("{report}");
    let (declared, passed) = (declared(file), passed(&report));
    assert!(declared > 0 && passed == Some(declared), "{file}: {declared} journeys, {passed:?} passed:\n{report}");
}

/// The number of journeys in a file: each is declared at the beginning of a line.
fn declared(file: &str) -> usize {
    let source = std::fs::read_to_string(folder().join(file)).unwrap();
    source.lines().filter(|line| line.starts_with("journey(")).count()
}

/// The number of journeys that passed, by the summary of Node. A skipped journey has not passed.
fn passed(report: &str) -> Option<usize> {
    // `# pass 5`; a later Node writes another sign.
    report.lines().find_map(|line| line.split_once(" pass ")?.1.trim().parse().ok())
}

/// One test for each file of journeys.
macro_rules! journeys {
    ($($name:ident $(with [$($setting:expr),+])?,)+) => {
        pub(super) const PLAYED: &[&str] = &[$(concat!(stringify!($name), ".mjs")),+];

        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                play(concat!(stringify!($name), ".mjs"), &[$($($setting),+)?]).await;
            }
        )+
    };
}

journeys! {
    alerts,
    dead_letters,
    destination,
    every_page,
    frame,
    installation,
    keyboard,
    new_destination,
    no_script,
    overview,
    ranges_and_files,
    restart,
    roles,
    session,
    sub_path with [("WEIR_PUBLIC_URL", "http://localhost/weir")],
    telephone,
    zones,
}

/// They judge times, and load both the browser and Weir.
mod alone {
    use super::play;

    journeys! {
        limits,
        many_destinations,
    }
}

/// What the journeys share, and the pictures of the documents.
const PARTS: [&str; 3] = ["browser.mjs", "pictures.mjs", "receiver.mjs"];

#[test]
fn every_file_of_journeys_is_played() {
    let played: Vec<_> = [PLAYED, alone::PLAYED, &PARTS].concat();
    for file in std::fs::read_dir(folder()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(played.contains(&name.as_str()), "{name} is not played");
    }
    for name in played {
        assert!(folder().join(name).is_file(), "there is no {name}");
    }
}

#[test]
fn the_summary_of_node_says_how_many_journeys_passed() {
    assert_eq!(passed("a pass\n# tests 5\n# pass 4\n# skipped 1\n"), Some(4));
    assert_eq!(passed("\u{2139} tests 5\n\u{2139} pass 12\n"), Some(12));
    assert_eq!(passed("ok 1 - a page that may pass 3 times is found\n"), None);
}
