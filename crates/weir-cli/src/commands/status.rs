//! `weir status`: the processes, the store, the queue and the backlog of an installation. Its exit code is that of
//! `weir doctor`, so that scripts may ask either.

use weir_api_types::{Backend, InstallationStatus, LimitGroupRow, Overview, Process, QueueDepths};
use weir_core::Timestamp;

use super::{
    Call,
    client::Fields,
    doctor::{
        self, Evidence,
        clocks::{CLOCK_NOTE_S, offset},
    },
    limit_groups::held_back,
    overview, settings,
};
use crate::{
    exit::Exit,
    output::{
        Screen,
        table::{Cell, Column, Table, Tone},
        texts::{NONE, age, count, or_none},
    },
};

/// The limit groups that are shown: `weir limit-groups list` has all.
const SHOWN_GROUPS: usize = 5;

pub(super) async fn run(call: &Call) -> anyhow::Result<Exit> {
    let mut evidence = Evidence::default();
    let answer = evidence.ask(call).await?;
    evidence.look(call).await?;
    let (exit, problems) = doctor::judged(&evidence);
    if call.json {
        call.print(&answer, |_: InstallationStatus| String::new())?;
        return Ok(exit);
    }
    let query = Fields::from_iter([("limit".to_owned(), 1.into())]);
    // While the store is away there is no overview.
    let overview = call.client.get(&overview::PATH, &query).await.and_then(|answer| answer.read::<Overview>()).ok();
    call.print(&answer, |status| text(&status, overview.as_ref(), &evidence.groups, problems, call.screen))?;
    Ok(exit)
}

fn text(
    status: &InstallationStatus,
    overview: Option<&Overview>,
    groups: &[LimitGroupRow],
    problems: usize,
    screen: Screen,
) -> String {
    let mut lines = vec![("store", backend(&status.store)), ("queue", backend(&status.queue))];
    if let Some(depths) = &status.queue_depths {
        let QueueDepths { jobs, ready, queued, in_flight, .. } = depths;
        lines.push(("queued", format!("{jobs} jobs, {ready} untaken, {queued} without a slot, {in_flight} in flight")));
    }
    if let Some(Overview { totals, .. }) = overview {
        lines.push(("backlog", overview::backlog_text(totals)));
        lines.push(("traffic", overview::rates_text(totals)));
    }
    lines.extend(status.outage.as_ref().map(|outage| ("outage", format!("{}, since {}", outage.reason, outage.since))));
    // Those that hold their members back.
    lines.extend(groups.iter().filter_map(held_back).take(SHOWN_GROUPS).map(|text| ("limit group", text)));
    if problems > 0 {
        let problems = count(problems as u64, "problem", "problems");
        lines.push(("verdict", format!("{problems}: `weir doctor` says the cause and the next step")));
    }
    let heading = format!("Weir {} at {}", status.version, status.as_of);
    let processes = match &status.processes {
        None => "The processes are unknown while the store cannot be reached.".to_owned(),
        Some(processes) => table().with(processes.iter().map(|process| row(process, status.as_of))).render(screen),
    };
    format!("{heading}\n{}\n\n{processes}", settings::render(&lines, screen))
}

fn backend(backend: &Backend) -> String {
    match (backend.is_reachable, backend.answered_in_ms) {
        (true, Some(ms)) => format!("{}, answers in {ms:.1} ms", backend.kind),
        (true, None) => backend.kind.clone(),
        (false, _) => match &backend.obstacle {
            Some(obstacle) => format!("{}, CANNOT BE USED: {obstacle}", backend.kind),
            None => format!("{}, DOES NOT ANSWER", backend.kind),
        },
    }
}

pub(super) fn table() -> Table<6> {
    Table::new([
        Column::number("process"),
        Column::text("role"),
        Column::text("host").flexible(),
        Column::text("version"),
        Column::text("clock"),
        Column::number("up for"),
    ])
}

pub(super) fn row(process: &Process, now: Timestamp) -> [Cell; 6] {
    let clock = match process.clock_ahead_s {
        None => NONE.into(),
        Some(ahead) if ahead.abs() < CLOCK_NOTE_S => "right".into(),
        Some(ahead) => Cell::toned(&offset(ahead), Tone::Bad),
    };
    [
        process.id.into(),
        or_none(process.role.as_deref()).into(),
        or_none(process.host.as_deref()).into(),
        or_none(process.version.as_deref()).into(),
        clock,
        process.started_at.map_or_else(|| NONE.to_owned(), |at| age(at, now)).into(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_fits_a_terminal_and_says_what_is_away() {
        let status = json!({
            "as_of": "2026-11-26T04:30:00.000Z", "version": "0.1.0",
            "store": {"kind": "postgres", "is_reachable": true, "answered_in_ms": 1.26},
            "queue": {"kind": "redis", "is_reachable": false, "answered_in_ms": null},
            "queue_depths": null,
            "outage": {"cause": "queue_away", "reason": "Redis is away", "since": "2026-11-26T04:10:00.000Z"},
            "processes": [{
                "id": 7, "role": "worker", "version": "0.1.0", "host": "a-pod-with-a-very-long-name-as-kubernetes-makes-them-for-every-replica-set",
                "started_at": "2026-11-26T04:00:00.000Z", "clock_ahead_s": 40.04,
            }],
        });
        let screen = Screen { width: Some(80), ..Screen::PLAIN };
        let text = text(&serde_json::from_value(status).unwrap(), None, &[], 2, screen);
        for part in [
            "40.0 s ahead",
            "2 problems: `weir doctor`",
            "postgres, answers in 1.3 ms",
            "redis, DOES NOT ANSWER",
            "Redis is away, since",
            "worker",
            "30m",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
