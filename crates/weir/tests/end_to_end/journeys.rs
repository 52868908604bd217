//! Journeys through the dashboard in a real browser. Each test starts Weir and plays one file of
//! `crates/weir-dashboard/journeys` with Node; `browser.mjs` there says what must hold on every page.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::process::Command;

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
    let app = App::start_with(data.path(), &settings).await;
    // Without `--test`: that would start another process, which could outlive this one.
    let mut node = Command::new(provided("WEIR_TEST_NODE"));
    node.arg(folder().join(file)).env("WEIR_URL", &app.url).env("WEIR_KEY", KEY);
    for variable in ["WEIR_TEST_CHROMIUM", "WEIR_TEST_BROWSER_TOOLS"] {
        node.env(variable, provided(variable));
    }
    let output = tokio::time::timeout(ENDS_WITHIN, node.stdin(Stdio::null()).kill_on_drop(true).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{file} did not end in {ENDS_WITHIN:?}")).expect("Node starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{file}:\n{}{}", text(&output.stdout), text(&output.stderr));
}

/// One test for each file of journeys.
macro_rules! journeys {
    ($($name:ident $(with $settings:expr)?,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let settings: &[(&str, &str)] = &[];
                $(let settings: &[(&str, &str)] = &$settings;)?
                play(concat!(stringify!($name), ".mjs"), settings).await;
            }
        )+

        #[test]
        fn every_file_of_journeys_is_played() {
            let played = [$(concat!(stringify!($name), ".mjs")),+];
            for file in std::fs::read_dir(folder()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                let is_part = ["browser.mjs", "receiver.mjs"].contains(&name.as_str());
                assert!(is_part || played.contains(&name.as_str()), "{name} is not played");
            }
        }
    };
}

journeys! {
    installation,
    session,
}
