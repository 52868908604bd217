//! `weir overview`: the destinations, what waits, how fast it is sent, and why not faster.

use weir_api_types::{BriefDestination, Overview, OverviewRow, OverviewTotals};

use super::{
    Call, fields,
    records::{in_force, minute},
};
use crate::{
    flags::watch::{OverviewArgs, OverviewFilter},
    output::{
        self,
        table::{Cell, Column, Table, Tone},
        texts::{NONE, count, or_none, rate, span_s},
    },
};

pub(super) const PATH: [&str; 2] = ["v1", "overview"];

pub(super) async fn run(call: &Call, args: OverviewArgs) -> anyhow::Result<()> {
    let rows = call.list(&PATH, &fields(&args.filter)?, args.page).await?;
    call.print_rows(&rows, table(), row)?;
    if call.json {
        return Ok(());
    }
    let totals = totals(call, &args.filter).await?;
    output::show(&format!("\n{}; {}", backlog_text(&totals), rates_text(&totals)), call.screen)
}

async fn totals(call: &Call, filter: &OverviewFilter) -> anyhow::Result<OverviewTotals> {
    let query = fields(&serde_json::json!({"tenant": filter.tenant, "limit": 1}))?;
    let overview: Overview = call.client.get(&PATH, &query).await?.read()?;
    Ok(overview.totals)
}

pub(super) fn backlog_text(totals: &OverviewTotals) -> String {
    let destinations = count(totals.destinations, "destination", "destinations");
    let letters = count(totals.undelivered, "dead letter", "dead letters");
    format!("{destinations}: {} waiting, {letters}", totals.backlog)
}

pub(super) fn rates_text(totals: &OverviewTotals) -> String {
    format!("{}/s sent, {}/s arriving", rate(totals.achieved_per_s), rate(totals.arrivals_per_s))
}

pub(super) fn table() -> Table<10> {
    Table::new([
        Column::text("destination").flexible(),
        Column::number("waiting"),
        Column::number("oldest"),
        Column::number("sent/s"),
        Column::text("limit").flexible().optional(),
        Column::number("used").optional(),
        Column::text("drained"),
        Column::number("dead letters").or("letters"),
        Column::text("why not faster").or("why").flexible(),
        Column::text("tenant").flexible().optional(),
    ])
}

pub(super) fn row(row: OverviewRow) -> [Cell; 10] {
    let (why, tone) = why(&row);
    let used = row.utilisation.map(|share| format!("{:.0}%", share * 100.0));
    let drained = drained(&row);
    let destination = &row.destination;
    let limits = in_force(&destination.rate_limits, destination.min_interval_ms, destination.overridden.as_ref());
    [
        title(&row.destination).into(),
        row.backlog.into(),
        or_none(row.oldest_age_s.map(span_s)).into(),
        rate(row.achieved_per_s).into(),
        limits.into(),
        or_none(used).into(),
        drained,
        row.undelivered.into(),
        Cell::toned(&why, tone),
        row.destination.tenant.into(),
    ]
}

pub(super) fn title(destination: &BriefDestination) -> &str {
    if destination.name.is_empty() { &destination.id } else { &destination.name }
}

fn drained(row: &OverviewRow) -> Cell {
    match (row.backlog, row.drain_eta_s, row.drains) {
        (0, ..) => NONE.into(),
        (_, _, Some(false)) => Cell::toned("never", Tone::Bad),
        _ if row.destination.paused || row.destination.breaker_state == "open" => "stopped".into(),
        (_, Some(eta), _) => format!("in {}", span_s(eta.ceil())).into(),
        _ => "unknown".into(),
    }
}

/// In words, why the backlog is not sent faster, or why nothing would be sent.
pub(super) fn why(row: &OverviewRow) -> (String, Tone) {
    let destination = &row.destination;
    let because = |word: &str, reason: &Option<String>| match reason {
        Some(reason) => format!("{word}: {reason}"),
        None => word.to_owned(),
    };
    if destination.paused {
        return (because("paused", &destination.paused_reason), Tone::Waiting);
    }
    match destination.breaker_state.as_str() {
        "open" => return (because("breaker open", &destination.breaker_reason), Tone::Bad),
        "half_open" => return (because("probing", &destination.breaker_reason), Tone::Waiting),
        _ => {}
    }
    if let Some(refused) = &row.refused_within_limit {
        return (format!("refused: {}", refused.text), Tone::Bad);
    }
    if let Some(until) = destination.held_until {
        return (because(&format!("held until {}", minute(until)), &destination.held_reason), Tone::Waiting);
    }
    match row.reason.as_deref() {
        None => (NONE.to_owned(), Tone::Plain),
        Some("failing") => ("its attempts fail".to_owned(), Tone::Bad),
        Some("slow") => (format!("slow receiver, {} in flight", destination.max_in_flight), Tone::Waiting),
        Some("ordered") => ("order of keys".to_owned(), Tone::Plain),
        Some("group") => ("its share of its limit group".to_owned(), Tone::Plain),
        Some("held") => ("its limit group is held".to_owned(), Tone::Waiting),
        Some("key") => ("the limits of its keys".to_owned(), Tone::Plain),
        Some("adaptive") => {
            let detail = row.adaptive_rate.as_ref().map(|pace| pace.detail.clone());
            (because("its adaptive pace", &detail), Tone::Plain)
        }
        Some("limit") => ("its limit".to_owned(), Tone::Plain),
        Some(other) => (other.replace('_', " "), Tone::Plain),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A row with these changes of the destination and of the figures.
    pub(crate) fn overview_row(destination: &Value, figures: &Value) -> OverviewRow {
        let mut brief = json!({
            "id": "dst_1", "name": "Acme", "url": "https://a.example/", "tenant": "default",
            "rate_limits": [{"limit": 10, "period": "second", "burst": 1, "margin_ms": 0}], "max_in_flight": 64,
            "ordered": false, "paused": false, "breaker_state": "closed",
        });
        brief.as_object_mut().unwrap().extend(destination.as_object().unwrap().clone());
        let mut row = json!({
            "destination": brief, "pending": 90, "retrying": 10, "delivering": 0, "undelivered": 2, "backlog": 100,
            "oldest_age_s": 75.5, "configured_per_s": 10.0, "effective_per_s": 9.9, "achieved_per_s": 9.9,
            "arrivals_per_s": 1.0, "utilisation": 0.99, "drain_eta_s": 11.2, "drains": true, "reason": "limit",
        });
        row.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn the_reason_is_in_words_and_the_strongest_one() {
        let why = |destination: Value, figures: Value| why(&overview_row(&destination, &figures)).0;
        assert_eq!(why(json!({}), json!({})), "its limit");
        assert_eq!(why(json!({}), json!({"reason": null})), "–");
        assert_eq!(why(json!({}), json!({"reason": "failing"})), "its attempts fail");
        assert_eq!(why(json!({}), json!({"reason": "slow"})), "slow receiver, 64 in flight");
        assert_eq!(why(json!({}), json!({"reason": "key"})), "the limits of its keys");
        let open = json!({"breaker_state": "open", "breaker_reason": "10 failures in a row"});
        assert_eq!(why(open, json!({"reason": "breaker"})), "breaker open: 10 failures in a row");
        let paused = json!({"paused": true, "paused_reason": "by olga", "breaker_state": "open"});
        assert_eq!(why(paused, json!({})), "paused: by olga");
        assert_eq!(why(json!({}), json!({"reason": "store_slow"})), "store slow");
        assert_eq!(why(json!({}), json!({"reason": "held"})), "its limit group is held");
        let held = json!({"held_until": "2026-11-28T10:36:48.000Z", "held_reason": "their maintenance"});
        let expected = "held until 10:36 UTC on 2026-11-28: their maintenance";
        assert_eq!(why(held, json!({"reason": "held"})), expected);
    }

    #[test]
    fn a_backlog_that_never_drains_says_so() {
        let drained =
            |figures: Value| Table::new([Column::text("")]).with([[drained(&overview_row(&json!({}), &figures))]]);
        let text = |figures| drained(figures).render(output::Screen::PLAIN);
        assert!(text(json!({"drains": false, "drain_eta_s": null})).contains("never"));
        assert!(text(json!({})).contains("in 12s"));
        assert!(text(json!({"backlog": 0})).contains('–'));
        assert!(text(json!({"drains": null, "drain_eta_s": null})).contains("unknown"));
    }
}
