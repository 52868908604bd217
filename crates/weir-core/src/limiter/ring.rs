//! The window shape: R slots in every sliding window, wherever they lie in it.
//!
//! A ring counts the slots of the last window in buckets of a 600th of it. A slot is counted by its *end*, rounded up
//! to the end of its bucket, and is free again a window after that. A send starts before the end of its slot, so of any
//! R + 1 sends the one that was granted last started a window or more after one of the others. At most 1/600 of the
//! use is lost by the buckets, and the width of a slot.
//!
//! Only buckets that hold slots are kept: 602 at most, and as many more as end later because of a wide slot, of which
//! none is wider than 2.5 s.

use std::{collections::VecDeque, time::Duration};

use crate::{limit::RateLimit, time::Timestamp};

/// How much longer than its slots count a retired ring is kept: times of calls go back by less than that.
pub const RETIRED_LONGER: Duration = Duration::from_secs(2);

/// One limit of the window shape, and the slots that count in its window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    pub limit: RateLimit,
    /// `Some`: the limit is no longer in force, and its slots count until this time. They count beside the cursor of the
    /// even limit that has replaced it, and again if the limit comes back before.
    pub until: Option<Timestamp>,
    /// Numbers of buckets and their slots, the oldest first. Bucket n ends at n · [`RateLimit::bucket`].
    pub buckets: VecDeque<(i64, u32)>,
    /// The latest bucket whose slots are free again; 0 for none. No slot starts before that: times of calls may go back
    /// by a few milliseconds.
    pub released: i64,
    total: u64,
}

impl Ring {
    pub fn new(limit: RateLimit) -> Self {
        Self { limit, until: None, buckets: VecDeque::new(), released: 0, total: 0 }
    }

    /// The ring as [`Self::buckets`] and [`Self::released`] describe it.
    pub fn of(limit: RateLimit, buckets: impl IntoIterator<Item = (i64, u32)>, released: i64) -> Self {
        let mut ring = Self { released, ..Self::new(limit) };
        buckets.into_iter().for_each(|(bucket, slots)| ring.count_in(bucket, slots));
        ring
    }

    /// After a loss, from the start of the last send: all R may have started then.
    pub(super) fn full(limit: RateLimit, last_start: Option<Timestamp>) -> Self {
        let mut ring = Self::new(limit);
        if let Some(at) = last_start {
            ring.count(at + Duration::from_nanos(1), limit.limit.get());
        }
        ring
    }

    /// The ring after an even limit whose last slot ended at `last_end`: its slots came no closer than its spacing. Before
    /// an earlier edit they may have come closer, so where the new limit allows more than the even one, they count by the
    /// new one: a window of both holds no more than the highest of the limits in force. `owed`: the earliest start of the
    /// even limit's next slot.
    pub(super) fn after_even(limit: RateLimit, even: &RateLimit, owed: Timestamp, last_end: Timestamp) -> Self {
        let (step, mut spacing, mut most) = (limit.bucket(), even.spacing(), even.limit.get());
        if !limit.is_in_costs() {
            (spacing, most) = (spacing.min(limit.spacing()), most.max(limit.limit.get()));
        }
        // How many of its slots began in less than `age` before the last one.
        let younger = |age: Duration| {
            u32::try_from(age.as_nanos() / spacing.as_nanos() + 1).map_or(most, |slots| slots.min(most))
        };
        let buckets = u32::try_from(limit.span().as_nanos().div_ceil(step.as_nanos())).unwrap_or(u32::MAX);
        let mut ring = Self::new(limit);
        for age in (0..buckets).rev() {
            let older = if age == 0 { 0 } else { younger(step * age) };
            ring.count(last_end - step * age, younger(step * (age + 1)) - older);
        }
        ring.count(last_end, even.burst.get() - 1);
        if owed > Timestamp::MIN {
            ring.released = ring.bucket_of(owed - (limit.period.window() + limit.margin()));
        }
        ring
    }

    /// The same slots under another limit.
    pub(super) fn with_limit(&self, limit: RateLimit) -> Self {
        let mut ring = Self::new(limit);
        for &(bucket, slots) in &self.buckets {
            ring.count(self.end_of(bucket), slots);
        }
        ring.released = ring.bucket_of(self.end_of(self.released));
        ring
    }

    /// The slots that still count when the limit becomes an even one. Its cursor spaces the next slots, and this ring
    /// sees to it that they are not too many beside those of before, which lie anywhere.
    pub(super) fn retired(&self, even: &RateLimit) -> Option<Self> {
        let until = self.counts_until()?;
        Some(Self { until: Some(until), ..self.with_limit(even.as_window()) })
    }

    /// The slots that still count if the limit comes back.
    pub(super) fn dormant(&self) -> Option<Self> {
        Some(Self { until: Some(self.counts_until()?), ..self.clone() })
    }

    /// Until when the slots of a limit count that is not in force any more; `None` if there are none.
    fn counts_until(&self) -> Option<Timestamp> {
        self.until.or_else(|| {
            let (last, _) = self.buckets.back()?;
            Some(self.release_of(*last) + RETIRED_LONGER)
        })
    }

    /// The start after which one slot in each spacing may begin, so that no window holds more than the limit together with
    /// the slots that are counted here; [`Timestamp::MIN`] when there are none.
    pub(super) fn spaced_after(&self, spacing: Duration) -> Timestamp {
        let (mut after, mut newer) = (Timestamp::MIN, 0);
        for &(bucket, slots) in self.buckets.iter().rev() {
            // Until this bucket is released, the slots in it and in newer ones leave room for so many.
            newer += u64::from(slots);
            let room = u64::from(self.limit.limit.get()).saturating_sub(newer);
            let room = u32::try_from(room).unwrap_or(u32::MAX);
            after = after.max(self.release_of(bucket) - spacing.saturating_mul(room));
        }
        after
    }

    /// The number of the bucket in which a slot with this end counts.
    fn bucket_of(&self, end: Timestamp) -> i64 {
        let step = self.step();
        end.as_nanos().div_euclid(step) + i64::from(end.as_nanos().rem_euclid(step) > 0)
    }

    fn step(&self) -> i64 {
        self.limit.bucket().as_nanos() as i64
    }

    fn end_of(&self, bucket: i64) -> Timestamp {
        Timestamp::from_nanos(bucket.saturating_mul(self.step()))
    }

    /// When the slots of a bucket are free again.
    fn release_of(&self, bucket: i64) -> Timestamp {
        self.end_of(bucket) + self.limit.period.window() + self.limit.margin()
    }

    /// Counts slots that end at `end`. Behind a wide slot, ends do not come in order.
    pub fn count(&mut self, end: Timestamp, slots: u32) {
        self.count_in(self.bucket_of(end), slots);
    }

    fn count_in(&mut self, bucket: i64, slots: u32) {
        if slots == 0 {
            return;
        }
        self.total += u64::from(slots);
        // Few buckets are newer, and mostly none.
        let newer = self.buckets.iter().rev().take_while(|(other, _)| *other > bucket).count();
        let position = self.buckets.len() - newer;
        match position.checked_sub(1).map(|before| &mut self.buckets[before]) {
            Some((same, counted)) if *same == bucket => *counted = counted.saturating_add(slots),
            _ => self.buckets.insert(position, (bucket, slots)),
        }
    }

    /// Counts the slot `[start, start + width)` of a send with this cost, and returns its bucket.
    pub(super) fn take(&mut self, start: Timestamp, width: Duration, cost: u32) -> i64 {
        while let Some(&(bucket, slots)) = self.buckets.front().filter(|(bucket, _)| self.release_of(*bucket) <= start)
        {
            self.buckets.pop_front();
            self.total -= u64::from(slots);
            self.released = self.released.max(bucket);
        }
        let bucket = self.bucket_of(start + width);
        self.count_in(bucket, self.limit.taken_by(cost));
        bucket
    }

    /// Takes back the count of the last slot, which is in this bucket.
    pub(super) fn give_back(&mut self, bucket: i64, cost: u32) {
        let taken = self.limit.taken_by(cost);
        let Ok(position) = self.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) else { return };
        let (_, slots) = &mut self.buckets[position];
        *slots -= taken;
        self.total -= u64::from(taken);
        if *slots == 0 {
            self.buckets.remove(position);
        }
    }

    /// The earliest start of the slot of a send with this cost, before which `reserved` more are left for another one.
    /// [`Timestamp::MAX`] if the cost is above the limit.
    pub(super) fn earliest_of(&self, cost: u32, reserved: u32, from: Timestamp) -> Timestamp {
        let (cost, reserved) = if self.limit.is_in_costs() { (cost, reserved) } else { (1, 0) };
        if cost > self.limit.limit.get() {
            return Timestamp::MAX;
        }
        let behind = if reserved > 0 { self.earliest(u64::from(reserved + cost) - 1, from) } else { Timestamp::MIN };
        self.earliest(u64::from(cost) - 1, from).max(behind)
    }

    /// The earliest start of a slot that is taken after `others` further slots, of which none starts before `from`;
    /// [`Timestamp::MIN`] when nothing was sent.
    pub fn earliest(&self, others: u64, from: Timestamp) -> Timestamp {
        let allowed = u64::from(self.limit.limit.get());
        // So many whole windows are filled by the others.
        let (windows, others) = (others / allowed, others % allowed);
        let mut needed = (self.total + others + 1).saturating_sub(allowed);
        let mut start = if self.released == 0 { Timestamp::MIN } else { self.release_of(self.released) };
        for &(bucket, slots) in &self.buckets {
            if needed == 0 {
                break;
            }
            start = start.max(self.release_of(bucket));
            needed = needed.saturating_sub(slots.into());
        }
        let window = (self.limit.span() + self.limit.bucket()).as_nanos() as u64;
        if windows == 0 { start } else { start.max(from) + Duration::from_nanos(window.saturating_mul(windows)) }
    }

    /// How many slots may start before `until`, without those that would be free again by then.
    pub(crate) fn slots_before(&self, until: Timestamp) -> u32 {
        let kept = self.buckets.iter().rev().take_while(|(bucket, _)| self.release_of(*bucket) >= until);
        let kept: u64 = kept.map(|(_, slots)| u64::from(*slots)).sum();
        u32::try_from(u64::from(self.limit.limit.get()).saturating_sub(kept)).unwrap_or(u32::MAX)
    }

    /// Whether no slot counts any more at `now`.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        let last = self.buckets.back().map_or(self.released, |(bucket, _)| *bucket);
        last == 0 || self.release_of(last) <= now
    }
}
