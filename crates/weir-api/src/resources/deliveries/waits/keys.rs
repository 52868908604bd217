//! The order and the pace of the deliveries of one limit key.
//!
//! Within a key deliveries are sent in the order of the due index. The key may send what its own limits allow, and of what
//! all keys share its part by weight, as `/backlog?key=` shows it. A share that grows once other keys have drained is not
//! known in advance, so the time is rather too late than too early.

use std::{collections::HashMap, time::Duration};

use weir_core::{
    DeliveryId, Destination, DestinationId, LimitKey, Limiter, Timestamp,
    preview::{Answers, Forecast},
};
use weir_store::{KEYS_LOOKED_AT, KeyBacklog, MINUTE};

use super::{Order, Pace};
use crate::{
    figures::{KeyFigures, Measured},
    problem::ApiResult,
    resources::backlog,
    state::ApiState,
};

/// How many keys of one list are measured: a read of the due index for each. A page has no more rows by default.
const MEASURED_AT_MOST: usize = 50;

/// How fast the deliveries of a key are sent.
pub(super) struct KeyPace {
    /// By its own limits.
    own: Forecast,
    /// When its turn comes next.
    first: Timestamp,
    /// From one of its turns to the next; `None` if nothing is known to bound it.
    spacing: Option<Duration>,
}

impl KeyPace {
    fn of(figures: &KeyFigures, all: &AllKeys, last: Option<Timestamp>, sends: u64) -> Self {
        let limits = &figures.limits;
        let mut limiter = Limiter::recovered(&limits.rate_limits.evenly(), last);
        limiter.expect_cost(all.usual_cost);
        let answers = limits.max_in_flight.zip(all.answer_time);
        let answers = answers.map(|(max_in_flight, time)| Answers { max_in_flight, time });
        let achieved = Some(sends as f64 / MINUTE.as_secs_f64());
        let of_rate = |per_s: Option<f64>| Duration::try_from_secs_f64(1.0 / per_s.filter(|per_s| *per_s > 0.0)?).ok();
        let spacing = of_rate(figures.share.or(achieved));
        // Other keys have their turns first.
        let earliest = all.from + of_rate(all.per_s).filter(|_| all.share).unwrap_or_default();
        let latest = earliest.max(all.from + spacing.unwrap_or_default());
        let next = last.zip(spacing).map_or(latest, |(last, spacing)| last + spacing);
        Self { own: Forecast::new(&limiter, answers, all.from), first: next.clamp(earliest, latest), spacing }
    }

    /// When the n-th delivery from now on is sent, counted from 1.
    pub(super) fn nth(&self, n: u64) -> Option<Timestamp> {
        let before = u32::try_from(n.saturating_sub(1)).unwrap_or(u32::MAX);
        let turn = match self.spacing {
            Some(spacing) => self.first + spacing.saturating_mul(before),
            None if before == 0 => self.first,
            None => return None,
        };
        Some(turn.max(self.own.start_of(n)))
    }
}

/// What all keys of a destination have in common.
struct AllKeys {
    /// From when on the destination is sent to.
    from: Timestamp,
    per_s: Option<f64>,
    /// Whether several keys wait.
    share: bool,
    usual_cost: u32,
    answer_time: Option<Duration>,
}

/// The orders of the keys of these deliveries, of as many keys as are measured. `from`: when the destination is sent to.
pub(super) async fn orders(
    api: &ApiState,
    destination: &Destination,
    deliveries: &[super::WaitingDelivery],
    most: u32,
    from: Timestamp,
) -> ApiResult<HashMap<LimitKey, Order>> {
    let mut ids: Vec<(LimitKey, Vec<DeliveryId>)> = Vec::new();
    for (id, key) in deliveries {
        let Some(key) = key else { continue };
        match ids.iter().position(|(known, _)| known == key) {
            Some(at) => ids[at].1.push(*id),
            None if ids.len() < MEASURED_AT_MOST => ids.push((key.clone(), vec![*id])),
            None => {}
        }
    }
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let now = api.clock.now();
    let counts = api.store.destination_counts(destination.id).await?;
    let measured: Measured = backlog::measure_sends(api, destination, &counts, now).await?;
    let settings = &destination.at(now).settings;
    let per_s = measured.forecast(destination, &settings.rate_limits, settings.max_in_flight, now).per_second();
    let flows: Vec<DestinationId> = ids.iter().map(|(key, _)| key.flow_id(destination.id)).collect();
    let mut backlogs = api.store.key_backlogs(destination.id, None, KEYS_LOOKED_AT).await?.keys;
    for (key, of) in &ids {
        // It is too far back to be seen, but it waits.
        if !backlogs.iter().any(|backlog| backlog.key == *key) {
            backlogs.push(KeyBacklog { key: key.clone(), waiting: of.len() as u64, oldest_at: now });
        }
    }
    let all = AllKeys {
        from,
        per_s,
        share: backlogs.len() > 1,
        usual_cost: measured.usual_cost,
        answer_time: measured.answer_time,
    };
    let figures = KeyFigures::all(destination, per_s, backlogs, from);
    let figures: HashMap<&LimitKey, &KeyFigures> = figures.iter().map(|one| (&one.key, one)).collect();
    let histories = api.store.send_history(&flows).await?;
    let sends = api.store.flow_sends(&flows, now.before(MINUTE)).await?;
    let looked_at = (most / ids.len() as u32).max(1);
    let mut orders = HashMap::with_capacity(ids.len());
    for ((((key, of), flow), history), sends) in ids.into_iter().zip(flows).zip(histories).zip(sends) {
        let Some(&figures) = figures.get(&key) else { continue };
        let positions = api.store.due_positions(flow, &of, looked_at, now).await?;
        let pace = Pace::Key(KeyPace::of(figures, &all, history.last_sent_at, sends));
        orders.insert(key, Order { pace, waiting: figures.waiting, positions, looked_at });
    }
    Ok(orders)
}

#[cfg(test)]
mod tests {
    use weir_core::{RateLimits, limit_key::FlowLimits};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn starts(share: Option<f64>, all: &AllKeys, last: Option<Timestamp>) -> Vec<Option<f64>> {
        let limits = FlowLimits { rate_limits: RateLimits::UNLIMITED, ..FlowLimits::NONE };
        let figures = KeyFigures { share, ..KeyFigures::idle(LimitKey::new("a"), limits) };
        let pace = KeyPace::of(&figures, all, last, 0);
        [1, 2, 4].map(|n| pace.nth(n).map(|at| at.since(NOW).as_secs_f64())).to_vec()
    }

    #[test]
    fn a_key_waits_for_its_turn_among_the_others() {
        let all = AllKeys { from: NOW, per_s: Some(10.0), share: true, usual_cost: 0, answer_time: None };
        // Two of ten a second: a turn in half a second.
        assert_eq!(starts(Some(2.0), &all, None), [0.5, 1.0, 2.0].map(Some));
        assert_eq!(starts(Some(2.0), &all, Some(NOW.before(Duration::from_millis(200)))), [0.3, 0.8, 1.8].map(Some));
        assert_eq!(starts(Some(2.0), &all, Some(NOW.before(Duration::from_secs(9)))), [0.1, 0.6, 1.6].map(Some));
        let alone = AllKeys { share: false, ..all };
        assert_eq!(starts(Some(10.0), &alone, Some(NOW.before(Duration::from_secs(9)))), [0.0, 0.1, 0.3].map(Some));
        let unbound = AllKeys { per_s: None, ..alone };
        assert_eq!(starts(None, &unbound, None), [Some(0.0), None, None], "nobody knows how fast");
    }
}
