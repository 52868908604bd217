//! The clients under `clients/`: their own tests against a running Weir, a check of their types, and their routes
//! against the document of the API.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use reqwest::Method;
use serde_json::Value;
use tokio::process::Command;

use crate::support::{Answer, App, Receiver, servers::provided};

const KEY: &str = "key-of-the-clients";
const TIMEOUT: Duration = Duration::from_secs(300);

/// Routes that the clients leave out, with the reason.
const LEFT_OUT: [(&str, &str); 3] = [
    ("GET /v1/stream", "the answer has no end; programs read the overview"),
    ("POST /v1/session", "sessions are for browsers; a program sends its key"),
    ("DELETE /v1/session", "sessions are for browsers; a program sends its key"),
];

/// The types that users of both clients import. Their names stay, however the types are made.
const TYPES: [&str; 53] = [
    "HeldDestination",
    "Hold",
    "AcceptedEvent",
    "Activity",
    "Alerts",
    "ApiKey",
    "Attempt",
    "Audit",
    "Backend",
    "Backlog",
    "Binding",
    "Body",
    "Breaker",
    "CreatedApiKey",
    "CreatedDestination",
    "Delivery",
    "DeliveryDetail",
    "DeliveryGroup",
    "DeliveryGroups",
    "DeliveryState",
    "Destination",
    "DestinationChanges",
    "DestinationHealth",
    "DestinationHistory",
    "Estimate",
    "Event",
    "EventDetail",
    "HistoryBucket",
    "LimitAudit",
    "Me",
    "NewDestination",
    "NewEvent",
    "NewKey",
    "OverriddenDestination",
    "Override",
    "OverviewRow",
    "Period",
    "Preview",
    "Process",
    "PurgeFilter",
    "RateLimit",
    "RefusedWithinLimit",
    "Replay",
    "ReplayFilter",
    "Retry",
    "Role",
    "Secret",
    "Signature",
    "SignatureFormat",
    "Status",
    "Verified",
    "WaitsFor",
    "Window",
];
/// More types of the Python client.
const TYPES_OF_PYTHON: [&str; 8] = [
    "ActivitySubject",
    "HealthAttempts",
    "HealthLatency",
    "LimitChange",
    "MaxWindow",
    "MinIntervalAudit",
    "OverviewDestination",
    "Percentiles",
];
/// More types of the TypeScript client.
const TYPES_OF_TYPESCRIPT: [&str; 7] =
    ["ActivityFilter", "DeliveryFilter", "EventFilter", "GroupFilter", "HistoryQuery", "Range", "ReceivedRequest"];

fn client(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients").join(language)
}

/// Runs a program, which must succeed.
async fn run(command: &mut Command) {
    let output = tokio::time::timeout(TIMEOUT, command.stdin(Stdio::null()).kill_on_drop(true).output()).await;
    let output = output.expect("it ends in time").unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
}

/// Runs the tests of a client against a Weir with a receiver.
async fn tested(tests: &mut Command) {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start_with(folder.path(), &[("WEIR_API_KEYS", KEY)]).await, Receiver::start().await);
    receiver.script("/client", [Answer::status(204)]);
    run(tests.env("WEIR_URL", &app.url).env("WEIR_API_KEY", KEY).env("RECEIVER", receiver.url("/client"))).await;
    assert!(receiver.count("/client") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_passes_its_tests_and_mypy() {
    let (python, client) = (provided("WEIR_TEST_CLIENT_PYTHON"), client("python"));
    let program = || {
        let mut command = Command::new(&python);
        command.current_dir(&client).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    run(program().args(["-m", "mypy", "--cache-dir=/dev/null"])).await;
    let names = [&TYPES[..], &TYPES_OF_PYTHON].concat().join(", ");
    run(program().args(["-c", &format!("from weir_client import {names}")]).env("PYTHONPATH", "src")).await;
    // The client without `async` is made from the one with it.
    run(program().args(["unasync.py", "--check"])).await;
    run(program().arg("tests/test_webhooks.py").env("PYTHONPATH", "src")).await;
    run(program().arg("tests/test_slots.py").env("PYTHONPATH", "src")).await;
    tested(program().arg("tests/test_against_weir.py").env("PYTHONPATH", "src")).await;
    tested(program().arg("tests/test_async.py").env("PYTHONPATH", "src")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_typescript_client_compiles_and_passes_its_tests() {
    let (folder, client) = (tempfile::tempdir().unwrap(), client("typescript"));
    let mut compile = Command::new(provided("WEIR_TEST_TSC"));
    run(compile.current_dir(&client).arg("--outDir").arg(folder.path())).await;
    // The compiled files are ES modules, which Node knows by this file.
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    let names = [&TYPES[..], &TYPES_OF_TYPESCRIPT].concat().join(", ");
    let user = format!("import type {{ {names} }} from \"./index.js\";\nexport type All = [{names}];\n");
    std::fs::write(folder.path().join("user.ts"), user).unwrap();
    let mut compile = Command::new(provided("WEIR_TEST_TSC"));
    compile.args(["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "user.ts"]);
    run(compile.current_dir(folder.path())).await;
    let mut tests = Command::new(std::env::var("WEIR_TEST_NODE").unwrap_or_else(|_| "node".to_owned()));
    tests.current_dir(&client).args([
        "--test",
        "test/against-weir.test.mjs",
        "test/slots.test.mjs",
        "test/webhooks.test.mjs",
    ]);
    tested(tests.env("WEIR_CLIENT", folder.path().join("index.js"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_have_every_route_of_the_api_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let document = app.get("/openapi.json").await;
    let mut expected = documented(&document);
    for (route, reason) in LEFT_OUT {
        assert!(expected.remove(route), "{route} is not in the document: {reason}");
    }
    for (language, file) in [("python", "src/weir_client/client.py"), ("typescript", "src/client.ts")] {
        let source = std::fs::read_to_string(client(language).join(file)).unwrap();
        assert_eq!(called(&source), expected, "{language}");
    }
}

/// A filter that a client does not take would be unknown to its users. The TypeScript client has the types of the
/// document's own parameters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_takes_every_parameter_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let document = app.get("/openapi.json").await;
    let mut expected = BTreeSet::new();
    for (path, item) in
        document["paths"].as_object().expect("paths").iter().filter(|(path, _)| path.starts_with("/v1/"))
    {
        for (method, operation) in item.as_object().expect("operations") {
            let route = format!("{} {path}", method.to_uppercase());
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let names = parameters.filter(|one| one["in"] == "query").filter_map(|one| one["name"].as_str());
            expected.extend(names.map(|name| format!("{route}: {name}")));
        }
    }
    expected.retain(|parameter| LEFT_OUT.iter().all(|(route, _)| !parameter.starts_with(route)));
    let mut asked = Command::new(provided("WEIR_TEST_CLIENT_PYTHON"));
    asked.current_dir(client("python")).args(["-B", "tests/parameters.py"]).env("PYTHONPATH", "src");
    let output = asked.output().await.expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
}

/// The routes of the document that belong to the API, such as `GET /v1/events/{id}`.
fn documented(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().expect("paths");
    let paths = paths.iter().filter(|(path, _)| path.starts_with("/v1/"));
    let routes = paths.flat_map(|(path, item)| {
        let methods = item.as_object().expect("operations").keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    routes.collect()
}

/// The routes that a client calls: each is written as two strings, `"GET", "/v1/events/{id}"`.
fn called(source: &str) -> BTreeSet<String> {
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let routes = methods.iter().flat_map(|method| {
        let call = format!("\"{method}\", \"");
        let calls: Vec<_> = source.split(&call).skip(1).map(|rest| rest.split('"').next().unwrap_or("")).collect();
        calls.into_iter().map(move |path| format!("{method} {path}"))
    });
    routes.collect()
}
