//! The queries of the rules and of the dashboard, ready to run, and the metrics in them.
//!
//! The variables of Grafana are replaced: each variable by a pattern that matches everything, and `$__rate_interval` by
//! the caller's value.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{read, yaml};

const RULES: &str = "deploy/prometheus/rules.yaml";
const DASHBOARD: &str = "deploy/grafana/weir.json";

/// One query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The name in error messages: the alert, the recorded series, or the panel and the id of the query.
    pub name: String,
    pub expr: String,
}

/// The labels and annotations of an alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    pub name: String,
    pub severity: String,
    pub summary: String,
    pub description: String,
    pub runbook_url: String,
}

/// Every query: first those of the recording rules and alerts, then those of the dashboard.
pub fn all(rate_interval: &str) -> anyhow::Result<Vec<Query>> {
    Ok([of_rules()?, of_dashboard(rate_interval)?].concat())
}

/// The queries of `deploy/prometheus/rules.yaml`, recording rules and alerts.
pub fn of_rules() -> anyhow::Result<Vec<Query>> {
    let query = |rule: &Value| {
        let name = rule
            .get("alert")
            .or_else(|| rule.get("record"))
            .and_then(Value::as_str)
            .context("a rule without a name")?;
        Ok(Query { name: name.to_owned(), expr: text(rule, "expr")?.to_owned() })
    };
    rules()?.iter().map(query).collect()
}

/// The names of the series of the recording rules.
pub fn recorded() -> anyhow::Result<BTreeSet<String>> {
    let rules = rules()?;
    Ok(rules.iter().filter_map(|rule| rule.get("record")?.as_str()).map(ToOwned::to_owned).collect())
}

/// The alerts of `deploy/prometheus/rules.yaml`.
pub fn alerts() -> anyhow::Result<Vec<Alert>> {
    let rules = rules()?;
    let alerts = rules.iter().filter(|rule| rule.get("alert").is_some());
    alerts
        .map(|rule| {
            let name = text(rule, "alert")?.to_owned();
            let of = |part: &str, key: &str| {
                let value = rule.get(part).context(part.to_owned()).and_then(|part| text(part, key));
                value.map(ToOwned::to_owned).with_context(|| name.clone())
            };
            Ok(Alert {
                severity: of("labels", "severity")?,
                summary: of("annotations", "summary")?,
                description: of("annotations", "description")?,
                runbook_url: of("annotations", "runbook_url")?,
                name,
            })
        })
        .collect()
}

/// The queries of `deploy/grafana/weir.json`.
pub fn of_dashboard(rate_interval: &str) -> anyhow::Result<Vec<Query>> {
    let mut queries = Vec::new();
    for panel in panels()? {
        let title = text(&panel, "title")?;
        for target in array(&panel, "targets")? {
            let name = format!("panel {title:?}, query {}", text(target, "refId")?);
            queries.push(Query { name, expr: filled_in(text(target, "expr")?, rate_interval)? });
        }
    }
    Ok(queries)
}

/// The panels of the dashboard, without the headings between them.
pub fn panels() -> anyhow::Result<Vec<Value>> {
    let dashboard = dashboard()?;
    let panels = array(&dashboard, "panels")?.iter();
    Ok(panels.filter(|panel| panel["type"] != "row").cloned().collect())
}

pub fn dashboard() -> anyhow::Result<Value> {
    serde_json::from_str(&read(DASHBOARD)?).context(DASHBOARD)
}

/// The metrics in a query.
pub fn metrics_in(expr: &str) -> BTreeSet<String> {
    // Every second part is a string literal, in which braces have no meaning.
    let without_texts: String = expr.split('"').step_by(2).collect();
    let mut names = BTreeSet::new();
    let mut rest = without_texts.as_str();
    while let Some(next) = rest.chars().next() {
        rest = match next {
            // Selectors, ranges and numbers hold no names of metrics.
            '{' => after(rest, '}'),
            '[' => after(rest, ']'),
            '0'..='9' | '.' => rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.'),
            'a'..='z' | 'A'..='Z' | '_' => {
                // A word is a metric, unless it is a keyword or takes arguments.
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
                let (word, following) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
                let following = following.trim_start();
                let takes_arguments =
                    ["(", "by ", "by(", "without ", "without("].iter().any(|it| following.starts_with(it));
                match word {
                    // Labels follow.
                    "by" | "without" | "on" | "ignoring" | "group_left" | "group_right"
                        if following.starts_with('(') =>
                    {
                        after(following, ')')
                    }
                    "and" | "or" | "unless" | "bool" | "offset" | "group_left" | "group_right" => following,
                    _ if takes_arguments => following,
                    metric => {
                        names.insert(metric.to_owned());
                        following
                    }
                }
            }
            other => &rest[other.len_utf8()..],
        };
    }
    names
}

/// Every rule of every group.
fn rules() -> anyhow::Result<Vec<Value>> {
    let file = yaml(RULES)?;
    let mut rules = Vec::new();
    for group in array(&file, "groups")? {
        rules.extend_from_slice(array(group, "rules")?);
    }
    Ok(rules)
}

fn filled_in(expr: &str, rate_interval: &str) -> anyhow::Result<String> {
    let mut expr = expr.replace("$__rate_interval", rate_interval);
    for variable in ["namespace", "job", "instance"] {
        expr = expr.replace(&format!("${{{variable}}}"), ".*").replace(&format!("${variable}"), ".*");
    }
    ensure!(!expr.contains('$'), "unknown variable: {expr}");
    Ok(expr)
}

/// The text after the next `end`.
fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

fn text<'v>(value: &'v Value, key: &str) -> anyhow::Result<&'v str> {
    value.get(key).and_then(Value::as_str).with_context(|| format!("no {key} in {value}"))
}

fn array<'v>(value: &'v Value, key: &str) -> anyhow::Result<&'v Vec<Value>> {
    value.get(key).and_then(Value::as_array).with_context(|| format!("no {key} in {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(expr: &str) -> Vec<String> {
        metrics_in(expr).into_iter().collect()
    }

    #[test]
    fn metrics_are_distinguished_from_functions_labels_and_numbers() {
        let share = r#"sum by (le, up) (rate(a_total{b="c_total", d=~"x{2}"}[5m])) / on (e) group_left (f) max(g:h:rate5m) > 14.4"#;
        assert_eq!(names(share), ["a_total", "g:h:rate5m"]);
        assert_eq!(names("avg_over_time(max by (n) (x)[5m:30s]) or vector(0) unless y == 1e3"), ["x", "y"]);
    }

    #[test]
    fn known_variables_are_replaced_and_unknown_ones_refused() {
        let filled = filled_in(r#"rate(a{job=~"$job", i=~"${instance}"}[$__rate_interval])"#, "1m").unwrap();
        assert_eq!(filled, r#"rate(a{job=~".*", i=~".*"}[1m])"#);
        assert!(filled_in(r#"a{pod="$pod"}"#, "1m").is_err());
    }
}
