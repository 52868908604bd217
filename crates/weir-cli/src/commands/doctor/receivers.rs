//! What receivers do: those that fail, refuse, or are slower than their limits.

use weir_api_types::{ActiveAlert, LastFailure, OverviewRow};

use super::{
    super::overview::title,
    evidence::{Evidence, error_of, has_open_breaker, is_behind_a_pause, is_failing},
    finding::{Finding, NAMED, Severity::Note, finding, listed},
};
use crate::output::texts::count;

/// Of an error as much is shown.
const ERROR_CHARS: usize = 120;

/// One finding for each thing that is wrong with receivers.
pub(super) fn receivers(evidence: &Evidence) -> impl Iterator<Item = Finding> {
    let judges: [fn(&Evidence) -> Option<Finding>; 7] =
        [open_breakers, pauses, refused_within_limit, never_drained, failing, slow, dead_letters];
    judges.into_iter().filter_map(|judge| judge(evidence))
}

/// The rows that match, and the first of them. `None`: there are none.
fn matching(evidence: &Evidence, matches: fn(&OverviewRow) -> bool) -> Option<(&OverviewRow, Vec<&OverviewRow>)> {
    let rows: Vec<_> = evidence.rows.iter().filter(|row| matches(row)).collect();
    Some((*rows.first()?, rows))
}

fn last<'e>(evidence: &'e Evidence, row: &OverviewRow) -> Option<&'e LastFailure> {
    evidence.last_failures.get(&row.destination.id)
}

fn errors_of(row: &OverviewRow) -> String {
    format!("weir deliveries list --destination '{}' --state retrying shows", title(&row.destination))
}

fn open_breakers(evidence: &Evidence) -> Option<Finding> {
    let (first, open) = matching(evidence, has_open_breaker)?;
    let reason = first.destination.breaker_reason.as_deref().unwrap_or("it fails");
    // Each may fail in its own way: the resolver, a certificate, the answers.
    let with_error = |row: &&OverviewRow| match last(evidence, row).and_then(error_of) {
        Some(error) => format!("{} ({error})", title(&row.destination)),
        None => title(&row.destination).to_owned(),
    };
    let text = format!("breakers are open: {} ({reason})", listed_texts(open.iter().map(with_error)));
    let next = match common_cause(open.iter().filter_map(|row| last(evidence, row))) {
        Some(cause) => cause.to_owned(),
        None => format!("{} the errors; the owner of the receiver must act", errors_of(first)),
    };
    Some(finding(Note, "receivers", text, next))
}

fn pauses(evidence: &Evidence) -> Option<Finding> {
    let (first, paused) = matching(evidence, is_behind_a_pause)?;
    let since = |row: &&OverviewRow| match evidence.paused_at.get(&row.destination.id) {
        Some(at) => format!("{} (since {at})", title(&row.destination)),
        None => title(&row.destination).to_owned(),
    };
    let text = format!("deliveries wait behind a pause: {}", listed_texts(paused.iter().map(since)));
    let title = title(&first.destination);
    let next = format!("weir activity --destination '{title}' shows who paused it; weir destinations resume '{title}'");
    Some(finding(Note, "receivers", text, next))
}

fn refused_within_limit(evidence: &Evidence) -> Option<Finding> {
    let (first, refused) = matching(evidence, |row| row.refused_within_limit.is_some())?;
    let said = first.refused_within_limit.as_ref()?;
    let text = format!("receivers refuse sends that keep the limit: {}. {}", named(&refused), said.text);
    Some(finding(
        Note,
        "limits",
        text,
        format!("set {} to {} at {}", said.setting, said.value, title(&first.destination)),
    ))
}

/// Of a member that its limit group holds back the finding about the group tells.
fn never_drained(evidence: &Evidence) -> Option<Finding> {
    let (first, never) = matching(evidence, |row| row.drains == Some(false) && row.reason.as_deref() != Some("group"))?;
    let text = format!("more arrives than may be sent, so the backlog never drains: {}", named(&never));
    let next =
        format!("weir preview '{}' --limit N/second shows what another limit would do", title(&first.destination));
    Some(finding(Note, "limits", text, next))
}

fn failing(evidence: &Evidence) -> Option<Finding> {
    let (first, failing) = matching(evidence, is_failing)?;
    let with_error = |row: &&OverviewRow| {
        let title = title(&row.destination);
        match last(evidence, row).and_then(|last| Some((error_of(last)?, last.error.as_deref(), last.at))) {
            // Of a status the error says no more.
            Some((kind, Some(error), at)) if kind.parse::<u16>().is_err() => {
                let error: String = error.chars().take(ERROR_CHARS).collect();
                format!("{title} ({kind} at {at}: {error})")
            }
            Some((kind, _, at)) => format!("{title} ({kind} at {at})"),
            None => title.to_owned(),
        }
    };
    let text = format!("no attempt of the last minute succeeded at {}", listed_texts(failing.iter().map(with_error)));
    let next = format!(
        "{} the errors; timeouts are a receiver that hangs; Weir sends again, and the owner of the receiver must act",
        errors_of(first)
    );
    Some(finding(Note, "receivers", text, next))
}

fn slow(evidence: &Evidence) -> Option<Finding> {
    let (first, slow) = matching(evidence, |row| row.reason.as_deref() == Some("slow"))?;
    let text = format!("receivers answer too slowly for their limits: {}", named(&slow));
    let next = format!(
        "{} whether requests end without an answer; if they are answered, raise max_in_flight as far as the receiver can \
         take more requests at one time",
        errors_of(first)
    );
    Some(finding(Note, "limits", text, next))
}

fn dead_letters(evidence: &Evidence) -> Option<Finding> {
    let (_, rows) = matching(evidence, |row| row.undelivered > 0)?;
    let dead = rows.iter().map(|row| row.undelivered).sum();
    let text = format!("{} at {}", count(dead, "dead letter", "dead letters"), named(&rows));
    let next = "weir deliveries groups shows why; weir replays create sends them again";
    Some(finding(Note, "receivers", text, next))
}

/// What to look at on this side if as many receivers as are looked at fail in the same way: so many rarely fail at the same
/// time by themselves.
pub(super) fn common_cause<'a>(failures: impl Iterator<Item = &'a LastFailure>) -> Option<&'static str> {
    let kinds: Vec<_> = failures.filter_map(|failure| failure.error_kind.as_deref()).collect();
    if kinds.len() < NAMED || kinds.iter().any(|kind| *kind != kinds[0]) {
        return None;
    }
    match kinds[0] {
        "dns" => Some(
            "several names cannot be resolved: look at the resolver of the workers (/etc/resolv.conf, `getent hosts NAME`) before you ask the owners",
        ),
        "connect" | "timeout" => Some(
            "several receivers cannot be reached: look at the outbound network of the workers (firewall, NAT, network policy) before you ask the owners",
        ),
        "tls" => Some(
            "several certificates are refused: look at the clock and the trusted authorities of the workers before you ask the owners",
        ),
        _ => None,
    }
}

/// Receivers that answer many sends with 429, each with what helps.
pub(super) fn refusing(alerts: &[ActiveAlert]) -> Option<Finding> {
    let name = |alert: &ActiveAlert| {
        let name = alert.destination_name.clone().filter(|name| !name.is_empty());
        name.or_else(|| alert.destination_id.clone()).unwrap_or_default()
    };
    let first = alerts.first()?;
    let names: Vec<_> = alerts.iter().map(name).collect();
    let text = format!("receivers answer many sends with 429: {}", listed(names.iter().map(String::as_str)));
    let reason = first.data.reason.as_deref().unwrap_or_default();
    Some(finding(Note, "limits", text, format!("{}: {reason}", name(first))))
}

/// The titles of a few of these.
pub(super) fn named(rows: &[&OverviewRow]) -> String {
    listed(rows.iter().map(|row| title(&row.destination)))
}

fn listed_texts(texts: impl Iterator<Item = String>) -> String {
    let texts: Vec<_> = texts.collect();
    listed(texts.iter().map(String::as_str))
}
