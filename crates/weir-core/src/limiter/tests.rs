use proptest::prelude::*;

use super::*;
use crate::limit::{MAX_MARGIN_MS, MIN_INTERVAL_MS, NARROW_SLOT, Period};

/// Windows with and without a name.
const PERIODS: [Period; 7] =
    [Period::SECOND, Period::MINUTE, Period::HOUR, Period::DAY, seconds(2), seconds(10), seconds(7_200)];

const fn seconds(seconds: u32) -> Period {
    Period::from_seconds(seconds).unwrap()
}

fn limits(of: &[(u32, Period, u32)]) -> RateLimits {
    RateLimits::new(of.iter().map(|&(r, w, b)| RateLimit::with_burst(r, w, b).unwrap()).collect()).unwrap()
}

/// The same limits with a minimum interval; 0 is none.
fn spaced(limits: RateLimits, interval_ms: u32) -> RateLimits {
    limits.with_min_interval(MinInterval::from_millis(interval_ms))
}

fn with_margin(of: (u32, Period, u32), margin_ms: u32) -> RateLimits {
    let limit = RateLimit::with_burst(of.0, of.1, of.2).unwrap();
    RateLimits::new(limit.with_margin(margin_ms).into_iter().collect()).unwrap()
}

/// The same limits in the window shape.
fn in_windows(limits: &RateLimits) -> RateLimits {
    RateLimits::new(limits.as_slice().iter().map(RateLimit::as_window).collect()).unwrap()
}

fn window(limit: u32, period: Period) -> RateLimits {
    in_windows(&limits(&[(limit, period, 1)]))
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_secs(1_000_000) + Duration::from_millis(millis as u64)
}

#[test]
fn an_idle_destination_gets_a_slot_that_starts_now() {
    let mut limiter = Limiter::new(&limits(&[(10, Period::SECOND, 1)]));
    assert_eq!(limiter.take(at(0)), Slot { start: at(0), end: at(10) });
    assert_eq!(limiter.take(at(0)).start, at(101));
    assert_eq!(limiter.take(at(5_000)).start, at(5_000));
}

#[test]
fn the_strictest_of_several_limits_binds() {
    let mut limiter = Limiter::new(&limits(&[(10, Period::SECOND, 1), (30, Period::MINUTE, 1)]));
    limiter.take(at(0));
    assert_eq!(limiter.take(at(0)).start, at(2_003) + Duration::from_nanos(333_334));
}

#[test]
fn a_burst_runs_ahead_of_the_cursor_once() {
    let mut limiter = Limiter::new(&limits(&[(10, Period::SECOND, 3)]));
    let starts: Vec<_> = (0..5).map(|_| limiter.take(at(0)).start).collect();
    assert_eq!(starts, [at(0), at(0), at(0), at(101), at(202)]);
}

#[test]
fn a_raised_limit_takes_effect_from_the_last_start() {
    let mut limiter = Limiter::new(&limits(&[(1, Period::SECOND, 1)]));
    limiter.take(at(0));
    limiter.reconfigure(&limits(&[(100, Period::SECOND, 1)]));
    assert_eq!(limiter.next_start(at(0)), at(10) + Duration::from_micros(100));
}

#[test]
fn a_limit_removed_and_put_back_is_not_reset() {
    let ten = limits(&[(10, Period::SECOND, 1)]);
    let mut limiter = Limiter::new(&ten);
    limiter.take(at(0));
    limiter.reconfigure(&RateLimits::UNLIMITED);
    limiter.reconfigure(&ten);
    // The last slot may have been as wide as the slot of an unlimited destination.
    let wider = crate::limit::UNLIMITED_SLOT_WIDTH - crate::limit::NARROW_SLOT;
    assert_eq!(limiter.next_start(at(1)), at(101) + wider);
}

#[test]
fn a_recovered_limiter_counts_the_burst_as_spent() {
    let limiter = Limiter::recovered(&limits(&[(10, Period::SECOND, 5)]), Some(at(0)));
    assert_eq!(limiter.next_start(at(1)), at(101));
}

#[test]
fn the_arithmetic_does_not_saturate_with_very_large_bursts() {
    let mut limiter = Limiter::new(&limits(&[(1, Period::DAY, 86_000)]));
    assert!((0..86_000).all(|_| limiter.take(at(0)).start == at(0)));
    let day = Duration::from_secs(86_400) + crate::limit::NARROW_SLOT;
    assert_eq!(limiter.take(at(0)).start, at(0) + day);
    assert_eq!(limiter.take(at(0)).start, at(0) + day * 2);
    assert_eq!(limiter.slots_before(at(0), at(0) + day * 10, 100), 7);
}

#[test]
fn after_a_burst_is_lowered_the_next_slot_waits_no_longer_than_a_window() {
    let mut limiter = Limiter::new(&limits(&[(1, Period::DAY, 1_000_000)]));
    for _ in 0..1_000_000 {
        limiter.take(at(0));
    }
    limiter.reconfigure(&limits(&[(2, Period::DAY, 1)]));
    let two_days = RateLimit::new(2, Period::DAY).unwrap();
    assert_eq!(limiter.next_start(at(0)), at(0) + two_days.span());
    limiter.take(at(0));
    assert_eq!(limiter.next_start(at(0)), at(0) + two_days.span() + two_days.spacing());
}

#[test]
fn a_burst_that_is_lowered_and_raised_is_not_granted_again() {
    for (low, high) in
        [((1, Period::SECOND, 1), (1, Period::SECOND, 2)), ((1, Period::SECOND, 1), (3, Period::SECOND, 100))]
    {
        let mut limiter = Limiter::new(&limits(&[high]));
        let at_once = |limiter: &mut Limiter| {
            std::iter::repeat_with(|| limiter.take(at(0)).start).take_while(|start| *start == at(0)).count()
        };
        assert_eq!(at_once(&mut limiter), high.2 as usize);
        for _ in 0..3 {
            limiter.reconfigure(&limits(&[low]));
            limiter.reconfigure(&limits(&[high]));
            assert!(limiter.next_start(at(0)) > at(0), "{low:?} and {high:?}");
        }
    }
}

#[test]
fn the_tokens_of_a_raised_burst_are_returned_over_time() {
    let mut limiter = Limiter::new(&limits(&[(10, Period::SECOND, 1)]));
    limiter.take(at(0));
    limiter.reconfigure(&limits(&[(10, Period::SECOND, 3)]));
    assert_eq!(limiter.next_start(at(0)), at(101));
    let starts: Vec<_> = (0..4).map(|_| limiter.take(at(303)).start).collect();
    assert_eq!(starts, [at(303), at(303), at(303), at(404)]);
}

#[test]
fn when_slots_become_narrower_the_last_slot_counts_from_its_end() {
    let mut limiter = Limiter::new(&limits(&[(1, Period::DAY, 1)]));
    let wide = limiter.take(at(0));
    limiter.reconfigure(&limits(&[(1, Period::SECOND, 1)]));
    assert!(
        limiter.next_start(at(0)) >= wide.end + Duration::from_secs(1),
        "the send may leave at the end of its slot"
    );
}

#[test]
fn estimated_slots_and_starts_match_the_slots_that_are_taken() {
    for of in [(10, Period::SECOND, 1), (10, Period::SECOND, 4), (7, Period::HOUR, 3)] {
        let mut limiter = Limiter::new(&limits(&[of]));
        for _ in 0..2 {
            limiter.take(at(0));
        }
        let mut taken = limiter.clone();
        let starts: Vec<_> = (0..9).map(|_| taken.take(at(5)).start).collect();
        for (others, start) in (0..).zip(&starts) {
            assert_eq!(limiter.start_after(others, at(5)), *start, "{of:?}");
            let after = *start + Duration::from_nanos(1);
            let before = starts.iter().filter(|start| **start < after).count() as u32;
            assert_eq!(limiter.slots_before(at(5), after, 9), before, "{of:?}");
        }
    }
}

#[test]
fn a_slot_that_is_given_back_leaves_every_cursor_as_before() {
    let both = limits(&[(10, Period::SECOND, 3), (20, Period::MINUTE, 2)]);
    for of in [limits(&[(2, Period::SECOND, 1)]), window(2, Period::SECOND), both] {
        let mut limiter = Limiter::new(&of);
        limiter.take(at(0));
        let mut without = limiter.clone();
        let missed = limiter.take(at(1_000));
        assert!(!limiter.give_back(missed.start, missed.start), "it has not passed");
        assert!(limiter.give_back(missed.start, missed.end));
        assert!(!limiter.give_back(missed.start, missed.end), "a slot is given back once");
        for now in [1_020, 1_020, 4_000] {
            assert_eq!(limiter.take(at(now)), without.take(at(now)), "{of:?}");
        }
    }
}

#[test]
fn only_the_last_slot_is_given_back_and_only_under_its_limits() {
    let mut limiter = Limiter::new(&limits(&[(100, Period::SECOND, 1)]));
    let (first, last) = (limiter.take(at(0)), limiter.take(at(0)));
    assert!(!limiter.give_back(first.start, at(1_000)));
    limiter.reconfigure(&limits(&[(200, Period::SECOND, 1)]));
    assert!(!limiter.give_back(last.start, at(1_000)));
}

#[test]
fn a_window_lets_all_its_sends_start_at_once_and_the_next_a_window_after_the_first() {
    let mut limiter = Limiter::new(&window(300, Period::MINUTE));
    assert!((0..300).all(|_| limiter.take(at(0)).start == at(0)));
    // A slot of 10 ms ends in a bucket of 100 ms.
    assert_eq!(limiter.take(at(0)).start, at(60_100));
    assert_eq!(limiter.start_after(298, at(0)), at(60_100));
    assert!(limiter.start_after(299, at(0)) >= at(120_100));
}

#[test]
fn an_even_limit_beside_a_window_spaces_what_the_window_would_allow_at_once() {
    let second = RateLimit::new(10, Period::SECOND).unwrap();
    let minute = RateLimit::new(300, Period::MINUTE).unwrap().as_window();
    let mut limiter = Limiter::new(&RateLimits::new(vec![second, minute]).unwrap());
    let starts: Vec<_> = (0..301).map(|_| limiter.take(at(0)).start).collect();
    assert_eq!(starts[99], at(99 * 101));
    assert!(starts[300] >= starts[0] + Period::MINUTE.window() + NARROW_SLOT);
}

#[test]
fn slots_before_a_time_are_those_that_are_taken() {
    let mut limiter = Limiter::new(&window(20, Period::MINUTE));
    for now in [0, 100, 7_000, 30_000, 30_000] {
        limiter.take(at(now));
    }
    let mut taken = limiter.clone();
    let starts: Vec<_> = (0..30).map(|_| taken.take(at(30_000)).start).collect();
    for (others, start) in (0..).zip(&starts) {
        let estimate = limiter.start_after(others, at(30_000));
        // Of a second window within two buckets.
        let most = if others < 20 { *start } else { *start + Duration::from_millis(200) };
        assert!(estimate >= *start && estimate <= most, "{others}: {estimate:?} {start:?}");
    }
    let before = |millis| limiter.slots_before(at(30_000), at(millis), 99);
    assert_eq!([30_000, 30_001, 60_100, 60_101, 68_000].map(before), [0, 15, 15, 16, 18]);
}

#[test]
fn an_edit_of_a_window_keeps_what_was_sent() {
    let mut limiter = Limiter::new(&window(300, Period::MINUTE));
    for now in 0..300 {
        limiter.take(at(now * 10));
    }
    // Raised, lowered, made even and back: a tenth is free at once, or nothing before the minute has passed.
    let mut raised = limiter.clone();
    raised.reconfigure(&window(330, Period::MINUTE));
    assert_eq!((0..40).filter(|_| raised.take(at(3_000)).start == at(3_000)).count(), 30);
    let mut lowered = limiter.clone();
    lowered.reconfigure(&window(10, Period::MINUTE));
    assert!(lowered.next_start(at(3_000)) >= at(60_000 + 2_900));
    limiter.reconfigure(&limits(&[(300, Period::MINUTE, 1)]));
    assert!(limiter.follows(&limits(&[(300, Period::MINUTE, 1)])));
    assert_eq!(limiter.next_start(at(3_000)), at(60_100));
    limiter.reconfigure(&window(300, Period::MINUTE));
    assert_eq!(limiter.next_start(at(3_000)), at(60_100));
    limiter.reconfigure(&window(5, Period::from_seconds(10).unwrap()));
    assert!(limiter.next_start(at(3_000)) >= at(12_900), "of the last ten seconds all are known");
}

#[test]
fn an_even_limit_that_becomes_a_window_counts_its_slots_where_they_were() {
    let even = limits(&[(300, Period::MINUTE, 1)]);
    let mut limiter = Limiter::new(&even);
    for _ in 0..300 {
        limiter.take(at(0));
    }
    let last = limiter.last_start().unwrap();
    limiter.reconfigure(&window(300, Period::MINUTE));
    let next = limiter.next_start(last);
    assert!(next > last && next < last + Duration::from_millis(500), "{next:?} after {last:?}");
    // After an idle half minute half of the window is free.
    let idle = last + Duration::from_secs(30);
    let free = (0..300).filter(|_| limiter.take(idle).start == idle).count();
    assert!((145..=152).contains(&free), "{free}");
}

#[test]
fn a_window_without_records_counts_as_full_after_a_loss() {
    let limiter = Limiter::recovered(&window(5, Period::MINUTE), Some(at(0)));
    assert!(limiter.next_start(at(1)) >= at(60_000) && !limiter.is_fresh(at(59_000)));
    assert!(limiter.is_fresh(at(60_200)) && Limiter::new(&window(5, Period::MINUTE)).is_fresh(at(0)));
}

#[test]
fn a_hold_moves_the_next_slot_and_later_slots_keep_their_spacing() {
    let mut limiter = Limiter::new(&limits(&[(10, Period::SECOND, 1)]));
    limiter.hold(at(3_000));
    limiter.hold(at(1_000));
    assert_eq!(limiter.take(at(0)).start, at(3_000));
    assert_eq!(limiter.take(at(3_000)).start, at(3_101));
}

#[test]
fn a_minimum_interval_alone_spaces_slots_by_itself_and_their_width() {
    let mut limiter = Limiter::new(&spaced(RateLimits::UNLIMITED, 100));
    assert_eq!(limiter.take(at(0)), Slot { start: at(0), end: at(0) + Duration::from_micros(6_250) });
    assert_eq!(limiter.take(at(0)).start, at(0) + Duration::from_micros(106_250));
    assert_eq!(limiter.take(at(5_000)).start, at(5_000), "it was idle");
}

#[test]
fn no_burst_undercuts_a_minimum_interval() {
    let mut limiter = Limiter::new(&spaced(limits(&[(100, Period::SECOND, 50)]), 20));
    let starts: Vec<_> = (0..3).map(|_| limiter.take(at(0)).start).collect();
    assert_eq!(starts, [at(0), at(0) + Duration::from_micros(21_500), at(43)]);
}

#[test]
fn a_minimum_interval_counts_from_the_end_of_the_last_slot_across_edits() {
    let day = limits(&[(1_000, Period::DAY, 1)]);
    let mut limiter = Limiter::new(&day);
    let wide = limiter.take(at(0));
    // Without and with a limit, raised and lowered.
    for interval_ms in [60_000, 1, 400, 10] {
        for limits in [RateLimits::UNLIMITED, limits(&[(1_000, Period::SECOND, 5)]), day.clone()] {
            limiter.reconfigure(&spaced(limits, interval_ms));
            let interval = Duration::from_millis(interval_ms.into());
            assert!(limiter.next_start(at(0)) >= wide.end + interval, "{interval_ms} ms");
        }
    }
}

#[test]
fn an_edit_of_the_minimum_interval_keeps_the_debt_of_the_limits() {
    let ten = limits(&[(10, Period::SECOND, 1)]);
    let mut limiter = Limiter::new(&ten);
    limiter.take(at(0));
    limiter.reconfigure(&spaced(ten.clone(), 1));
    assert_eq!(limiter.next_start(at(0)), at(101));
    limiter.reconfigure(&ten);
    assert_eq!(limiter.next_start(at(0)), at(101));
}

#[test]
fn a_recovered_limiter_waits_for_the_minimum_interval_after_the_last_send() {
    let limiter = Limiter::recovered(&spaced(RateLimits::UNLIMITED, 1_000), Some(at(0)));
    assert!(limiter.next_start(at(0)) >= at(1_000) && !limiter.is_fresh(at(999)));
    assert!(limiter.is_fresh(at(1_100)));
}

#[test]
fn a_missed_slot_of_a_minimum_interval_is_given_back() {
    let mut limiter = Limiter::new(&spaced(RateLimits::UNLIMITED, 100));
    let used = limiter.take(at(0));
    let missed = limiter.take(at(110));
    assert!(limiter.give_back(missed.start, at(120)));
    assert_eq!(limiter.next_start(at(120)), at(120));
    assert_eq!(limiter.next_start(at(0)), used.end + Duration::from_millis(100));
}

#[test]
fn a_margin_lengthens_the_spacing_and_not_the_slot() {
    let mut limiter = Limiter::new(&with_margin((10, Period::SECOND, 1), 50));
    assert_eq!(limiter.take(at(0)), Slot { start: at(0), end: at(10) });
    assert_eq!(limiter.take(at(0)).start, at(106));
    limiter.reconfigure(&limits(&[(10, Period::SECOND, 1)]));
    assert!(limiter.next_start(at(106)) >= at(207), "the debt is kept");
}

/// A limit in costs.
fn points(limit: u32, period: Period) -> RateLimits {
    RateLimits::new(vec![RateLimit::new(limit, period).unwrap().in_costs().unwrap()]).unwrap()
}

#[test]
fn a_slot_takes_its_whole_cost_or_waits_for_it() {
    let mut limiter = Limiter::new(&points(1_000, Period::MINUTE));
    let first = limiter.take_of(600, at(0));
    assert_eq!(limiter.take_of(400, at(500)).start, at(500), "exactly the limit");
    let freed = limiter.next_start_of(1, at(600));
    assert!(freed >= first.start + Duration::from_secs(60) && freed < first.start + Duration::from_millis(60_200));
    assert_eq!(limiter.next_start_of(600, at(600)), freed);
    assert!(limiter.next_start_of(601, at(600)) > freed, "it needs the room of both");
    assert_eq!(limiter.next_start_of(1_001, at(600)), Timestamp::MAX, "never");
}

#[test]
fn a_missed_slot_gives_its_cost_back() {
    let mut limiter = Limiter::new(&points(1_000, Period::MINUTE));
    limiter.take_of(300, at(0));
    let missed = limiter.take_of(700, at(5));
    assert!(limiter.next_start_of(1, at(70)) > at(70));
    assert!(limiter.give_back_of(700, missed.start, at(70)));
    assert_eq!([700, 701].map(|cost| limiter.next_start_of(cost, at(70)) == at(70)), [true, false]);
}

#[test]
fn cheap_sends_do_not_overtake_one_that_waits_for_room() {
    let mut limiter = Limiter::new(&points(100, Period::MINUTE));
    // Half of the limit is used; the rest does not suffice.
    (0..50).for_each(|n| {
        limiter.take_of(1, at(n * 100));
    });
    let start = limiter.next_start_of(80, at(6_000));
    limiter.wait(80, start, at(6_000));
    assert_eq!(limiter.next_start_of(1, at(6_400)), at(6_400), "older ones may be ready in the same moment");
    assert!(limiter.next_start_of(1, at(6_500)) >= start, "otherwise cheap ones would take all that becomes free");
    assert_eq!(limiter.next_start_of(80, at(6_500)), start);
    assert_eq!(limiter.owed_start(Timestamp::MIN, at(6_500)), start, "nothing is owed before");
    assert_eq!(limiter.take_of(80, start).start, start);
    assert!(limiter.next_start_of(1, start) < start + Duration::from_secs(5), "what is free goes to the others");
    // One that never comes back holds nobody for longer.
    let again = limiter.next_start_of(90, start);
    limiter.wait(90, again, start);
    let after = again + super::WAITED_FOR;
    assert_eq!(limiter.next_start_of(1, after), after);
}

#[test]
fn a_run_publishes_by_the_usual_cost() {
    let mut limiter = Limiter::new(&points(1_000, Period::SECOND));
    assert_eq!(limiter.slots_before(at(0), at(50), 5_000), 1_000, "nothing is known");
    (0..2).for_each(|_| {
        limiter.take_of(100, at(0));
    });
    assert_eq!(limiter.slots_before(at(0), at(50), 5_000), 8);
    assert!(limiter.start_after(8, at(0)) > at(1_000) && limiter.start_after(7, at(0)) == at(0));
}

/// Checks that no window holds more than the limit: `sends` with their costs.
fn assert_sums(sends: &mut [(Timestamp, u32)], window: Duration, limit: u64) {
    sends.sort();
    let (mut first, mut sum) = (0, 0);
    for last in 0..sends.len() {
        sum += u64::from(sends[last].1);
        while sends[last].0.since(sends[first].0) >= window {
            sum -= u64::from(sends[first].1);
            first += 1;
        }
        assert!(sum <= limit, "{sum} of {limit} in the window that ends with send {last}");
    }
}

/// Checks the guarantee: any `bound + 1` successive sends span at least a window.
fn assert_bounded(sends: &mut [Timestamp], window: Duration, bound: u64) {
    sends.sort();
    let bound = bound as usize;
    for (first, last) in sends.iter().zip(sends.iter().skip(bound)) {
        assert!(last.since(*first) >= window, "{bound} + 1 sends within {:?}", last.since(*first));
    }
}

/// Some with a margin or a minimum interval.
fn any_limits() -> impl Strategy<Value = RateLimits> {
    let more = (prop_oneof![Just(0), 0u32..200], prop_oneof![Just(0), 1u32..150]);
    (1u32..300, 1u32..2_000, 1u32..6, 0u8..6, more).prop_map(|(second, minute, burst, shapes, (margin, interval))| {
        let second = RateLimit::with_burst(second, Period::SECOND, burst).unwrap().with_margin(margin).unwrap();
        let mut of = vec![if shapes % 2 == 0 { second } else { second.as_window() }];
        let minute = RateLimit::new(minute, Period::MINUTE).unwrap();
        match shapes / 2 {
            0 => {}
            1 => of.push(minute),
            _ => of.push(minute.as_window()),
        }
        spaced(RateLimits::new(of).unwrap(), interval)
    })
}

/// Checks everything that limits promise: any `bound + 1` successive sends span at least a window and the margin, and
/// no two are closer than the minimum interval.
fn assert_kept(sends: &mut [Timestamp], limits: &RateLimits) {
    for limit in limits.as_slice() {
        assert_bounded(sends, limit.period.window() + limit.margin(), limit.bound());
    }
    if let Some(interval) = limits.min_interval() {
        assert_bounded(sends, interval.as_duration(), 1);
    }
}

proptest! {
    /// Slots are used at one of their ends, or missed and given back; sends wait for room, and times of calls go back by
    /// milliseconds. Edits of the limit, the margin and a second limit; a window that spans edits is bounded by the largest.
    #[test]
    fn no_window_holds_more_than_the_limit_in_costs(edits in prop::collection::vec((100u32..1_500, 0u32..200, any::<bool>()), 1..5), steps in prop::collection::vec((0u8..8, 0u64..400, 1u32..100), 1..300)) {
        let limits = |&(limit, margin, evenly): &(u32, u32, bool)| {
            let minute = RateLimit::new(limit, Period::MINUTE).unwrap().in_costs().unwrap().with_margin(margin).unwrap();
            let second = RateLimit::new(20, Period::SECOND).unwrap();
            RateLimits::new(if evenly { vec![second, minute] } else { vec![minute] }).unwrap()
        };
        let all: Vec<_> = edits.iter().map(limits).collect();
        let mut limiter = Limiter::new(&all[0]);
        let (mut now, mut sends) = (at(1_000), Vec::new());
        for (index, (kind, gap, cost)) in steps.into_iter().enumerate() {
            now = now + Duration::from_millis(gap);
            if kind == 0 {
                limiter.reconfigure(&all[index % all.len()]);
            }
            let start = limiter.next_start_of(cost, now);
            if kind == 1 {
                limiter.wait(cost, start, now);
                continue;
            }
            now = now.max(start - GRANT_AHEAD);
            let slot = limiter.take_of(cost, now - Duration::from_millis(u64::from(kind % 3)));
            match kind {
                2 => assert!(limiter.give_back_of(cost, slot.start, slot.end)),
                3 | 4 => sends.push((slot.start, cost)),
                _ => sends.push((slot.end - Duration::from_nanos(1), cost)),
            }
        }
        let most = edits.iter().map(|edit| edit.0).max().unwrap();
        assert_sums(&mut sends, Duration::from_secs(60), most.into());
    }

    #[test]
    fn a_limit_in_costs_is_used(cost in 1u32..=50, limit in 500u32..20_000) {
        let mut limiter = Limiter::new(&points(limit, Period::MINUTE));
        // As many as fit into a window, five times.
        let fit = limit / cost;
        let starts: Vec<_> = (0..=fit * 5).map(|_| limiter.take_of(cost, at(0)).start).collect();
        let used = 300.0 / starts.last().unwrap().since(starts[0]).as_secs_f64();
        prop_assert!(used >= 0.994, "{used}");
    }

    #[test]
    fn no_sliding_window_exceeds_its_bound(limits in any_limits(), gaps in prop::collection::vec((0u64..400, any::<bool>()), 1..800)) {
        let mut limiter = Limiter::new(&limits);
        let mut now = at(0);
        let mut sends = Vec::new();
        for (gap, late) in gaps {
            now = now + Duration::from_millis(gap / 8);
            let slot = limiter.take(now);
            sends.push(if late { slot.end - Duration::from_nanos(1) } else { slot.start });
        }
        assert_kept(&mut sends, &limits);
    }

    /// Slots for callers outside Weir are wider than the others. Sends start anywhere in their slots; some slots are given
    /// back, and in between the limits are edited and edited back: a window is bounded by the largest.
    #[test]
    fn no_sliding_window_exceeds_its_bound_with_slots_of_any_width(
        limits in any_limits(),
        steps in prop::collection::vec((0u64..400, 0u64..2_500, 0u64..1_000, 0u8..12), 1..600),
        is_edited in any::<bool>(),
    ) {
        let less = RateLimits::new(limits.as_slice().iter().map(|limit| {
            let lower = RateLimit::new(limit.limit.get().div_ceil(2), limit.period).unwrap();
            lower.with_margin(limit.margin_ms()).unwrap().with_shape(limit.shape()).unwrap()
        }).collect()).unwrap().with_min_interval(limits.min_interval());
        let mut limiter = Limiter::new(&limits);
        let (mut now, mut sends) = (at(0), Vec::new());
        for (gap, width, part, kind) in steps {
            now = now + Duration::from_millis(gap / 8);
            if kind == 0 && is_edited {
                limiter.reconfigure(&less);
                limiter.reconfigure(&limits);
            }
            now = now.max(limiter.next_start(now) - GRANT_AHEAD);
            let width = Duration::from_millis(if kind % 3 == 0 { width } else { 0 });
            let slot = limiter.take_wide(1, limiter.next_start(now), width);
            assert!(slot.end.since(slot.start) >= width);
            if kind == 1 || kind == 3 {
                // Nobody else can have used it.
                assert!(limiter.give_back(slot.start, slot.start + Duration::from_nanos(1)) || limits.as_slice().is_empty());
                now = now.max(slot.start + Duration::from_nanos(1));
            } else {
                let late = slot.end.since(slot.start).as_nanos() as u64 / 1_000 * part;
                sends.push(if part > 900 { slot.end - Duration::from_nanos(1) } else { slot.start + Duration::from_nanos(late) });
            }
        }
        assert_kept(&mut sends, &limits);
    }

    /// Sends start alternately at the end and at the start of their slots. Windows are judged from 100 ms after each
    /// edit.
    #[test]
    fn after_an_edit_no_window_exceeds_the_new_limit(edits in prop::collection::vec(((1u32..200, 0..PERIODS.len(), 1u32..5), 0u32..300, 0u32..200, any::<bool>()), 2..6), takes in 1usize..40) {
        let all: Vec<_> = edits
            .iter()
            .map(|&((r, p, b), margin, interval, is_window)| {
                let even = with_margin((r, PERIODS[p], b), margin);
                spaced(if is_window { in_windows(&even) } else { even }, interval)
            })
            .collect();
        let mut limiter = Limiter::new(&all[0]);
        let mut now = at(0);
        for limits in &all {
            limiter.reconfigure(limits);
            let edited_at = now;
            let mut sends = Vec::new();
            for take in 0..takes {
                now = now.max(limiter.next_start(now) - GRANT_AHEAD);
                let slot = limiter.take(now);
                sends.push(if take % 2 == 0 { slot.end - Duration::from_nanos(1) } else { slot.start });
            }
            sends.retain(|send| *send >= edited_at + Duration::from_millis(100));
            assert_kept(&mut sends, limits);
        }
    }

    /// Each slot is used at its start, used at its end, or missed. A missed slot is given back at a later time, in any
    /// order with other slots and edits.
    #[test]
    fn slots_that_are_given_back_let_no_window_exceed_its_bound(first in any_limits(), edits in any::<bool>(), steps in prop::collection::vec((0u8..12, 0u64..60, any_limits()), 1..600)) {
        let mut limiter = Limiter::new(&first);
        let (mut now, mut sends, mut missed, mut in_force) = (at(0), Vec::new(), Vec::<Slot>::new(), vec![first]);
        for (kind, gap, new) in steps {
            now = now + Duration::from_millis(gap);
            match kind {
                0 if edits => {
                    limiter.reconfigure(&new);
                    in_force.push(new);
                }
                0..=4 => {
                    // The permits of missed slots ask again, the latest of them first or last.
                    let index = if kind % 2 == 0 { 0 } else { missed.len().saturating_sub(1) };
                    if missed.get(index).is_some_and(|slot| slot.is_over(now)) {
                        limiter.give_back(missed.remove(index).start, now);
                    }
                }
                _ => {
                    // Slots are granted at most 40 ms ahead.
                    now = now.max(limiter.next_start(now) - GRANT_AHEAD);
                    let slot = limiter.take(now);
                    match kind {
                        5..=7 => missed.push(slot),
                        8 => sends.push(slot.start),
                        _ => sends.push(slot.end - Duration::from_nanos(1)),
                    }
                }
            }
        }
        for period in [Period::SECOND, Period::MINUTE] {
            // A window that spans edits is bounded by the largest limit, if each of them has one of this period.
            let bounds = in_force.iter().map(|limits| {
                let limit = limits.as_slice().iter().find(|limit| limit.period == period);
                limit.map(|limit| (u64::from(limit.limit.get()), u64::from(limit.burst.get())))
            });
            if let Some(bounds) = bounds.collect::<Option<Vec<_>>>() {
                let most = |of: fn(&(u64, u64)) -> u64| bounds.iter().map(of).max().unwrap_or(0);
                let margins = in_force.iter().flat_map(RateLimits::as_slice).filter(|limit| limit.period == period);
                let margin = margins.map(RateLimit::margin).min().unwrap_or_default();
                assert_bounded(&mut sends, period.window() + margin, most(|bound| bound.0) + most(|bound| bound.1) - 1);
            }
        }
        // `None` is the smallest value.
        if let Some(interval) = in_force.iter().map(RateLimits::min_interval).min().flatten() {
            assert_bounded(&mut sends, interval.as_duration(), 1);
        }
    }

    #[test]
    fn no_window_exceeds_its_bound_over_the_whole_range(limit in 1u32..=crate::limit::MAX_LIMIT, burst in 1u32..=crate::limit::MAX_LIMIT, period in 0..PERIODS.len(), gaps in prop::collection::vec(0u64..200_000_000, 1..200)) {
        let limit = RateLimit::with_burst(limit, PERIODS[period], burst).unwrap();
        // A recovered limiter has spent its whole burst, so a few slots are enough to check the bound.
        let mut limiter = Limiter::recovered(&RateLimits::new(vec![limit]).unwrap(), Some(at(0)));
        let (mut now, mut taken, mut first) = (at(0), 0u64, None);
        for gap in gaps {
            now = now + Duration::from_millis(gap);
            let start = limiter.take(now).start;
            prop_assert!(start >= now && start < Timestamp::MAX);
            taken += 1;
            let first = *first.get_or_insert(start);
            // One token is returned every T: there are never more sends than tokens returned since the recovery.
            let returned = (start + limit.slot_width()).since(at(0)).as_nanos() / limit.spacing().as_nanos();
            prop_assert!(u128::from(taken) <= returned.max(1) + 1, "{taken} since {first:?}");
        }
    }

    #[test]
    fn the_gap_between_two_sends_is_never_shorter_than_the_minimum_interval(intervals in prop::collection::vec((1u32..=*MIN_INTERVAL_MS.end(), any_limits()), 1..6), steps in prop::collection::vec((0u64..2_000, 0u8..4), 1..60)) {
        let all: Vec<_> = intervals.into_iter().map(|(millis, limits)| spaced(limits, millis)).collect();
        let mut limiter = Limiter::new(&all[0]);
        let (mut now, mut last) = (at(0), None::<Timestamp>);
        for limits in &all {
            limiter.reconfigure(limits);
            for &(gap, kind) in &steps {
                now = now + Duration::from_millis(gap);
                let slot = limiter.take(now);
                if kind == 0 {
                    limiter.give_back(slot.start, slot.end);
                    continue;
                }
                let interval = limits.min_interval().unwrap().as_duration();
                prop_assert!(last.is_none_or(|last| slot.start.since(last) >= interval));
                last = Some(if kind == 1 { slot.start } else { slot.end - Duration::from_nanos(1) });
            }
        }
    }

    #[test]
    fn margins_of_the_whole_range_add_to_the_window(limit in 1u32..2_000, period in 0..PERIODS.len(), burst in 1u32..4, margin in 0..=MAX_MARGIN_MS, late in any::<bool>()) {
        let limits = with_margin((limit, PERIODS[period], burst), margin);
        let mut limiter = Limiter::new(&limits);
        let send = |slot: Slot| if late { slot.end - Duration::from_nanos(1) } else { slot.start };
        let mut sends: Vec<_> = (0..2 * limit + burst).map(|_| send(limiter.take(at(0)))).collect();
        assert_kept(&mut sends, &limits);
    }

    #[test]
    fn a_window_that_spans_edits_is_bounded_by_the_largest_rate(rates in prop::collection::vec((1u32..200, 1u32..4, any::<bool>()), 2..8), takes in 1usize..60, gap in 0u64..30) {
        let of = |&(r, b, is_window): &(u32, u32, bool)| {
            let even = limits(&[(r, Period::SECOND, b)]);
            if is_window { in_windows(&even) } else { even }
        };
        let all: Vec<_> = rates.iter().map(of).collect();
        let mut limiter = Limiter::new(&all[0]);
        let mut now = at(0);
        let mut sends = Vec::new();
        for limits in &all {
            limiter.reconfigure(limits);
            for take in 0..takes {
                now = now + Duration::from_millis(gap);
                let slot = limiter.take(now);
                sends.push(if take % 2 == 0 { slot.end - Duration::from_nanos(1) } else { slot.start });
            }
        }
        let rate = rates.iter().map(|&(r, ..)| r).max().unwrap();
        let burst = rates.iter().map(|&(_, b, is_window)| if is_window { 1 } else { b }).max().unwrap();
        assert_bounded(&mut sends, Duration::from_secs(1), u64::from(rate + burst - 1));
    }

    /// A limit of ten seconds is in force from time to time, for example between overrides. What it has let through counts
    /// whenever it comes back. `lost`: the process dies meanwhile, and the sends are recalled.
    #[test]
    fn a_window_that_comes_back_counts_what_it_has_let_through(limit in 2u32..200, in_costs in any::<bool>(), margin in 0u32..200, lost in 0usize..12, steps in prop::collection::vec((0u8..8, 0u64..1_500, 1u32..60), 1..12)) {
        let of = RateLimit::new(limit, seconds(10)).unwrap().as_window().with_margin(margin).unwrap();
        let of = if in_costs { of.in_costs().unwrap() } else { of };
        let others = [
            self::limits(&[(50, Period::SECOND, 1)]),
            in_windows(&self::limits(&[(100, Period::SECOND, 1)])),
            self::limits(&[(20, seconds(10), 3)]),
            in_windows(&self::limits(&[(40, seconds(20), 1)])),
            RateLimits::default(),
        ];
        let (with, mut limiter) = (RateLimits::new(vec![of]).unwrap(), Limiter::default());
        let (mut now, mut all, mut governed) = (at(0), Vec::new(), Vec::new());
        for (index, (kind, gap, takes)) in steps.into_iter().enumerate() {
            now = now + Duration::from_millis(gap);
            let limits = others.get(usize::from(kind)).unwrap_or(&with);
            if lost == index && limits != &with {
                let mut ring = Ring::new(of);
                all.iter().for_each(|(sent, cost): &(Timestamp, u32)| ring.count(sent.floor(of.bucket()) + of.bucket(), of.taken_by(*cost)));
                limiter = Limiter::recovered(limits, all.last().map(|(sent, _)| *sent));
                limiter.recall_dormant(&ring);
            } else {
                limiter.reconfigure(limits);
            }
            let edited_at = now;
            for take in 0..takes {
                let cost = if in_costs { (1 + take % 3).min(limit) } else { 1 };
                now = now.max(limiter.next_start_of(cost, now) - GRANT_AHEAD);
                let slot = limiter.take_of(cost, now);
                if take % 5 == 0 {
                    assert!(limiter.give_back_of(cost, slot.start, slot.end) || limits.as_slice().is_empty());
                    continue;
                }
                let sent = if take % 2 == 0 { slot.end - Duration::from_nanos(1) } else { slot.start };
                all.push((sent, cost));
                if limits == &with && sent >= edited_at + Duration::from_millis(100) {
                    governed.push((sent, of.taken_by(cost)));
                }
            }
        }
        assert_sums(&mut governed, of.period.window() + of.margin(), limit.into());
    }

    /// After the death of a process, its recorded sends are counted in their buckets. Its last sends are not recorded, and
    /// count as if they had started just now. `is_even`: an edit has made the limit even meanwhile.
    #[test]
    fn a_restart_from_recorded_sends_keeps_the_bound(limit in 1u32..300, period in 0..PERIODS.len(), before in prop::collection::vec(0u64..60, 1..300), unrecorded in 0usize..20, after in 1usize..300, is_even in any::<bool>()) {
        let limits = window(limit, PERIODS[period]);
        let of = limits.as_slice()[0];
        let (mut limiter, mut now, mut sends) = (Limiter::new(&limits), at(0), Vec::new());
        for gap in before {
            now = now.max(limiter.next_start(now)) + PERIODS[period].window() / 3_000 * gap as u32;
            sends.push(limiter.take(now).end - Duration::from_nanos(1));
        }
        let unrecorded = unrecorded.min(sends.len());
        let recorded = &sends[..sends.len() - unrecorded];
        let mut ring = Ring::new(of);
        recorded.iter().for_each(|sent| ring.count(sent.floor(of.bucket()) + of.bucket(), 1));
        ring.count(*sends.last().unwrap() + Duration::from_nanos(1), unrecorded as u32);
        let edited = if is_even { self::limits(&[(limit, PERIODS[period], 1)]) } else { limits.clone() };
        let mut limiter = Limiter::recovered(&edited, sends.last().copied());
        if is_even { limiter.recall_even(&ring) } else { limiter.recall(ring) }
        sends.extend((0..after).map(|_| limiter.take(now).start));
        assert_kept(&mut sends, &limits);
    }

    #[test]
    fn a_saturated_window_is_used(limit in 1u32..2_000, seconds in 3u32..=86_400) {
        let limits = window(limit, Period::from_seconds(seconds).unwrap());
        let mut limiter = Limiter::new(&limits);
        let starts: Vec<_> = (0..=limit * 5).map(|_| limiter.take(at(0)).start).collect();
        let used = f64::from(seconds) * 5.0 / starts.last().unwrap().since(starts[0]).as_secs_f64();
        prop_assert!(used >= 0.994, "{used}");
        let ring = &LimiterParts::from(&limiter).rings[0];
        prop_assert!(ring.buckets.len() <= 602, "{} buckets", ring.buckets.len());
    }

    #[test]
    fn a_restart_that_knows_only_the_last_start_keeps_the_bound(limits in any_limits(), before in 1usize..200, after in 1usize..200) {
        let mut limiter = Limiter::new(&limits);
        let mut sends: Vec<_> = (0..before).map(|_| limiter.take(at(0)).end - Duration::from_nanos(1)).collect();
        let last = *sends.iter().max().unwrap();
        let mut limiter = Limiter::recovered(&limits, Some(last));
        sends.extend((0..after).map(|_| limiter.take(at(0)).start));
        assert_kept(&mut sends, &limits);
    }

    #[test]
    fn a_saturated_limit_is_used(rate in 1u32..2_000) {
        let mut limiter = Limiter::new(&limits(&[(rate, Period::SECOND, 1)]));
        let last = (0..rate * 10).map(|_| limiter.take(at(0)).start).last().unwrap();
        let utilisation = f64::from(rate * 10 - 1) / f64::from(rate) / last.since(at(0)).as_secs_f64();
        prop_assert!(rate == 1 || utilisation >= 0.985, "{utilisation}");
    }
}

/// One slot in four is a quarter of a second wide.
#[test]
fn wide_slots_cost_a_limit_only_the_time_by_which_they_are_wider() {
    for (limit, period, least) in [(300, Period::MINUTE, 0.99), (10, Period::SECOND, 0.90), (100, Period::SECOND, 0.92)]
    {
        let mut limiter = Limiter::new(&limits(&[(limit, period, 1)]));
        let count = limit * 10;
        let take = |slot: u32| {
            let width = Duration::from_millis(if slot.is_multiple_of(4) { 250 } else { 0 });
            limiter.take_wide(1, limiter.next_start(at(0)), width).start
        };
        let last = (0..=count).map(take).last().unwrap();
        let used = 10.0 * period.window().as_secs_f64() / last.since(at(0)).as_secs_f64();
        assert!((least..=1.0).contains(&used), "{limit}: {used}");
    }
}

#[test]
fn a_wide_slot_does_not_delay_the_next_one_unless_a_window_would_hold_too_many() {
    let mut limiter = Limiter::new(&limits(&[(10, Period::SECOND, 1)]));
    let wide = limiter.take_wide(1, at(0), Duration::from_millis(300));
    assert_eq!(wide, Slot { start: at(0), end: at(300) });
    assert_eq!(limiter.next_start(at(0)), at(101));
    (0..9).for_each(|_| {
        limiter.take(at(0));
    });
    // The oldest of them ended at 111 ms. The wide one counts until its end.
    let starts: Vec<Timestamp> = (0..3).map(|_| limiter.take(at(0)).start).collect();
    for (start, earliest) in starts.into_iter().zip([1_111, 1_212, 1_313]) {
        assert!((at(earliest)..at(earliest + 4)).contains(&start), "{start:?} {earliest}");
    }
}

#[test]
fn a_minimum_interval_counts_from_the_end_of_a_wide_slot() {
    let mut limiter = Limiter::new(&spaced(RateLimits::UNLIMITED, 100));
    let wide = limiter.take_wide(1, at(0), Duration::from_millis(250));
    assert_eq!(limiter.next_start(at(0)), wide.end + Duration::from_millis(100));
    limiter.reconfigure(&spaced(RateLimits::UNLIMITED, 50));
    assert!(limiter.next_start(at(0)) >= wide.end + Duration::from_millis(50));
}

#[test]
fn a_limit_with_the_minimum_interval_of_a_strict_receiver_is_used() {
    for (limit, period, interval_ms, least) in [
        (2, Period::SECOND, 500, 0.93),
        (10, Period::SECOND, 100, 0.93),
        (60, Period::MINUTE, 1_000, 0.93),
        (50, Period::SECOND, 20, 0.93),
        (100, Period::SECOND, 10, 0.85),
    ] {
        let mut limiter = Limiter::new(&spaced(limits(&[(limit, period, 1)]), interval_ms));
        let last = (0..=1_000).map(|_| limiter.take(at(0)).start).last().unwrap();
        let most = f64::from(limit) * last.since(at(0)).as_secs_f64() / period.window().as_secs_f64();
        assert!(1_000.0 / most >= least, "{limit} {interval_ms}: {}", 1_000.0 / most);
    }
}
