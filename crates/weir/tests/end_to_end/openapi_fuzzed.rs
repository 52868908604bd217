//! The API document against the API, by an independent program: schemathesis makes valid and invalid requests from
//! `/openapi.json` and checks each answer against the document. A valid request that is refused, an invalid one that is
//! accepted, an answer that does not match its schema, or a 5xx is a failure.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use tokio::process::Command;

use crate::support::{App, servers::provided};

const KEY: &str = "key-of-the-fuzzer";
/// The number of random cases for each operation, in addition to the systematic ones (each property at its bounds,
/// missing, of another type).
const RANDOM_CASES: &str = "100";
const TIMEOUT: Duration = Duration::from_secs(900);

/// Operations that the fuzzer leaves out, with the reason.
const LEFT_OUT: [(&str, &str, &str); 3] = [
    ("GET", "/v1/stream", "the answer has no end, and the fuzzer waits for it"),
    ("POST", "/v1/limit-groups/{id}/reservations", "it waits for a slot for as long as the fuzzer asks"),
    (
        "POST",
        "/v1/limit-groups/by-name/{tenant}/{name}/reservations",
        "it waits for a slot for as long as the fuzzer asks",
    ),
];

/// The beginnings of refusals that no schema can express, because they compare values with each other, with
/// stored data or with the time. A valid request may get these only.
const BEYOND_A_SCHEMA: [&str; 40] = [
    "is a group of the tenant `",
    "needs a destination with limit keys",
    "cannot be combined with `key_limits` yet",
    "must be given: a JSON pointer into `data`",
    "is given twice: a key of more than 128 bytes",
    "needs `destination`, to which the key belongs",
    "must not look like Weir, another actor or an id",
    "is not a destination of this tenant",
    "there is no destination dst_",
    "there is no limit group lgr_",
    "must not be empty: destinations and people name",
    "belongs to the other `order`",
    "differs from the `Idempotency-Key` header",
    "must be at least `open_ms`",
    "must be at least `base_ms`",
    "must be at least `min_per_s`",
    "is set by the format `cloudevents-binary`",
    "is also in the destination's `headers`",
    "needs a URL with https",
    "must be that of `period`",
    "period `",
    "must not be 0, which would refuse",
    "must have either `tenant` or `key`",
    "must not be before `from`",
    "must be at most 365 days ahead",
    "must be in the future",
    "must be before `to`, and in the past",
    "must be later: ",
    "must name only alerts, such as",
    "must be longer: buckets of",
    "belongs to another request: use a new key",
    "is already the secret of the destination",
    "must be PEM of",
    "must be an object, true or false",
    "is not a keyword that is known here",
    "must be at least a second and at most 30 days",
    "must be 1 with the unit `cost`",
    "must be 1 with the shape `window`",
    "does not fit the secret: the style",
    // The stateful tests try the id of one resource for another, whatever the pattern says.
    "must be an id of the form dst_",
];

/// Such a refusal of an example that the schema beside it refuses.
const BY_ITS_SCHEMA: &str = "by the schema";

/// Such refusals of a PATCH only. A patch is merged with the stored settings, so the rules between fields depend on
/// stored data.
const BEYOND_THE_SCHEMA_OF_A_PATCH: [&str; 3] =
    ["must be omitted: the `", "does not fit the style `", "needs `ordered: true`"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_accepts_and_answers_what_its_document_says() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing is sent to the hosts that the fuzzer invents. With the dashboard, `/` is a page too.
    let settings = [
        ("WEIR_API_KEYS", KEY),
        ("WEIR_DENY_NETWORKS", "0.0.0.0/0,::/0"),
        ("WEIR_LOG", "error"),
        ("WEIR_DASHBOARD", "off"),
    ];
    let app = App::start_with(folder.path(), &settings).await;
    let report = folder.path().join("report.ndjson");
    let document = app.get("/openapi.json").await;
    let file = folder.path().join("openapi.json");
    std::fs::write(&file, with_rules(document.clone()).to_string()).expect("the document is written");
    let mut fuzzer = Command::new(provided("WEIR_TEST_SCHEMATHESIS"));
    fuzzer.arg("run").arg(&file).args(["--url", &app.url]).current_dir(folder.path()).kill_on_drop(true);
    // One worker: with several, version 4.32.5 fails under Python 3.11. The name of the header must be written like
    // this, otherwise the check `ignored_auth` does not recognise it.
    fuzzer.args(["--checks", "all", "--workers", "1", "--header", &format!("Authorization: Bearer {KEY}")]);
    // The same cases in each run, all of them, also after a failure.
    fuzzer.args(["--max-examples", RANDOM_CASES, "--seed", "24", "--generation-database", "none"]);
    fuzzer.args(["--exclude-path", "/openapi.json"]);
    for (method, path, reason) in LEFT_OUT {
        let operation = document["paths"][path][method.to_lowercase()]["operationId"].as_str();
        let operation = operation.unwrap_or_else(|| panic!("{method} {path} is not in the document: {reason}"));
        fuzzer.args(["--exclude-operation-id", operation]);
    }
    fuzzer.args(["--continue-on-failure", "--no-shrink", "--no-color"]);
    fuzzer.args(["--report", "ndjson", "--output-sanitize", "false", "--report-ndjson-path"]).arg(&report);
    let output = tokio::time::timeout(TIMEOUT, fuzzer.stdin(Stdio::null()).output()).await.expect("it ends in time");
    let output = output.expect("schemathesis starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // 0: no failure; 1: failures, which are judged below.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {text}", output.status);

    let findings = Findings::read(&report);
    assert!(findings.errors.is_empty(), "{:?}\n{text}", findings.errors);
    let mut expected = operations(&document);
    for (method, path, reason) in LEFT_OUT {
        assert!(expected.remove(&format!("{method} {path}")), "{method} {path} is not in the document: {reason}");
    }
    assert_eq!(findings.operations, expected, "every operation is tested");
    assert!(findings.cases > 2_000, "{} cases\n{text}", findings.cases);
    let failures: Vec<_> = findings.failures.iter().map(|(what, example)| format!("{what}\n    {example}")).collect();
    assert!(failures.is_empty(), "{} kinds of failures:\n{}", failures.len(), failures.join("\n"));
}

/// The document with the rules between fields inside of the schemas, where the fuzzer keeps them.
fn with_rules(mut document: Value) -> Value {
    for (_, schema) in document["components"]["schemas"].as_object_mut().expect("schemas") {
        if let Some(Value::Object(rules)) = schema.as_object_mut().expect("a schema").remove("x-weir-rules") {
            schema.as_object_mut().expect("a schema").extend(rules);
        }
    }
    document
}

/// The operations of the document, as the fuzzer names them, without the route that serves the document.
fn operations(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().expect("paths");
    let names = paths.iter().filter(|(path, _)| *path != "/openapi.json").flat_map(|(path, item)| {
        let methods = item.as_object().expect("operations").keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    names.collect()
}

/// The report of a run.
#[derive(Default)]
struct Findings {
    operations: BTreeSet<String>,
    cases: usize,
    /// An example for each kind of failure: check, operation, status and refusal.
    failures: BTreeMap<String, String>,
    /// Errors of the fuzzer itself, or of the document.
    errors: Vec<String>,
}

impl Findings {
    /// Reads a file with one event per line.
    fn read(report: &Path) -> Self {
        let mut findings = Self::default();
        for line in std::fs::read_to_string(report).expect("a report").lines() {
            let event: Value = serde_json::from_str(line).expect("an event");
            if let Some(scenario) = event.get("ScenarioFinished") {
                findings.add(&scenario["recorder"]);
            } else if event.as_object().is_some_and(|event| event.keys().any(|name| name.contains("Error"))) {
                findings.errors.push(line.chars().take(2_000).collect());
            }
        }
        findings
    }

    fn add(&mut self, scenario: &Value) {
        let label = scenario["label"].as_str().unwrap_or_default();
        if label.contains(" /") {
            self.operations.insert(label.to_owned());
        }
        for (case, checks) in scenario["checks"].as_object().into_iter().flatten() {
            self.cases += 1;
            let exchange = &scenario["interactions"][case];
            for check in checks.as_array().into_iter().flatten().filter(|check| check["status"] != "success") {
                self.fail(label, check, exchange);
            }
        }
    }

    fn fail(&mut self, label: &str, check: &Value, exchange: &Value) {
        let (name, status) = (check["name"].as_str().unwrap_or_default(), &exchange["response"]["status_code"]);
        let answer = decoded(&exchange["response"]["content"]);
        let problem: Value = serde_json::from_str(&answer).unwrap_or_default();
        let request = &exchange["request"];
        let is_patch = request["method"] == "PATCH";
        if name == "positive_data_acceptance" && *status == 422 && is_beyond_a_schema(&problem, is_patch) {
            return;
        }
        // A wrong key is refused with 401, and after ten of them with 429. A valid key never gets this 429.
        if name == "ignored_auth" && *status == 429 {
            return;
        }
        let failure = check["failure_info"]["failure"]["message"].as_str().unwrap_or_default();
        // Each event of a batch is judged alone: an invalid event is refused, and the others are accepted.
        let is_partial = label == "POST /v1/events/batch" && *status == 202;
        // The pattern of a URL describes the usual ones; Weir accepts more, such as those with an address.
        let is_unusual_url = failure.contains("violates `pattern` at") && failure.contains("/properties/url");
        if name == "negative_data_rejection" && (is_partial || is_unusual_url) {
            return;
        }
        // A deleted destination can still be audited.
        if name == "use_after_free" && request["uri"].as_str().is_some_and(|uri| uri.contains("/audit")) {
            return;
        }
        let what = format!("{name}: {label} was answered {status}: {}", kind(&problem));
        let example = format!(
            "{} {} {}\n    {answer}\n    {}",
            request["method"].as_str().unwrap_or_default(),
            request["uri"].as_str().unwrap_or_default(),
            decoded(&request["body"]),
            failure,
        );
        self.failures.entry(what).or_insert(example);
    }
}

/// Whether all reasons of the refusal are ones that no schema can express.
fn is_beyond_a_schema(problem: &Value, is_patch: bool) -> bool {
    let errors = problem["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_excused = |error: &Value| {
        let detail = error["detail"].as_str().unwrap_or_default();
        // Of a filter the document says in words what its conditions may be.
        if error["pointer"].as_str().is_some_and(|at| at == "/filter" || at.starts_with("/filter/")) {
            return true;
        }
        let begins_with = |reasons: &[&str]| reasons.iter().any(|reason| detail.starts_with(reason));
        begins_with(&BEYOND_A_SCHEMA)
            || detail.ends_with(BY_ITS_SCHEMA)
            || is_patch && begins_with(&BEYOND_THE_SCHEMA_OF_A_PATCH)
    };
    !errors.is_empty() && errors.iter().all(is_excused)
}

/// The refused properties with the reasons, without indices.
fn kind(problem: &Value) -> String {
    let errors = problem["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kinds: BTreeSet<String> =
        errors.iter().map(|error| format!("{} {}", error["pointer"], error["detail"])).collect();
    kinds.iter().map(|kind| kind.replace(|digit: char| digit.is_ascii_digit(), "")).collect::<Vec<_>>().join("; ")
}

/// A body: text, or bytes as base64.
fn decoded(body: &Value) -> String {
    match (body.as_str(), body["$base64"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(base64)) => {
            String::from_utf8_lossy(&BASE64_STANDARD.decode(base64).unwrap_or_default()).into_owned()
        }
        (None, None) => String::new(),
    }
}
