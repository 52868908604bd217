//! Slots and cursors: the arithmetic behind the guarantee.
//!
//! A limit of R per window W hands out slots of width J whose starts are at least T = (W + J) / R apart. A send starts
//! inside its slot, so the R-th send after `i` starts no earlier than `start_i + R·T = start_i + W + J ≥ send_i + W`:
//! no half-open window of length W, wherever it begins, holds more than R sends. The utilisation is W / (W + J). A
//! margin of the limit makes W longer and changes nothing else.
//!
//! With a burst B up to B slots may start at once, which bounds every window by R + B − 1. This is the generic cell
//! rate algorithm (ITU-T I.371) with an interval instead of an instant for each cell. A cursor is stored as a token
//! bucket: `spent` tokens, and the time `since` which one token is returned every T. In this form no number grows with
//! B·T, which can be centuries. Several limits apply together: a slot starts where the strictest cursor allows.
//!
//! A minimum interval m lets the next slot begin m after the end of the last one, so the gap between two sends is never
//! shorter. Its slots are narrow, because their width is lost for each send. It needs no cursor: the last start says
//! where the last slot ends.
//!
//! A limit of the window shape has no spacing: its [`Ring`] counts the slots of the last window. If it is in costs, a slot
//! counts as the cost of its event: it is taken whole or not at all. A send that has to wait for room is not overtaken by
//! one of lower cost, which could happen for ever.
//!
//! A slot may be wider than J, for a caller outside Weir ([`Limiter::take_wide`]). Its send may start so late that the R-th
//! after it comes too soon by spacing alone. So beside the cursor of each even limit there is a ring from then on, until
//! the last wide slot is out of every window: it counts all slots by their ends. The cursor need not move, so a wide slot
//! delays only what would exceed the limit.
//!
//! ```text
//!   start_i     end_i              start_{i+1}                       start_{i+R}
//!   |--- J -----|                  |--- J -----|          ...        |--- J -----|
//!   |<------------ T ------------->|
//!   |<--------------------------- R·T = W + J ---------------------->|
//! ```

mod ring;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::{
    limit::{self, MinInterval, RateLimit, RateLimits, Shape},
    time::Timestamp,
};

pub use ring::{RETIRED_LONGER, Ring};

/// A slot is granted only when it starts within this time from now. Together with the width of a narrow slot this
/// bounds how long a slot that was granted before an edit can still be used: less than 100 ms.
pub const GRANT_AHEAD: Duration = Duration::from_millis(40);

/// While a send waits for room under a limit in costs, cheaper ones may overtake it for this long: some of them are older, and
/// only became ready a moment later.
pub const OVERTAKEN_FOR: Duration = Duration::from_millis(500);

/// After that no cheaper send overtakes it. This ends so long after its expected start. The time is enough for a delivery
/// that has gone back to the store and is published again.
pub const WAITED_FOR: Duration = Duration::from_secs(2);

/// How many limits that are not in force any more a limiter counts. Only who changes more than so many windows within the
/// longest of them finds one of them begun anew, as an even limit would be.
pub const DORMANT_AT_MOST: usize = 8;

/// A cost of one, as [`Limiter`] keeps the usual cost of a send.
pub const COST_OF_ONE: u32 = 256;

/// A half-open interval `[start, end)` in which one send may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub start: Timestamp,
    pub end: Timestamp,
}

impl Slot {
    /// Whether a send may start at `now`.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.start <= now && now < self.end
    }

    /// Whether the slot has ended.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.end <= now
    }
}

/// One even limit and where its next slot may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCursor {
    pub limit: RateLimit,
    /// Both follow from the limit, and each slot needs them.
    spacing: Duration,
    slot_width: Duration,
    /// After this instant one spent token is returned every T.
    pub since: Timestamp,
    /// Tokens spent at `since`, at most the burst.
    pub spent: u32,
}

impl LimitCursor {
    pub fn new(limit: RateLimit, since: Timestamp, spent: u32) -> Self {
        Self { limit, spacing: limit.spacing(), slot_width: limit.slot_width(), since, spent }
    }

    /// The cursor after a loss, from the start of the last send, if there was one. The burst then counts as spent.
    fn after(limit: RateLimit, last_start: Option<Timestamp>) -> Self {
        last_start.map_or(Self::new(limit, Timestamp::MIN, 0), |at| Self::new(limit, at, limit.burst.get()))
    }

    /// The same cursor at `now`, with the tokens that have been returned by then.
    pub(crate) fn at(self, now: Timestamp) -> Self {
        let passed = now.since(self.since);
        // Usually all tokens are back, or none is. A division takes longer than all of the rest.
        if passed >= self.spacing.saturating_mul(self.spent) {
            Self { since: now.max(self.since), spent: 0, ..self }
        } else if passed < self.spacing {
            self
        } else {
            let returned = times(passed, self.spacing);
            Self { since: self.since + self.spacing * returned, spent: self.spent - returned, ..self }
        }
    }

    /// The earliest start of a slot that is taken after `others` further slots; [`Timestamp::MIN`] when there are
    /// tokens for all of them.
    fn earliest(&self, others: u32) -> Timestamp {
        let lacking = (u64::from(self.spent) + u64::from(others) + 1).saturating_sub(self.limit.burst.get().into());
        match u32::try_from(lacking) {
            Ok(0) => Timestamp::MIN,
            Ok(lacking) => self.since + self.spacing.saturating_mul(lacking),
            Err(_) => Timestamp::MAX,
        }
    }

    /// Spends one token at `start`.
    fn advance(&mut self, start: Timestamp) {
        let current = self.at(start);
        *self = Self { spent: current.spent + 1, ..current };
    }

    /// The cursor under another limit of the same period. The debt, counted in sends since the last start, is kept and
    /// measured at the new spacing. So a window that spans the edit is bounded by the larger of the two limits. The
    /// debt lasts at most one window after the last start: no later window contains an earlier send.
    ///
    /// An edit adds no token: the tokens by which a burst is raised begin as spent. Otherwise a burst could be used
    /// again after each time that it is lowered and raised.
    fn with_limit(&self, limit: RateLimit, last_start: Timestamp) -> Self {
        let (spacing, burst) = (limit.spacing(), limit.burst.get());
        let raised = burst.saturating_sub(self.limit.burst.get());
        let spent = self.spent.saturating_add(raised);
        // The time between the last start and `since`, at the new spacing: `since` lies before the last start or after
        // it. Both differences are rounded so that the next slot does not start earlier.
        let before = rescaled(last_start.since(self.since), self.spacing, spacing);
        let after = rescaled(self.since.since(last_start), self.spacing, spacing);
        let after = if after.is_zero() { after } else { after + Duration::from_nanos(1) };
        // `spent` is at most the burst, so further spent tokens become time.
        let excess = spacing.saturating_mul(spent.saturating_sub(burst));
        let latest = last_start + limit.span() - spacing;
        let since = last_start - before + after + excess;
        Self::new(limit, since.min(latest), spent.min(burst))
    }
}

/// The cursors of one destination. Cheap to clone.
///
/// ```
/// use std::time::Duration;
///
/// use weir_core::{Limiter, Period, RateLimit, RateLimits, Timestamp};
///
/// // Ten a second: the slots of a backlog start 101 ms apart, and each is 10 ms wide.
/// let limit = RateLimit::new(10, Period::SECOND).expect("1 to a million");
/// let mut limiter = Limiter::new(&RateLimits::new(vec![limit]).expect("one limit for each period"));
/// let now = Timestamp::from_secs(1_800_000_000);
/// let (first, second) = (limiter.take(now), limiter.take(now));
/// assert_eq!((first.start, second.start), (now, now + Duration::from_millis(101)));
/// assert!(first.contains(now) && first.is_over(now + Duration::from_millis(10)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limiter {
    /// Of the even limits.
    cursors: Vec<LimitCursor>,
    /// Of the limits of the window shape.
    rings: Vec<Ring>,
    /// Of limits of the window shape that are not in force any more, for example during an override. They do not bind, and
    /// count what is sent: if the limit comes back within its window, it knows what it has let through.
    dormant: Vec<Ring>,
    min_interval: Option<MinInterval>,
    last_start: Option<Timestamp>,
    /// The latest end of the slots that were wider than usual.
    wide_end: Option<Timestamp>,
    held_until: Timestamp,
    last_take: Option<LastTake>,
    /// The mean cost of the last sends, in parts of [`COST_OF_ONE`]; 0: not known. It only says how many to publish.
    usual_cost: u32,
    /// The highest cost that waits for room under a limit in costs.
    waiting: Option<Waiting>,
}

/// A send that waits for room. Nothing cheaper overtakes it in this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    cost: u32,
    from: Timestamp,
    until: Timestamp,
}

/// The state before the last slot was taken, while nothing else has moved the cursors since.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct LastTake {
    start: Timestamp,
    cursors: Vec<LimitCursor>,
    /// For each ring, also of the dormant ones, the bucket in which the slot counts.
    buckets: Vec<i64>,
    cost: u32,
    last_start: Option<Timestamp>,
    wide_end: Option<Timestamp>,
    is_wide: bool,
}

/// The fields of a [`Limiter`], for a queue that stores cursors elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterParts {
    /// Ordered by period, the shortest first, as are the rings.
    pub cursors: Vec<LimitCursor>,
    pub rings: Vec<Ring>,
    pub dormant: Vec<Ring>,
    pub min_interval: Option<MinInterval>,
    pub last_start: Option<Timestamp>,
    pub held_until: Timestamp,
    /// In parts of [`COST_OF_ONE`]; 0: not known.
    pub usual_cost: u32,
}

impl From<LimiterParts> for Limiter {
    fn from(parts: LimiterParts) -> Self {
        let LimiterParts { cursors, rings, dormant, min_interval, last_start, held_until, usual_cost } = parts;
        Self { cursors, rings, dormant, min_interval, last_start, held_until, usual_cost, ..Self::default() }
    }
}

impl From<&Limiter> for LimiterParts {
    fn from(limiter: &Limiter) -> Self {
        let Limiter { cursors, rings, dormant, min_interval, last_start, held_until, usual_cost, .. } = limiter.clone();
        Self { cursors, rings, dormant, min_interval, last_start, held_until, usual_cost }
    }
}

impl Limiter {
    /// The limiter of a destination that has never sent: the first slot starts at once.
    pub fn new(limits: &RateLimits) -> Self {
        Self::recovered(limits, None)
    }

    /// The limiter of a destination whose cursors are lost, from the start of its last send or an upper bound of it.
    ///
    /// Slot starts are T apart. So the sequence continues one spacing after `last_start`, as if no earlier send had
    /// been forgotten. Any burst counts as spent, and so does a whole window of the window shape: [`Self::recall`] says
    /// better.
    pub fn recovered(limits: &RateLimits, last_start: Option<Timestamp>) -> Self {
        let cursors = limits.of_shape(Shape::Even).map(|&limit| LimitCursor::after(limit, last_start)).collect();
        let rings = limits.of_shape(Shape::Window).map(|&limit| Ring::full(limit, last_start)).collect();
        Self { cursors, rings, min_interval: limits.min_interval(), last_start, ..Self::default() }
    }

    /// Replaces the ring of a limit by one of what was sent in its window, as it is recorded.
    pub fn recall(&mut self, recorded: Ring) {
        for ring in self.rings.iter_mut().filter(|ring| ring.limit == recorded.limit) {
            ring.clone_from(&recorded);
        }
    }

    /// Notes what was sent in the window of a limit that is not in force now and comes back, as it is recorded.
    pub fn recall_dormant(&mut self, recorded: &Ring) {
        self.dormant.extend(recorded.dormant());
    }

    /// Moves the cursor of an even limit that had the window shape a while ago, when its sends could start at any time.
    /// `recorded`: what was sent, as under a limit of that shape. The slots from then on, one in each spacing, find room
    /// beside it.
    pub fn recall_even(&mut self, recorded: &Ring) {
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.limit.as_window() == recorded.limit) {
            let last = recorded.spaced_after(cursor.spacing);
            if last > cursor.since {
                *cursor = LimitCursor::after(cursor.limit, Some(last));
            }
        }
    }

    /// What a send is expected to cost, in parts of [`COST_OF_ONE`].
    pub fn expect_cost(&mut self, usual_cost: u32) {
        self.usual_cost = usual_cost;
    }

    /// How much of a limit a send usually takes.
    pub(crate) fn usually_taken(&self, limit: &RateLimit) -> f64 {
        if limit.is_in_costs() { f64::from(self.usual_cost.max(COST_OF_ONE)) / f64::from(COST_OF_ONE) } else { 1.0 }
    }

    /// Notes that a send with this cost has to wait until `start`.
    pub fn wait(&mut self, cost: u32, start: Timestamp, now: Timestamp) {
        let known = self.waiting.filter(|waiting| now < waiting.until);
        let is_most = known.is_none_or(|waiting| cost >= waiting.cost);
        if is_most && start < Timestamp::MAX && self.counts_costs() {
            let from = known.map_or(now + OVERTAKEN_FOR, |waiting| waiting.from);
            self.waiting = Some(Waiting { cost, from, until: start + WAITED_FOR });
        }
    }

    fn counts_costs(&self) -> bool {
        self.rings.iter().chain(&self.dormant).any(|ring| ring.limit.is_in_costs())
    }

    /// What is left for a send that costs more than this one.
    fn reserved(&self, cost: u32, now: Timestamp) -> u32 {
        let binds = |waiting: &Waiting| waiting.cost > cost && waiting.from <= now && now < waiting.until;
        self.waiting.filter(binds).map_or(0, |waiting| waiting.cost)
    }

    /// Whether the cursors are those of exactly these limits.
    pub fn follows(&self, limits: &RateLimits) -> bool {
        self.min_interval == limits.min_interval()
            && self.cursors.iter().map(|cursor| &cursor.limit).eq(limits.of_shape(Shape::Even))
            && self.live_rings().map(|ring| &ring.limit).eq(limits.of_shape(Shape::Window))
    }

    /// The rings of the limits in force.
    fn live_rings(&self) -> impl Iterator<Item = &Ring> {
        self.rings.iter().filter(|ring| ring.until.is_none())
    }

    /// Whether a new limiter would hand out the same slots from `now` on, so this limiter may be forgotten.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        self.held_until <= now
            && self.after_interval() <= now
            && self.wide_end.is_none_or(|end| end <= now)
            && self.cursors.iter().all(|cursor| cursor.at(now).spent == 0)
            && self.rings.iter().chain(&self.dormant).all(|ring| ring.is_fresh(now))
    }

    /// Holds the destination: no slot starts before `until`. A hold can be extended, and only [`Self::lift_hold`] ends
    /// it earlier.
    pub fn hold(&mut self, until: Timestamp) {
        self.held_until = self.held_until.max(until);
    }

    /// Ends a hold at this instant, if it would end later.
    pub fn lift_hold(&mut self, at: Timestamp) {
        self.held_until = self.held_until.min(at);
    }

    /// The end of the destination's hold.
    pub fn held_until(&self) -> Timestamp {
        self.held_until
    }

    /// When the last slot began.
    pub fn last_start(&self) -> Option<Timestamp> {
        self.last_start
    }

    /// The width of the destination's slots.
    pub fn slot_width(&self) -> Duration {
        let of_rings = self.live_rings().map(|ring| ring.limit.slot_width());
        limit::slot_width(self.cursors.iter().map(|cursor| cursor.slot_width).chain(of_rings), self.min_interval)
    }

    /// The least time between two slot starts by the minimum interval, if there is one.
    pub(crate) fn interval_spacing(&self) -> Option<Duration> {
        self.min_interval.map(|interval| interval.as_duration() + self.slot_width())
    }

    /// The earliest start of the next slot by the minimum interval; [`Timestamp::MIN`] without one, or without a send.
    fn after_interval(&self) -> Timestamp {
        match (self.interval_spacing(), self.last_start) {
            (Some(spacing), Some(last_start)) => {
                // As long after the end of a wider slot as after that of an ordinary one.
                let of_wide = self.wide_end.map(|end| end + spacing.saturating_sub(self.slot_width()));
                (last_start + spacing).max(of_wide.unwrap_or(Timestamp::MIN))
            }
            _ => Timestamp::MIN,
        }
    }

    /// The start of the next slot if it is taken at `now` by a send with a cost of 1.
    pub fn next_start(&self, now: Timestamp) -> Timestamp {
        self.next_start_of(1, now)
    }

    /// The start of the next slot if it is taken at `now` by a send with this cost. [`Timestamp::MAX`] if the cost is above
    /// a limit.
    pub fn next_start_of(&self, cost: u32, now: Timestamp) -> Timestamp {
        let earliest = now.max(self.held_until).max(self.after_interval());
        let reserved = self.reserved(cost, now);
        let of_ring = |ring: &Ring| ring.earliest_of(cost, reserved, now);
        let earliest = self.rings.iter().map(of_ring).fold(earliest, Timestamp::max);
        self.cursors.iter().map(|cursor| cursor.earliest(0)).fold(earliest, Timestamp::max)
    }

    /// From when on a slot is owed: to the send that waits for room at `now`, otherwise to one with a cost of 1. Not before
    /// `from`.
    pub fn owed_start(&self, from: Timestamp, now: Timestamp) -> Timestamp {
        let cost = self.waiting.filter(|waiting| now < waiting.until).map_or(1, |waiting| waiting.cost);
        self.next_start_of(cost, from)
    }

    /// The start of a slot that is taken after `others` further slots. When several limits bind in turn, this is an
    /// estimate.
    pub fn start_after(&self, others: u32, now: Timestamp) -> Timestamp {
        let next = self.next_start(now);
        let spaced = self.interval_spacing().map_or(next, |spacing| next + spacing.saturating_mul(others));
        let reserved = self.reserved(1, now);
        let of_ring = |ring: &Ring| match ring.limit.is_in_costs() {
            true => {
                // The one that waits is most likely among the others.
                let others = (f64::from(others) * self.usually_taken(&ring.limit)) as u64;
                ring.earliest(others.max(reserved.into()), next)
            }
            false => ring.earliest(others.into(), next),
        };
        let spaced = self.rings.iter().map(of_ring).fold(spaced, Timestamp::max);
        self.cursors.iter().map(|cursor| cursor.at(next).earliest(others)).fold(spaced, Timestamp::max)
    }

    /// How many slots, taken now, start before `until`; counted up to `max`. Like [`Self::start_after`], an estimate
    /// when several limits bind in turn.
    pub fn slots_before(&self, now: Timestamp, until: Timestamp, max: u32) -> u32 {
        let next = self.next_start(now);
        if next >= until {
            return 0;
        }
        let slots_of = |cursor: &LimitCursor| {
            let cursor = cursor.at(next);
            let tokens = cursor.limit.burst.get().saturating_sub(cursor.spent);
            let last = until.since(cursor.since).saturating_sub(Duration::from_nanos(1));
            times(last, cursor.spacing).saturating_add(tokens)
        };
        let spaced = self.interval_spacing().map_or(max, |spacing| {
            times(until.since(next).saturating_sub(Duration::from_nanos(1)), spacing).saturating_add(1)
        });
        let of_ring =
            |ring: &Ring| (f64::from(ring.slots_before(until)) / self.usually_taken(&ring.limit)).ceil() as u32;
        let most = self.rings.iter().map(of_ring).fold(max.min(spaced), u32::min);
        self.cursors.iter().map(slots_of).fold(most, u32::min)
    }

    /// Hands out the next slot. It starts at `now` when the destination was idle, and later under backlog.
    pub fn take(&mut self, now: Timestamp) -> Slot {
        self.take_of(1, now)
    }

    /// Hands out the next slot to a send with this cost, which is not above a limit.
    pub fn take_of(&mut self, cost: u32, now: Timestamp) -> Slot {
        self.take_at(cost, self.next_start_of(cost, now))
    }

    /// Hands out the slot with this start, which is not before [`Self::next_start_of`] of this cost.
    pub(crate) fn take_at(&mut self, cost: u32, start: Timestamp) -> Slot {
        self.take_wide(cost, start, Duration::ZERO)
    }

    /// The same with a slot that is at least this wide. Every limit holds for a send anywhere in it.
    pub fn take_wide(&mut self, cost: u32, start: Timestamp, width: Duration) -> Slot {
        let (usual_width, wide_end) = (self.slot_width(), self.wide_end);
        let (is_wide, width) = (width > usual_width, width.max(usual_width));
        for rings in [&mut self.rings, &mut self.dormant] {
            rings.retain(|ring| ring.until.is_none_or(|until| start < until));
        }
        let has_state = self.has_state();
        if is_wide {
            self.count_in_rings(start + width);
            self.wide_end = wide_end.max(Some(start + width));
        }
        // Written in place, because each slot would need new memory otherwise.
        let last = self.last_take.get_or_insert_default();
        last.buckets.clear();
        let rings = self.rings.iter_mut().chain(&mut self.dormant);
        last.buckets.extend(rings.map(|ring| ring.take(start, width, cost)));
        last.cursors.clone_from(&self.cursors);
        (last.start, last.cost, last.last_start) = (start, cost, self.last_start);
        (last.wide_end, last.is_wide) = (wide_end, is_wide);
        if !has_state {
            self.last_take = None;
        }
        if self.counts_costs() {
            let (usual, new) = (i64::from(self.usual_cost), i64::from(cost) * i64::from(COST_OF_ONE));
            let usual = if usual == 0 { new } else { usual + (new - usual).div_euclid(16) };
            self.usual_cost = u32::try_from(usual).unwrap_or(COST_OF_ONE);
            self.waiting.take_if(|waiting| waiting.cost <= cost);
        }
        for cursor in &mut self.cursors {
            cursor.advance(start);
        }
        self.last_start = self.last_start.max(Some(start));
        Slot { start, end: start + width }
    }

    /// Whether a slot changes anything. Otherwise there is nothing to give back.
    fn has_state(&self) -> bool {
        let has_rings = !self.rings.is_empty() || !self.dormant.is_empty();
        !self.cursors.is_empty() || has_rings || self.min_interval.is_some()
    }

    /// Counts all slots of the even limits in rings, until no window has a slot any more that ends here.
    fn count_in_rings(&mut self, slot_end: Timestamp) {
        let last_end = self.last_start.map(|start| start + self.slot_width());
        for cursor in &self.cursors {
            let limit = cursor.limit.as_window();
            let position = self.rings.partition_point(|ring| ring.limit.period < limit.period);
            if self.rings.get(position).is_none_or(|ring| ring.limit.period != limit.period) {
                // What the cursor owes it goes on to owe itself.
                let before = |end| Ring::after_even(limit, &cursor.limit, Timestamp::MIN, end);
                self.rings.insert(position, last_end.map_or_else(|| Ring::new(limit), before));
            }
            let ring = &mut self.rings[position];
            ring.until = ring.until.max(Some(slot_end + limit.span() + limit.bucket() + RETIRED_LONGER));
        }
    }

    /// Whether a taken slot is that of a send with this cost and this start. In the window shape several may start at once,
    /// and in costs these are different.
    fn is_of(&self, taken: &LastTake, cost: u32, start: Timestamp) -> bool {
        taken.start == start && (taken.cost == cost || !self.counts_costs())
    }

    /// Whether [`Self::give_back_of`] would succeed for a slot of the usual width: a wider one that started at the same
    /// instant is another one. Without a limit there is nothing to give back.
    pub(crate) fn can_give_back(&self, cost: u32, start: Timestamp, now: Timestamp) -> bool {
        match &self.last_take {
            Some(last) => start < now && !last.is_wide && self.is_of(last, cost, start),
            None => !self.has_state(),
        }
    }

    /// Gives the slot with this start back, if it was the last that was taken and no limit has changed since: every
    /// cursor is then as if the slot had never been taken. The caller makes sure that no send has used the slot and none
    /// will. Not before the start has passed: so the next slot starts later, and no start names two slots.
    pub fn give_back(&mut self, start: Timestamp, now: Timestamp) -> bool {
        self.give_back_of(1, start, now)
    }

    /// The same for the slot of a send with this cost.
    pub fn give_back_of(&mut self, cost: u32, start: Timestamp, now: Timestamp) -> bool {
        if !self.last_take.as_ref().is_some_and(|last| start < now && self.is_of(last, cost, start)) {
            return false;
        }
        match self.last_take.take() {
            Some(LastTake { cursors, buckets, cost, last_start, wide_end, .. }) => {
                (self.cursors, self.last_start, self.wide_end) = (cursors, last_start, wide_end);
                let rings = self.rings.iter_mut().chain(&mut self.dormant);
                rings.zip(buckets).for_each(|(ring, bucket)| ring.give_back(bucket, cost));
                true
            }
            None => false,
        }
    }

    /// Applies new limits without resetting any window.
    ///
    /// A limit that keeps its period keeps its debt, in another shape or unit too: what was counted stays counted. A
    /// limit of a new period starts with its burst spent, one spacing after the last start; in the window shape, with
    /// the slots that a ring knows, if there is one. A limit of the window shape that is removed is dormant until its slots
    /// are out of its window. The last slot may still be used at its end. So when the new slots
    /// are narrower, the last start is moved later by the difference of the widths. A minimum interval counts from
    /// there, too.
    pub fn reconfigure(&mut self, limits: &RateLimits) {
        // With the same limits no cursor moves.
        if self.follows(limits) {
            return;
        }
        // The last send may start as late as at the end of a wider slot.
        let wide_end = self.wide_end.unwrap_or(Timestamp::MIN);
        let old_width = self.last_start.map_or(Duration::ZERO, |start| wide_end.since(start)).max(self.slot_width());
        // The cursor of each new limit: kept, changed to another limit of its period, or new.
        let unmoved = self.last_start;
        let cursor_of = |limit: &RateLimit| self.cursors.iter().find(|cursor| cursor.limit.period == limit.period);
        let all_rings = || self.rings.iter().chain(&self.dormant);
        let ring_of = |limit: &RateLimit| all_rings().find(|ring| ring.limit.period == limit.period);
        let cursor = |limit: &RateLimit| match (cursor_of(limit), unmoved) {
            (Some(cursor), _) if cursor.limit == *limit => *cursor,
            (Some(cursor), Some(last_start)) => cursor.with_limit(*limit, last_start),
            _ => LimitCursor::after(*limit, unmoved),
        };
        let ring = |limit: &RateLimit| match (ring_of(limit), cursor_of(limit), unmoved) {
            (ring, ..) if !limit.is_window() => ring?.retired(limit),
            (Some(ring), ..) => Some(ring.with_limit(*limit)),
            (_, Some(cursor), Some(last_start)) => {
                Some(Ring::after_even(*limit, &cursor.limit, cursor.earliest(0), last_start + old_width))
            }
            // The ring of the longest window knows most.
            (_, _, Some(last_start)) => Some(self.rings.last().map_or_else(
                || Ring::after_even(*limit, limit, last_start + limit.spacing(), last_start + old_width),
                |ring| ring.with_limit(*limit),
            )),
            _ => Some(Ring::new(*limit)),
        };
        let cursors = limits.of_shape(Shape::Even).map(cursor).collect();
        let rings = limits.as_slice().iter().filter_map(ring).collect();
        let is_removed = |ring: &&Ring| !limits.as_slice().iter().any(|limit| limit.period == ring.limit.period);
        let mut dormant: Vec<_> = all_rings().filter(is_removed).filter_map(Ring::dormant).collect();
        dormant.sort_by_key(|ring| std::cmp::Reverse(ring.until));
        dormant.truncate(DORMANT_AT_MOST);
        let min_interval = limits.min_interval();
        // What waits may cost more than the new limit. It asks again.
        let mut edited = Self { cursors, rings, dormant, min_interval, last_take: None, waiting: None, ..self.clone() };
        // If the edit makes slots narrower, the last slot may still be used until its old end. So the last start, and
        // the cursors that the edit changed, move later by the difference.
        let later = old_width.saturating_sub(edited.slot_width());
        if let Some(last_start) = edited.last_start.filter(|_| !later.is_zero()) {
            edited.last_start = Some(last_start + later);
            for cursor in &mut edited.cursors {
                // A kept cursor needs no move: the spacing of its limit already allows for slots of the old width.
                let is_kept = self.cursors.iter().any(|old| old.limit == cursor.limit);
                if !is_kept {
                    cursor.since = cursor.since + later;
                }
            }
        }
        *self = edited;
    }
}

/// How many whole spacings fit into `time`.
fn times(time: Duration, spacing: Duration) -> u32 {
    let nanos = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
    u32::try_from(nanos(time) / nanos(spacing)).unwrap_or(u32::MAX)
}

/// `time · to / from`, rounded down to the nanosecond.
fn rescaled(time: Duration, from: Duration, to: Duration) -> Duration {
    let nanos = time.as_nanos() * to.as_nanos() / from.as_nanos();
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
