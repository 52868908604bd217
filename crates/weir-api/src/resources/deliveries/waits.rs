//! Why a waiting delivery is not sent yet, and when it is expected to be sent.
//!
//! What stops a destination explains all of its deliveries. Otherwise a delivery waits for its own time, or for its turn:
//! the due index says how many are before it, and the forecast of the destination when that many are sent. Both are bounded,
//! so a page of a list costs about as much as one delivery. Where limit keys take turns, each key has an order of its own
//! (waits/keys.rs).

mod keys;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use weir_api_types as types;
use weir_core::{
    DeliveryId, Destination, DestinationId, LimitGroup, LimitGroupId, LimitKey, Timestamp,
    access::Actor,
    activity::{Action, Activity, Origin},
    delivery::Delivery,
    limit_key::KeyLimits,
    preview::Forecast,
    replay_share::MIN_SHARE_DIVISOR,
};
use weir_store::{ActivityFilter, DuePosition, DuePositions, POSITIONS_LOOKED_AT, PageRequest};

use self::keys::KeyPace;
use crate::{
    figures::Measured,
    problem::ApiResult,
    resources::{backlog, destinations},
    state::ApiState,
};

/// How many destinations of one list are measured: about seven reads each.
const MEASURED_AT_MOST: usize = 8;
/// How many of them with limit keys: the keys that wait are found among twenty thousand deliveries of each.
const KEYED_AT_MOST: usize = 2;
/// How many of the last activities of a destination are read to find who paused it.
const ACTIVITIES: u32 = 20;

/// Why nothing is sent to the destination now; `None` if it is sent to.
fn waits_for(destination: &Destination, now: Timestamp) -> Option<types::WaitsFor> {
    if destination.settings.paused {
        return Some(waits("pause", None, destination.paused_reason.clone()));
    }
    let (held_until, held_reason) = destination.held();
    if let Some(until) = held_until.filter(|until| *until > now) {
        return Some(waits("hold", Some(until), held_reason));
    }
    let reason = destination.breaker.reason()?;
    // While a probe is out, nobody knows when the next one is sent.
    let until = destination.breaker.next_probe_at().filter(|at| *at > now);
    Some(waits("breaker", until, Some(reason.to_owned())))
}

/// The same, with who paused the destination and when, and with a hold of its limit group.
pub(crate) async fn of_destination(
    api: &ApiState,
    destination: &Destination,
    now: Timestamp,
) -> ApiResult<Option<types::WaitsFor>> {
    let Some(mut found) = waits_for(destination, now) else { return held_by_group(api, destination, now).await };
    if found.reason == "pause"
        && let Some(Activity { at, origin: Origin { actor, .. }, .. }) = last_pause(api, destination.id).await?
    {
        found.since = Some(at);
        let by = Some(actor).filter(|actor| found.detail.is_none() && *actor != Actor::Anonymous);
        found.by = by.map(|actor| actor.name().to_owned());
    }
    Ok(Some(found))
}

async fn last_pause(api: &ApiState, id: DestinationId) -> ApiResult<Option<Activity>> {
    let filter = ActivityFilter { destination_id: Some(id), ..ActivityFilter::default() };
    let activities = api.store.list_activity(&filter, PageRequest { before: None, limit: ACTIVITIES }).await?;
    Ok(activities.rows.into_iter().find(|activity| {
        let after = activity.after.as_ref().and_then(|after| after.get("paused")).and_then(serde_json::Value::as_bool);
        activity.action == Action::DestinationPaused || after == Some(true)
    }))
}

async fn held_by_group(
    api: &ApiState,
    destination: &Destination,
    now: Timestamp,
) -> ApiResult<Option<types::WaitsFor>> {
    let Some(id) = destination.settings.limit_group else { return Ok(None) };
    let group = api.store.limit_groups(&[id]).await?.pop().flatten();
    Ok(group.and_then(|group| hold_of(&group, now)))
}

/// The name and the reason of the group are left out: it may be one that the caller does not see.
fn hold_of(group: &LimitGroup, now: Timestamp) -> Option<types::WaitsFor> {
    let until = group.temporary.hold_at(now)?.until;
    Some(waits("hold", Some(until), Some(types::HELD_BY_GROUP.to_owned())))
}

/// Why nothing is sent to each of these destinations now, with one read of their groups.
pub(crate) async fn of_destinations(
    api: &ApiState,
    destinations: impl Iterator<Item = &Destination> + Clone,
    now: Timestamp,
) -> ApiResult<HashMap<DestinationId, types::WaitsFor>> {
    let groups: HashSet<LimitGroupId> = destinations.clone().filter_map(|one| one.settings.limit_group).collect();
    let groups: Vec<LimitGroupId> = groups.into_iter().collect();
    let found = if groups.is_empty() { Vec::new() } else { api.store.limit_groups(&groups).await? };
    let held: HashMap<LimitGroupId, types::WaitsFor> =
        found.iter().flatten().filter_map(|group| Some((group.id, hold_of(group, now)?))).collect();
    let of = |one: &Destination| waits_for(one, now).or_else(|| held.get(&one.settings.limit_group?).cloned());
    Ok(destinations.filter_map(|one| Some((one.id, of(one)?))).collect())
}

fn waits(reason: &str, until: Option<Timestamp>, detail: Option<String>) -> types::WaitsFor {
    types::WaitsFor { reason: reason.to_owned(), until, detail, by: None, since: None, ahead: None }
}

/// What one delivery waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wait {
    pub(super) waits_for: types::WaitsFor,
    pub(super) expected_at: Option<Timestamp>,
}

/// What the destinations of some deliveries wait for.
pub(super) struct Outlooks {
    now: Timestamp,
    destinations: HashMap<DestinationId, Outlook>,
}

struct Outlook {
    /// What stops the destination.
    stops: Option<types::WaitsFor>,
    orders: Orders,
    keys: Option<Arc<KeyLimits>>,
}

/// In which order deliveries are sent.
enum Orders {
    NotMeasured,
    Whole(Order),
    /// Its limit keys take turns, so no order of all deliveries tells the next one.
    OfKeys(HashMap<LimitKey, Order>),
}

/// The order of the deliveries of a destination, or of one of its limit keys, and how fast they are sent.
struct Order {
    pace: Pace,
    waiting: u64,
    positions: DuePositions,
    /// How many entries of the due index were looked at.
    looked_at: u32,
}

enum Pace {
    Whole {
        forecast: Forecast,
        /// The recent rate, where no bound of it is known.
        achieved_per_s: f64,
    },
    Key(KeyPace),
}

/// A delivery, and its limit key.
type WaitingDelivery = (DeliveryId, Option<LimitKey>);

impl Outlooks {
    /// Reads what the waiting ones of these deliveries need.
    pub(super) async fn of(api: &ApiState, deliveries: &[Delivery], is_measured: bool) -> ApiResult<Self> {
        let now = api.clock.now();
        let mut ids: Vec<(DestinationId, Vec<WaitingDelivery>)> = Vec::new();
        for delivery in deliveries.iter().filter(|delivery| delivery.state.is_waiting()) {
            let one = (delivery.id, delivery.limit_key.clone());
            match ids.iter_mut().find(|(id, _)| *id == delivery.destination_id) {
                Some((_, of)) => of.push(one),
                None => ids.push((delivery.destination_id, vec![one])),
            }
        }
        let found = destinations::by_id(api, ids.iter().map(|(id, _)| *id)).await?;
        let looked_at = POSITIONS_LOOKED_AT / ids.len().clamp(1, MEASURED_AT_MOST) as u32;
        let mut outlooks = HashMap::with_capacity(found.len());
        let measured = if is_measured { MEASURED_AT_MOST } else { 0 };
        let others = ids.iter().skip(measured).filter_map(|(id, _)| found.get(id)).map(|one| &**one);
        let mut stopped = of_destinations(api, others, now).await?;
        let mut keyed = 0;
        for (index, (id, of)) in ids.into_iter().enumerate() {
            let Some(destination) = found.get(&id) else { continue };
            let settings = &destination.settings;
            let keys = settings.key_limits.clone();
            let stops = match index < measured {
                true => of_destination(api, destination, now).await?,
                false => stopped.remove(&id),
            };
            keyed += usize::from(keys.is_some());
            let orders = match keys {
                _ if index >= measured || settings.paused => Orders::NotMeasured,
                Some(_) if keyed > KEYED_AT_MOST => Orders::NotMeasured,
                // Behind a failing breaker it depends on the probe, which may be of another key.
                Some(_) if stops.as_ref().is_some_and(|stops| stops.reason == "breaker") => Orders::NotMeasured,
                Some(_) => {
                    let from = stops.as_ref().and_then(|stops| stops.until).map_or(now, |until| until.max(now));
                    Orders::OfKeys(keys::orders(api, destination, &of, looked_at, from).await?)
                }
                None => Orders::Whole(order(api, destination, &of, looked_at, now).await?),
            };
            outlooks.insert(id, Outlook { stops, orders, keys });
        }
        Ok(Self { now, destinations: outlooks })
    }

    /// `None`: the delivery does not wait, or its destination is deleted.
    pub(super) fn wait(&self, delivery: &Delivery) -> Option<Wait> {
        if !delivery.state.is_waiting() {
            return None;
        }
        let outlook = self.destinations.get(&delivery.destination_id)?;
        if outlook.stops.is_none() && outlook.has_paused(delivery.limit_key.as_ref()) {
            return Some(Wait { waits_for: waits("key", None, None), expected_at: None });
        }
        Some(outlook.wait(delivery, self.now))
    }
}

async fn order(
    api: &ApiState,
    destination: &Destination,
    deliveries: &[WaitingDelivery],
    looked_at: u32,
    now: Timestamp,
) -> ApiResult<Order> {
    let counts = api.store.destination_counts(destination.id).await?;
    let measured: Measured = backlog::measure_sends(api, destination, &counts, now).await?;
    let settings = &destination.at(now).settings;
    let ids: Vec<DeliveryId> = deliveries.iter().map(|(id, _)| *id).collect();
    Ok(Order {
        pace: Pace::Whole {
            forecast: measured.forecast(destination, &settings.rate_limits, settings.max_in_flight, now),
            achieved_per_s: measured.achieved_per_s,
        },
        waiting: measured.counts.waiting(),
        positions: api.store.due_positions(destination.id, &ids, looked_at, now).await?,
        looked_at,
    })
}

impl Outlook {
    fn has_paused(&self, key: Option<&LimitKey>) -> bool {
        let special = self.keys.as_ref().zip(key).and_then(|(keys, key)| keys.overrides.get(key));
        special.is_some_and(|special| special.paused)
    }

    /// The order in which a delivery with this limit key is sent.
    fn order(&self, key: Option<&LimitKey>) -> Option<&Order> {
        match &self.orders {
            Orders::NotMeasured => None,
            Orders::Whole(order) => Some(order),
            Orders::OfKeys(orders) => orders.get(key?),
        }
    }

    fn wait(&self, delivery: &Delivery, now: Timestamp) -> Wait {
        // `None` behind an earlier delivery of the same ordering key.
        let due = delivery.next_attempt_at;
        let order = self.order(delivery.limit_key.as_ref());
        let position = order.and_then(|order| order.positions.found.get(&delivery.id).copied());
        // When it is sent, if the destination is sent to.
        let start = || Some(order?.start(position?, now)?.max(now));
        let lasts = |stops: &&types::WaitsFor| stops.until.zip(due).is_none_or(|(until, due)| until > due);
        if let Some(stops) = self.stops.as_ref().filter(lasts) {
            let expected_at = match &*stops.reason {
                "hold" => start().zip(stops.until).map(|(start, until)| start.max(until)),
                // The probe is the first delivery. Whether others follow depends on it.
                "breaker" => {
                    stops.until.filter(|_| position.is_some_and(|position| position.ahead == 0 && !position.is_replay))
                }
                _ => None,
            };
            let expected_at = expected_at.filter(|_| due.is_some());
            return Wait { waits_for: stops.clone(), expected_at };
        }
        let Some(due) = due else {
            return Wait { waits_for: waits("order", None, None), expected_at: None };
        };
        if due > now {
            let expected_at = if self.stops.is_none() { start().map(|start| start.max(due)) } else { None };
            return Wait { waits_for: waits("due", Some(due), None), expected_at };
        }
        let (ahead, until) = match order {
            Some(order) => order.ahead(position, now),
            None => (None, None),
        };
        let expected_at = start();
        let waits_for = types::WaitsFor { ahead, ..waits("turn", until, None) };
        Wait { waits_for, expected_at }
    }
}

impl Order {
    /// How many are sent before the delivery at a position.
    fn before(&self, position: DuePosition) -> u64 {
        if !position.is_replay {
            return position.ahead;
        }
        // Live deliveries go first, but leave replays their share.
        let shared = (position.ahead + 1).saturating_mul(MIN_SHARE_DIVISOR.into()) - 1;
        shared.min(position.ahead + self.positions.live_due)
    }

    /// When the delivery at a position is sent; `None` if no rate is known.
    fn start(&self, position: DuePosition, now: Timestamp) -> Option<Timestamp> {
        self.nth(self.before(position) + 1, now)
    }

    fn nth(&self, n: u64, now: Timestamp) -> Option<Timestamp> {
        let (forecast, achieved_per_s) = match &self.pace {
            Pace::Whole { forecast, achieved_per_s } => (forecast, *achieved_per_s),
            Pace::Key(pace) => return pace.nth(n),
        };
        match forecast.per_second() {
            None if n > 1 && achieved_per_s <= 0.0 => None,
            None if n > 1 => Some(now + Duration::from_secs_f64(n as f64 / achieved_per_s)),
            _ => Some(forecast.start_of(n)),
        }
    }

    /// How many are ahead of a delivery, and when they are sent: the earliest instant if there may be more of them.
    fn ahead(&self, position: Option<DuePosition>, now: Timestamp) -> (Option<types::ListCount>, Option<Timestamp>) {
        let looked_at = u64::from(self.looked_at);
        let (value, capped) = match position {
            Some(position) => (self.before(position), false),
            None if self.waiting > looked_at => (looked_at, true),
            // It was claimed meanwhile.
            None => return (None, None),
        };
        let until = self.nth(value + 1, now).map(|at| at.max(now));
        (Some(types::ListCount { value, capped }), until)
    }
}

/// The due time of a delivery that is due at this instant by itself.
pub(super) fn earliest(waits_for: &types::WaitsFor, due: Timestamp) -> Timestamp {
    match &*waits_for.reason {
        "hold" | "breaker" => waits_for.until.map_or(due, |until| until.max(due)),
        _ => due,
    }
}
