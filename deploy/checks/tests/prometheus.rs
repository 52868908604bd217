//! The rules and the dashboard: valid, tested, documented, and with existing metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;
use weir_deploy_checks::{
    project,
    queries::{self, Query},
    read, run, tool, yaml,
};

const RUNBOOK: &str = "docs/operations/runbook.md";
/// The URL of the runbook in alerts.
const RUNBOOK_URL: &str = "https://github.com/weir-webhooks/weir/blob/main/docs/operations/runbook.md";
/// The page with every metric and its help text.
const REFERENCE: &str = "docs/reference/metrics.md";
const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates");
/// Texts in the sources that begin like metrics: two cookies, and a name that no key may have.
const NOT_METRICS: [&str; 3] = ["weir_api_keys", "weir_flash", "weir_session"];
/// Gauges that several processes report with the same value. A sum would count the value several times.
const CLUSTER_WIDE: [&str; 14] = [
    "weir_backlog_deliveries",
    "weir_dead_letter_destinations",
    "weir_delivery_queue_depth",
    "weir_delivery_queue_oldest_seconds",
    "weir_destinations_behind",
    "weir_destinations_refusing",
    "weir_destinations_slowed",
    "weir_destinations_stalled",
    "weir_in_flight_sends",
    "weir_limit_groups_behind",
    "weir_postgres_slot_bytes",
    "weir_queued_permits",
    "weir_scheduled_jobs",
    "weir_store_bytes",
];

fn promtool(arguments: &[&str], file: &Path) -> anyhow::Result<String> {
    run(Command::new(tool("WEIR_TEST_PROMTOOL")?).args(arguments).arg(file))
}

#[test]
fn prometheus_accepts_the_rules() -> anyhow::Result<()> {
    promtool(&["check", "rules"], &project().join("deploy/prometheus/rules.yaml")).map(drop)
}

#[test]
fn the_rules_pass_their_tests() -> anyhow::Result<()> {
    promtool(&["test", "rules"], &project().join("deploy/prometheus/rules_test.yaml")).map(drop)
}

#[test]
fn prometheus_accepts_every_query_of_the_dashboard() -> anyhow::Result<()> {
    let recorded: Vec<Value> = queries::of_dashboard("1m")?
        .iter()
        .map(|query| serde_json::json!({"record": "panel", "expr": query.expr, "labels": {"of": query.name}}))
        .collect();
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("rules.json");
    // JSON is YAML.
    fs::write(&file, serde_json::json!({"groups": [{"name": "dashboard", "rules": recorded}]}).to_string())?;
    promtool(&["check", "rules"], &file).map(drop)
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> anyhow::Result<()> {
    let mut cases: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let file = yaml("deploy/prometheus/rules_test.yaml")?;
    for case in items(&file, "/tests").iter().flat_map(|test| items(test, "/alert_rule_test")) {
        let (fires, silent) = cases.entry(case["alertname"].as_str().unwrap_or_default().to_owned()).or_default();
        *(if items(case, "/exp_alerts").is_empty() { silent } else { fires }) += 1;
    }
    let alerts: BTreeSet<String> = queries::alerts()?.into_iter().map(|alert| alert.name).collect();
    assert_eq!(cases.keys().cloned().collect::<BTreeSet<_>>(), alerts, "tests on the left, alerts on the right");
    let incomplete: Vec<_> = cases.iter().filter(|(_, (fires, silent))| *fires == 0 || *silent == 0).collect();
    assert!(incomplete.is_empty(), "no case in which it fires, or none in which it does not: {incomplete:?}");
    Ok(())
}

#[test]
fn every_alert_has_a_description_and_a_section_in_the_runbook() -> anyhow::Result<()> {
    let runbook = read(RUNBOOK)?;
    let anchors: BTreeSet<String> = runbook.lines().filter(|line| line.starts_with('#')).map(anchor_of).collect();
    for alert in queries::alerts()? {
        let name = &alert.name;
        assert!(["critical", "warning"].contains(&alert.severity.as_str()), "{name}: {}", alert.severity);
        assert!(!alert.summary.is_empty() && !alert.description.is_empty(), "{name} has no summary or no description");
        let anchor = name.to_lowercase();
        assert_eq!(alert.runbook_url, format!("{RUNBOOK_URL}#{anchor}"));
        assert!(anchors.contains(&anchor), "{RUNBOOK} has no heading {name}");
    }
    Ok(())
}

#[test]
fn every_metric_of_rules_dashboard_and_documents_exists() -> anyhow::Result<()> {
    let mut known = queries::recorded()?;
    known.extend(exported(&sources()?));
    let is_known = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|part| name.strip_suffix(part));
        let foreign = name == "up" || name.starts_with("kube_") || name.starts_with("process_");
        foreign || known.contains(name) || parts.into_iter().any(|histogram| known.contains(histogram))
    };
    let mut unknown: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Query { name, expr } in queries::all("1m")? {
        for metric in queries::metrics_in(&expr).into_iter().filter(|metric| !is_known(metric)) {
            unknown.entry(metric).or_default().push(name.clone());
        }
    }
    let operations = fs::read_dir(project().join("docs/operations"))?.map(|entry| Ok(entry?.path()));
    let pages = operations.chain([Ok(project().join(REFERENCE))]).collect::<anyhow::Result<Vec<_>>>()?;
    for page in pages {
        let text = fs::read_to_string(&page)?;
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        for metric in words.filter(|word| word.starts_with("weir_") && !is_known(word)) {
            unknown.entry(metric.to_owned()).or_default().push(page.display().to_string());
        }
    }
    assert!(unknown.is_empty(), "no source in crates/ exports {unknown:#?}");
    Ok(())
}

#[test]
fn the_reference_has_every_metric_with_its_help_text() -> anyhow::Result<()> {
    let page = read(REFERENCE)?;
    let rows: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `weir_")?.strip_suffix(" |")?.split_once("` | "))
        .filter_map(|(name, rest)| Some((name, rest.split_once(" | ")?.1)))
        .collect();
    let sources = sources()?;
    let exported = exported(&sources);
    // A text may go on in the next line of its source.
    let sources: String = sources.split("\\\n").map(str::trim_start).collect();
    let differing: Vec<_> = rows.iter().filter(|(_, help)| !sources.contains(&format!("\"{help}\""))).collect();
    assert!(differing.is_empty(), "no source has these help texts: {differing:#?}");
    let missing: Vec<_> = exported.iter().filter(|name| !rows.contains_key(&name["weir_".len()..])).collect();
    assert!(missing.is_empty(), "{REFERENCE} lacks {missing:#?}");
    Ok(())
}

#[test]
fn cluster_wide_gauges_are_never_summed() -> anyhow::Result<()> {
    for Query { name, expr } in queries::all("1m")? {
        for gauge in CLUSTER_WIDE {
            for (at, _) in expr.match_indices(gauge) {
                let before = expr[..at].trim_end_matches("min_over_time(");
                let is_maximum = ["max(", "max by (namespace) (", "max by (namespace, cause) ("]
                    .iter()
                    .any(|max| before.ends_with(max));
                assert!(is_maximum, "{name}: {gauge} without max");
            }
        }
    }
    Ok(())
}

#[test]
fn every_panel_has_a_description_a_unit_and_the_chosen_source_and_no_series_per_destination() -> anyhow::Result<()> {
    let dashboard = queries::dashboard()?;
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39));
    let variables: Vec<_> = items(&dashboard, "/templating/list").iter().filter_map(|of| of["name"].as_str()).collect();
    assert_eq!(variables, ["datasource", "namespace", "job", "instance"]);

    let mut ids = BTreeSet::new();
    for panel in queries::panels()? {
        let title = panel["title"].as_str().unwrap_or_default();
        assert!(ids.insert(panel["id"].as_u64()), "{title}: its id is not unique");
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title} has no description");
        assert!(
            panel["type"] == "table" || panel.pointer("/fieldConfig/defaults/unit").is_some(),
            "{title} has no unit"
        );
        for source in items(&panel, "/targets").iter().chain([&panel]) {
            assert_eq!(source["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    for Query { name, expr } in queries::of_dashboard("1m")? {
        // Two gauges count destinations.
        let labels = expr.replace("weir_destinations_", "").replace("weir_dead_letter_destinations", "");
        assert!(!labels.contains("destination"), "{name}: {expr}");
    }
    Ok(())
}

/// The anchor that GitHub makes for a heading.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The sources of every crate, one after the other.
fn sources() -> anyhow::Result<String> {
    let mut text = String::new();
    for crate_folder in fs::read_dir(project().join("crates"))? {
        add_sources(&crate_folder?.path().join("src"), &mut text)?;
    }
    Ok(text)
}

fn add_sources(folder: &Path, text: &mut String) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            add_sources(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The names of metrics in sources: each is a string literal of its own.
fn exported(sources: &str) -> BTreeSet<String> {
    let is_name = |text: &&str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    // The names of crates are log filters.
    let is_crate = |name: &str| Path::new(CRATES).join(name.replace('_', "-")).exists();
    let is_metric = |text: &&str| text.starts_with("weir_") && !NOT_METRICS.contains(text) && !is_crate(text);
    let names = sources.split('"').filter(is_metric);
    names.filter(is_name).map(ToOwned::to_owned).collect()
}

fn items<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
