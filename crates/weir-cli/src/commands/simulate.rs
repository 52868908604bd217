//! `weir simulate`: what other limits would have done with the recorded deliveries of a destination.

use std::time::Duration;

use serde_json::{Value, json};
use weir_api_types::{RateLimit, Simulation};

use super::{Call, fields, preview};
use crate::{
    flags::watch::SimulateArgs,
    output::{
        Screen,
        table::{Cell, Column, Table, Tone},
        texts::{NONE, count},
    },
};

pub(super) async fn run(call: &Call, args: SimulateArgs) -> anyhow::Result<()> {
    let id = call.client.destination_id(&args.tried.destination).await?;
    let mut body = preview::tried(&args.tried)?;
    body.extend(fields(&args.past)?);
    if args.no_failures {
        body.insert("failures".to_owned(), json!("none"));
    }
    let target = args.target_p99.map_or(Duration::from_secs(60), |target| target.0);
    body.insert("target".to_owned(), json!({"latency_p99_ms": target.as_millis() as u64}));
    let body = Value::Object(body).to_string();
    let answer = call.client.post(&["v1", "destinations", &id, "simulate"], Some(&body)).await?;
    call.print(&answer, |simulation| text(&simulation, target, call.screen))
}

fn text(simulation: &Simulation, target: Duration, screen: Screen) -> String {
    let Simulation { from, to, deliveries, backlog_end, would_expire, verdict, .. } = simulation;
    if *deliveries == 0 {
        return format!("Nothing was due from {from} to {to}.");
    }
    let played = count(*deliveries, "delivery", "deliveries");
    let waiting = count(*backlog_end, "delivery would wait", "deliveries would wait");
    let mut lines = vec![match &**verdict {
        "grows" => format!("The backlog would have grown: {waiting} at the end."),
        _ if *backlog_end == 0 => format!("All {played} would have been sent."),
        _ => format!("The backlog would have drained; {waiting} at the end."),
    }];
    if *would_expire > 0 {
        lines.push(format!("{} unsent.", count(*would_expire, "delivery would expire", "deliveries would expire")));
    }
    lines.extend([String::new(), table().with(rows(simulation)).render(screen), String::new()]);
    for limit in &simulation.rate_limits {
        let used = limit.utilisation.map_or_else(|| NONE.to_owned(), |used| format!("{:.0} %", used * 100.0));
        lines.push(format!("{}/{} would have been used to {used}.", limit.limit, limit.period));
    }
    let within = time(Some(target.as_secs_f64() * 1_000.0));
    lines.push(match &simulation.smallest_limit {
        Some(RateLimit { limit, period, .. }) => {
            format!("The smallest limit that gets 99 of 100 answered within {within}: {limit}/{period}.")
        }
        None => format!("No limit gets 99 of 100 answered within {within}."),
    });
    lines.push(format!("{played} from {from} to {to}."));
    lines.push("Nothing was changed.".to_owned());
    if simulation.ignores_key_limits {
        lines.push(
            "The limits of single keys were not played: what waits for them is really sent later than here.".to_owned(),
        );
    }
    if simulation.truncated {
        lines.push("There were more deliveries than can be tried: only the latest are counted.".to_owned());
    }
    lines.join("\n")
}

fn table() -> Table<7> {
    Table::new([
        Column::text(""),
        Column::number("p50"),
        Column::number("p95"),
        Column::number("p99"),
        Column::number("max"),
        Column::number("most waiting").or("most"),
        Column::number("at the end").or("end"),
    ])
}

fn rows(simulation: &Simulation) -> [[Cell; 7]; 2] {
    let Simulation { latency_ms, recorded_latency_ms, series, backlog_max, backlog_end, verdict, .. } = simulation;
    let most = series.iter().map(|point| point.recorded_backlog).max().unwrap_or(0);
    let last = series.last().map_or(0, |point| point.recorded_backlog);
    let tone = if verdict == "grows" { Tone::Bad } else { Tone::Plain };
    [
        ("recorded", recorded_latency_ms, most, last.into()),
        ("tried", latency_ms, backlog_max.count, Cell::toned(&backlog_end.to_string(), tone)),
    ]
    .map(|(title, times, most, end)| {
        let [p50, p95, p99, max] = [times.p50, times.p95, times.p99, times.max].map(|ms| time(ms).into());
        [title.into(), p50, p95, p99, max, most.into(), end]
    })
}

/// A latency in its largest units.
fn time(ms: Option<f64>) -> String {
    let time = ms.map(|ms| weir_core::time::InWords(Duration::from_micros((ms * 1_000.0) as u64)).to_string());
    time.unwrap_or_else(|| NONE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::texts::width;

    fn simulation(changes: Value) -> Simulation {
        let at = "2026-11-21T07:30:00.000Z";
        let point = json!({"at": at, "due": 9, "sent": 9, "backlog": 9, "recorded_backlog": 4});
        let mut simulation = json!({
            "from": at, "to": "2026-11-22T07:30:00.000Z", "deliveries": 1_000_000, "truncated": true,
            "backlog_max": {"at": at, "count": 999_999}, "backlog_end": 0, "would_expire": 0, "drained_at": at,
            "latency_ms": {"p50": 41.0, "p95": 2_500.0, "p99": 86_399_000.0, "max": 864_000_000.0},
            "recorded_latency_ms": {"p50": 41.0, "p95": 50.0, "p99": 60.0, "max": 70.0}, "verdict": "drains",
            "rate_limits": [{"limit": 20, "period": "second", "burst": 1, "utilisation": 0.984}], "series": [point],
            "smallest_limit": {"limit": 14, "period": "second", "burst": 1, "margin_ms": 0},
        });
        simulation.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(simulation).unwrap()
    }

    fn shown(changes: Value) -> String {
        text(&simulation(changes), Duration::from_secs(60), Screen { width: Some(80), colours: false, moves: false })
    }

    #[test]
    fn the_answer_comes_first_and_fits_80_columns() {
        let drains = shown(json!({}));
        assert!(drains.starts_with("All 1000000 deliveries would have been sent.\n"), "{drains}");
        assert!(drains.contains("gets 99 of 100 answered within 1 min: 14/second."));
        let long = json!({"verdict": "grows", "backlog_end": 999_999, "would_expire": 999_999, "smallest_limit": null});
        let grows = shown(long);
        assert!(grows.starts_with("The backlog would have grown: 999999 deliveries would wait at the end.\n999999"));
        assert!(grows.contains("No limit gets 99 of 100 answered within"), "{grows}");
        for text in [drains, grows] {
            assert!(text.lines().all(|line| width(line) <= 80), "{text}");
        }
    }

    #[test]
    fn both_rows_have_the_same_figures() {
        let text = shown(json!({"truncated": false}));
        let row = |title: &str| text.lines().find(|line| line.starts_with(title)).unwrap().to_owned();
        assert_eq!(
            row("recorded").split_whitespace().collect::<Vec<_>>(),
            "recorded 41 ms 50 ms 60 ms 70 ms 4 4".split(' ').collect::<Vec<_>>()
        );
        assert!(row("tried").contains("999999") && row("tried").contains("2.5 s"), "{text}");
    }

    #[test]
    fn an_empty_past_is_said_to_be_empty() {
        assert!(shown(json!({"deliveries": 0})).starts_with("Nothing was due from 2026-11-21"));
    }
}
