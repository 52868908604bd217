//! `weir tail`: the attempts at one or several destinations, as they end.
//!
//! It polls the list of deliveries, because the server's stream has figures and no deliveries. The list is ordered by the
//! age of the deliveries, newest first, and a poll reads only as far as it finds changes. Old deliveries that are sent
//! now are the oldest ones that waited, so they are found by `to`, the time before which they were created.

use std::{collections::HashMap, time::Duration};

use serde_json::json;
use weir_api_types::{Backlog, Delivery};
use weir_core::Timestamp;

use super::{
    Call,
    client::{ApiError, Client, Fields, Unreachable},
    fields,
    names::Names,
    records::answer,
};
use crate::{
    clock::wall_clock,
    flags::api::TailArgs,
    output::{
        self,
        table::{Cell, Column, Table},
        texts::or_none,
    },
};

const INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause between two tries to reach the server.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The states that an attempt leads to.
const STATES: &str = "delivered,retrying,failed,dead";
/// The most pages that a poll reads. Deliveries beyond them are not shown.
const MAX_PAGES: usize = 5;
/// With more waiting deliveries than this, a poll reads only the oldest deliveries.
const LONG_BACKLOG: u64 = 1_000;
/// How much younger than the oldest waiting delivery the deliveries may be that are sent now: the order is not strict,
/// and the clocks of two machines differ.
const MARGIN: Duration = Duration::from_secs(60);
/// A delivery that was shown is remembered for this long after the latest one.
const MEMORY: Duration = Duration::from_secs(60);

/// Shows attempts until Ctrl-C.
pub(super) async fn run(call: &Call, args: &TailArgs) -> anyhow::Result<()> {
    let mut followed: Vec<Followed> = Vec::with_capacity(args.destinations.len());
    for named in &args.destinations {
        let id = call.client.destination_id(named).await?;
        // A destination may be named twice, by its name and by its id.
        if followed.iter().all(|known| known.id != id) {
            followed.push(Followed { id, shown: Shown::default() });
        }
    }
    let names = match followed.len() {
        1 => Names::default(),
        _ => Names::of(&call.client, followed.iter().map(|followed| followed.id.as_str())).await,
    };
    let follow = async {
        let mut tail = Tail { call, followed, names, has_headings: false };
        let mut attempts = tail.poll().await?;
        // The first poll finds the history, of which only the end is shown.
        let first = attempts.len().saturating_sub(args.lines);
        tail.print(attempts.split_off(first))?;
        let mut pause = INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            match tail.poll().await {
                Ok(attempts) => {
                    if pause != INTERVAL {
                        eprintln!("The server answers again.");
                    }
                    pause = INTERVAL;
                    tail.print(attempts)?;
                }
                Err(error) if may_pass(&error) => {
                    if pause == INTERVAL {
                        eprintln!("{error:#}; trying again until it answers");
                    }
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                Err(error) => return Err(error),
            }
        }
    };
    tokio::select! {
        ended = follow => ended,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// Whether a later try may succeed.
fn may_pass(error: &anyhow::Error) -> bool {
    error.is::<Unreachable>() || error.is::<ApiError>()
}

struct Tail<'a> {
    call: &'a Call,
    followed: Vec<Followed>,
    /// The names of several destinations.
    names: Names,
    has_headings: bool,
}

/// A destination, and what was shown of it.
struct Followed {
    id: String,
    shown: Shown,
}

/// A delivery and its JSON.
type Attempted = (Delivery, String);

impl Tail<'_> {
    /// The deliveries that have changed since the last poll, in the order of their changes.
    async fn poll(&mut self) -> anyhow::Result<Vec<Attempted>> {
        let mut changed = Vec::new();
        for followed in &mut self.followed {
            changed.extend(followed.poll(&self.call.client).await?);
        }
        changed.sort_by_key(|(delivery, _)| delivery.updated_at);
        Ok(changed)
    }

    fn print(&mut self, attempts: Vec<Attempted>) -> anyhow::Result<()> {
        if self.call.json {
            // One object per line, as programs read streams.
            return attempts.iter().try_for_each(|(_, text)| output::print(text));
        }
        let headings = !std::mem::replace(&mut self.has_headings, true);
        if attempts.is_empty() && !headings {
            return Ok(());
        }
        let table = table(self.followed.len() == 1);
        let table = if headings { table } else { table.without_headings() };
        let rows = attempts.into_iter().map(|(delivery, _)| row(delivery, &self.names));
        output::print(&table.with(rows).render(self.call.screen))
    }
}

impl Followed {
    async fn poll(&mut self, client: &Client) -> anyhow::Result<Vec<Attempted>> {
        let path = ["v1", "destinations", &self.id, "backlog"];
        let backlog = client.get(&path, &Fields::new()).await?.read()?;
        // At the start only the end of the history is shown, so one page is enough.
        let pages = if self.shown.is_empty() { 1 } else { MAX_PAGES };
        let mut changed = Vec::new();
        for to in windows(&backlog, wall_clock()) {
            let query = json!({"destination": self.id, "state": STATES, "to": to, "limit": 200});
            changed.extend(self.changed(client, fields(&query)?, pages).await?);
        }
        self.shown.forget_old();
        Ok(changed)
    }

    /// The deliveries of a list that have changed, from the first page to the one with a delivery that was shown: what
    /// follows it was there before.
    async fn changed(&mut self, client: &Client, mut query: Fields, pages: usize) -> anyhow::Result<Vec<Attempted>> {
        let mut changed = Vec::new();
        for _ in 0..pages {
            let page = client.page(&["v1", "deliveries"], &query).await?;
            let mut has_known = false;
            for (delivery, text) in page.rows.read::<Delivery>()?.into_iter().zip(page.rows.texts()) {
                if self.shown.add(&delivery) {
                    changed.push((delivery, text.to_owned()));
                } else {
                    has_known = true;
                }
            }
            match page.next_cursor {
                Some(cursor) if !has_known => query.insert("cursor".to_owned(), cursor.into()),
                _ => break,
            };
        }
        Ok(changed)
    }
}

/// The deliveries that have been shown, with the number of their attempts and their state at that time.
#[derive(Debug, Default)]
struct Shown {
    attempts: HashMap<String, (u32, String, Timestamp)>,
    /// Deliveries that changed before this instant are not shown any more: they have been shown, or are history.
    since: Timestamp,
}

impl Shown {
    fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Remembers a delivery. Returns whether it has changed.
    fn add(&mut self, delivery: &Delivery) -> bool {
        let known = self.attempts.get(&delivery.id);
        let is_new = known.map_or(delivery.updated_at > self.since, |(attempts, state, _)| {
            (*attempts, state) != (delivery.attempt_count, &delivery.state)
        });
        if is_new {
            let known = (delivery.attempt_count, delivery.state.clone(), delivery.updated_at);
            self.attempts.insert(delivery.id.clone(), known);
        }
        is_new
    }

    /// Forgets deliveries that changed long before the latest one. `since` keeps them from being shown again.
    fn forget_old(&mut self) {
        let latest = self.attempts.values().map(|(_, _, updated_at)| *updated_at).max();
        self.since = latest.map_or(self.since, |latest| latest.before(MEMORY));
        let since = self.since;
        self.attempts.retain(|_, (_, _, updated_at)| *updated_at > since);
    }
}

/// The parts of the list that may have changed. Each part has the deliveries that were created before a time; `None`:
/// before now. With a long backlog only the oldest deliveries are sent. Otherwise new deliveries are sent, and old ones
/// that were retried or replayed.
fn windows(backlog: &Backlog, now: Timestamp) -> Vec<Option<Timestamp>> {
    let oldest = backlog.oldest_age_s.and_then(|age_s| Duration::try_from_secs_f64(age_s).ok()).unwrap_or_default();
    let front = Some(now.before(oldest) + MARGIN);
    if backlog.pending + backlog.retrying > LONG_BACKLOG {
        vec![front]
    } else if oldest > MARGIN * 2 {
        vec![None, front]
    } else {
        vec![None]
    }
}

pub(super) fn table(is_of_one: bool) -> Table<7> {
    Table::new([
        Column::text("time").at_least(8),
        Column::text("state").at_least(9),
        Column::text("answer").at_least(6),
        Column::number("try").at_least(3),
        Column::text("destination").flexible().at_least(12).hidden_if(is_of_one),
        Column::text("delivery").at_least(30),
        Column::text("event type").flexible().optional(),
    ])
}

pub(super) fn row(delivery: Delivery, names: &Names) -> [Cell; 7] {
    // The time of day, of `2026-11-26T04:30:00.000Z`.
    let at = delivery.updated_at.to_string();
    let time = at.split(['T', '.']).nth(1).unwrap_or_default().to_owned();
    let (state, answer) = (Cell::state(&delivery.state), or_none(answer(&delivery)));
    let destination = names.title(&delivery.destination_id);
    [
        time.into(),
        state,
        answer.into(),
        delivery.attempt_count.into(),
        destination.into(),
        delivery.id.into(),
        delivery.event_type.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn delivery(id: &str, attempts: u32, state: &str, updated_at: Timestamp) -> Delivery {
        let delivery = json!({
            "id": id, "event_id": "evt_1", "event_type": "a", "destination_id": "dst_1", "state": state,
            "attempt_count": attempts, "created_at": NOW, "updated_at": updated_at,
        });
        serde_json::from_value(delivery).unwrap()
    }

    #[test]
    fn each_attempt_is_shown_once() {
        let mut shown = Shown::default();
        let first = delivery("dlv_1", 1, "retrying", NOW);
        assert!(shown.add(&first));
        assert!(!shown.add(&first));
        assert!(shown.add(&delivery("dlv_1", 2, "delivered", NOW)));
        // A forgotten delivery is too old to count as new.
        assert!(shown.add(&delivery("dlv_2", 1, "delivered", NOW + MEMORY)));
        shown.forget_old();
        assert_eq!(shown.attempts.len(), 1);
        assert!(!shown.add(&first));
    }

    #[test]
    fn the_front_of_an_old_backlog_is_read_and_of_a_long_one_only_the_front() {
        let windows = |pending: u64, oldest_age_s: f64| {
            let backlog = json!({
                "pending": pending, "retrying": 0, "delivering": 0, "oldest_age_s": oldest_age_s, "achieved_per_s": 1.0,
                "arrivals_per_s": 0.0, "drain_eta_s": null, "drains": null,
            });
            windows(&serde_json::from_value(backlog).unwrap(), NOW)
        };
        let front = Some(NOW - Duration::from_secs(540));
        assert_eq!(windows(1_000, 60.0), [None]);
        assert_eq!(windows(1_000, 600.0), [None, front]);
        assert_eq!(windows(1_001, 600.0), [front]);
    }
}
