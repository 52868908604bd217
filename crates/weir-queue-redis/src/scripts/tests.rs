//! The limiter in Lua against the one in Rust.

use std::collections::BTreeSet;

use proptest::prelude::*;
use weir_core::{RateLimits, Slot, budget, limit::Shape, limiter::GRANT_AHEAD};

use super::*;
use crate::codec::from_micros;

/// Plays a list of steps on some budgets and returns the slots that they granted together.
const PLAY: &str = "
local budgets, position = list(function() return recovered_limiter(read_limits(), nil) end), 0
local slots = {}
while more() do
  local step, of = text(), position % #budgets + 1
  position = position + 1
  if step == 'take' then
    local at, cost = number(), number()
    slots[#slots + 1], slots[#slots + 2] = take_slot_in(budgets, next_start_in(budgets, at, cost), 0, cost)
  elseif step == 'wide' then
    -- No slot is granted further ahead.
    local at, width = math.max(number(), (slots[#slots - 1] or 0) - GRANT_AHEAD), number()
    local start = next_start(budgets[of], at, 1)
    slots[#slots + 1], slots[#slots + 2] = start, take_slot(budgets[of], start, 0, 1, width)
  elseif step == 'wait' then
    local at, cost = number(), number()
    wait_for_room_in(budgets, cost, at, at, at)
    -- What a run plans by is the same, too.
    slots[#slots + 1] = start_after(budgets[of], cost % 7, at)
    slots[#slots + 1] = slots[#slots]
  elseif step == 'give_back' then
    local at, cost = number(), number()
    give_back_in(budgets, slots[#slots - 1] or 0, at, cost)
  elseif step == 'hold' then
    hold_limiter(budgets[of], number())
  elseif step == 'limits' then
    reconfigure(budgets[of], read_limits())
  elseif step == 'recover' then
    budgets[of] = recovered_limiter(read_limits(), number())
  end
end
return slots
";

/// What is not about all budgets is about one of them, which the position of the step says.
#[derive(Debug, Clone)]
enum Step {
    /// At this time, with this cost.
    Take(Timestamp, u32),
    /// At this time, so wide at least, for a caller outside Weir.
    Wide(Timestamp, Duration),
    /// A send of this cost is told when its slot begins. Beside the slots it gives when one after a few others begins.
    Wait(Timestamp, u32),
    /// The slot that was granted last was not used, by a send of this cost.
    GiveBack(u32),
    Hold(Timestamp),
    Limits(RateLimits),
    /// Only the last start is known.
    Recover(Timestamp),
}

fn in_rust(first: &[RateLimits], steps: &[Step]) -> Vec<Slot> {
    let mut limits = first.to_vec();
    let mut budgets: Vec<_> = first.iter().map(Limiter::new).collect();
    let mut slots: Vec<Slot> = Vec::new();
    for (of, step) in (0..first.len()).cycle().zip(steps) {
        let mut all: Vec<_> = budgets.iter_mut().collect();
        match step {
            Step::Take(at, cost) => slots.extend(budget::take(&mut all, *cost, *at, Timestamp::MAX)),
            Step::Wide(at, width) => {
                let at = slots.last().map_or(*at, |last: &Slot| (*at).max(last.start - GRANT_AHEAD));
                let start = budgets[of].next_start_of(1, at);
                slots.push(budgets[of].take_wide(1, start, *width));
            }
            Step::Wait(at, cost) => {
                budget::wait(&mut all, *cost, *at, *at, *at);
                let start = budgets[of].start_after(cost % 7, *at);
                slots.push(Slot { start, end: start });
            }
            Step::GiveBack(cost) => {
                let start = slots.last().map_or(Timestamp::MAX, |slot| slot.start);
                budget::give_back(&mut all, *cost, start, late());
            }
            Step::Hold(until) => budgets[of].hold(*until),
            Step::Limits(new) => {
                limits[of] = new.clone();
                budgets[of].reconfigure(new);
            }
            Step::Recover(last) => budgets[of] = Limiter::recovered(&limits[of], Some(*last)),
        }
    }
    slots
}

fn in_lua(first: &[RateLimits], steps: &[Step]) -> Vec<Slot> {
    let source = assemble(&[&constants(), ARGUMENTS], &[LIMITER, PLAY]);
    let mut call = eval();
    // No keys, and no time, installation and generation of a caller.
    call.arg(source).arg(0).arg(0).arg("").arg(0).arg(first.len());
    for limits in first {
        call.limits(limits);
    }
    let mut limits: Vec<_> = first.iter().collect();
    for (of, step) in (0..first.len()).cycle().zip(steps) {
        match step {
            Step::Take(at, cost) => call.arg("take").not_before(*at).arg(*cost),
            Step::Wide(at, width) => call.arg("wide").not_before(*at).arg(micros(*width)),
            Step::Wait(at, cost) => call.arg("wait").not_before(*at).arg(*cost),
            Step::GiveBack(cost) => call.arg("give_back").not_before(late()).arg(*cost),
            Step::Hold(until) => call.arg("hold").not_before(*until),
            Step::Limits(new) => {
                limits[of] = new;
                call.arg("limits").limits(new)
            }
            Step::Recover(last) => call.arg("recover").limits(limits[of]).not_before(*last),
        };
    }
    let times: Vec<i64> = call.command.query(&mut connection()).unwrap();
    times.chunks(2).map(|slot| Slot { start: from_micros(slot[0]), end: from_micros(slot[1]) }).collect()
}

fn eval() -> Call {
    Call {
        shard: Shard::of(DestinationId::from_bytes([0; 16])),
        generation: 0,
        operation: Operation::Begin,
        command: redis::cmd("EVAL"),
        terms: Vec::new(),
    }
}

/// Takes the next slot.
const TAKE_SLOT: &str = "
local take_slot_at = take_slot
local function take_slot(limiter, at, needed, cost)
  local start = next_start(limiter, at, cost)
  return start, take_slot_at(limiter, start, needed, cost or 1)
end
";

/// Runs a part of a script that has the limiter.
fn run_with_limiter(text: &str) -> Vec<i64> {
    let source = assemble(&[&constants(), ARGUMENTS], &[LIMITER, TAKE_SLOT, text]);
    redis::cmd("EVAL").arg(source).arg(0).query(&mut connection()).unwrap()
}

/// A function of Lua uses 60 variables of outer functions at most, and has 200 of its own.
#[test]
fn every_script_compiles() {
    let mut connection = connection();
    for operation in Operation::iter() {
        let Script { source, digest } = operation.script();
        let loaded: Result<String, _> = redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection);
        assert_eq!(loaded.as_ref(), Ok(digest), "{operation:?}");
    }
}

/// Otherwise a job would be in the schedule by its phase, and in no schedule.
#[test]
fn every_script_that_moves_jobs_writes_what_it_has_moved_at_its_end() {
    for operation in Operation::iter() {
        let source = &operation.script().source;
        let ends = source.ends_with("end)()\nwrite_moves()\nreturn answer\n");
        assert_eq!(source.contains("function move_in("), ends, "{operation:?}");
    }
}

#[test]
fn terms_that_a_call_has_already_are_named_by_their_number() {
    let mut call = eval();
    let [one, other] = [1, 2].map(|weight| Terms { weight, ..Terms::deleted(late()) });
    call.terms(&one).terms(&other);
    let before = call.command.args_iter().count();
    call.terms(&other).terms(&one);
    let named: Vec<_> = call.command.args_iter().skip(before).collect();
    assert!(matches!(named[..], [Arg::Simple(b"2"), Arg::Simple(b"1")]));
}

#[test]
fn a_slot_is_not_given_back_once_an_earlier_version_of_the_script_has_moved_the_cursors() {
    // The earlier version keeps `last_take` as it is.
    let starts = run_with_limiter(
        "local limiter = recovered_limiter({ { limit = 10, period = 1, burst = 2 } }, nil)
         take_slot(limiter, 1000000, 0)
         local kept = limiter.last_take
         local second = take_slot(limiter, 1000000, 0)
         limiter.last_take = kept
         give_back(limiter, 1000000, 9000000)
         return { second, next_start(limiter, 1000000) }",
    );
    assert_eq!(starts, [1_000_000, 1_101_000]);
}

#[test]
fn a_call_that_runs_after_its_repetition_gives_no_later_slot_back() {
    // The first call for another slot is late. Its repetition has given the missed slot back and got the next one.
    let starts = run_with_limiter(
        "local limiter = recovered_limiter({ { limit = 10, period = 1, burst = 1 } }, nil)
         local missed = take_slot(limiter, 1000000, 0)
         give_back(limiter, missed, 1020000)
         local used = take_slot(limiter, 1020000, 0)
         give_back(limiter, missed, 1030000)
         return { missed, used, next_start(limiter, 1030000) }",
    );
    assert_eq!(starts, [1_000_000, 1_020_000, 1_121_000]);
}

#[test]
fn a_wide_slot_delays_the_next_one_by_the_minimum_interval_after_its_end() {
    // 2.5 ms instead of 1.5 ms. No slot is wider than without the interval: 10 ms.
    let times = run_with_limiter(
        "local limiter = recovered_limiter({ interval = 10000 }, nil)
         local times = { take_slot(limiter, 1000000, 2500) }
         times[3], times[4] = take_slot(limiter, 1000000, 1000)
         times[5], times[6] = take_slot(limiter, 1000000, 99000)
         times[7] = next_start(limiter, 1000000)
         give_back(limiter, times[5], 1030000)
         times[8] = next_start(limiter, 1030000)
         return times",
    );
    assert_eq!(times[..4], [1_000_000, 1_002_500, 1_012_500, 1_014_000]);
    assert_eq!(times[4..], [1_024_000, 1_034_000, 1_044_000, 1_030_000]);
}

#[test]
fn cursors_of_an_earlier_version_have_no_margin_and_no_interval() {
    let times = run_with_limiter(
        "local limiter = {
           cursors = { { limit = 10, period = 1, burst = 1, since = 1000000, spent = 1 } },
           last_start = 1000000, held_until = 0,
         }
         local limits = { { limit = 10, period = 1, burst = 1, margin = 0 } }
         local kept = follows(limiter, limits)
         local first = next_start(limiter, 1000000)
         limits = { { limit = 10, period = 1, burst = 1, margin = 50000 }, interval = 200000 }
         reconfigure(limiter, limits)
         return { kept and 1 or 0, first, next_start(limiter, 1000000) }",
    );
    assert_eq!(times, [1, 1_101_000, 1_210_000]);
}

#[test]
fn slots_that_an_earlier_version_took_beside_a_ring_count_as_a_whole_window() {
    // It moves the cursor alone; and its way to give a slot back drops the ring.
    let starts = run_with_limiter(
        "local limiter = recovered_limiter({ { limit = 3, period = SHAPED + 60, burst = 1 } }, nil)
         local first = take_slot(limiter, 60000000, 0)
         local second = next_start(limiter, 60000000)
         limiter.cursors[1].since, limiter.last_start = 61000000, 61000000
         local after = next_start(limiter, 61000000)
         limiter.cursors[1].ring = nil
         return { first, second, after, next_start(limiter, 61000000) }",
    );
    assert_eq!(starts, [60_000_000, 60_000_000, 121_100_000, 121_100_000]);
}

#[test]
fn slots_that_an_earlier_version_took_from_a_limit_in_costs_count_as_a_whole_window() {
    // Its script counts a send as 1, in buckets of another length.
    let starts = run_with_limiter(
        "local limiter = recovered_limiter({ { limit = 3, period = COSTED + 60, burst = 1 } }, nil)
         local first = take_slot(limiter, 60000000, 0, 1)
         local second = next_start(limiter, 60000000, 2)
         local cursor = limiter.cursors[1]
         cursor.since, cursor.ring[5], limiter.last_start = 61000000, 61000000, 61000000
         return { first, second, next_start(limiter, 61000000, 1) }",
    );
    assert_eq!(starts, [60_000_000, 60_000_000, 121_100_000]);
}

#[test]
fn slots_that_an_earlier_version_took_while_a_window_was_not_in_force_count_as_a_whole_window() {
    let starts = run_with_limiter(
        "local window = { { limit = 3, period = SHAPED + 60, burst = 1 } }
         local limiter = recovered_limiter(window, nil)
         local first = take_slot(limiter, 60000000, 0)
         reconfigure(limiter, {})
         limiter.last_start = 61000000
         reconfigure(limiter, window)
         local after = next_start(limiter, 61000000)
         -- Once more, and then this version grants a slot and applies an edit before the window is back.
         reconfigure(limiter, {})
         limiter.last_start = 62000000
         take_slot(limiter, 62500000, 0)
         reconfigure(limiter, { { limit = 9, period = 1, burst = 1 } })
         reconfigure(limiter, window)
         return { first, after, next_start(limiter, 63000000) }",
    );
    assert_eq!(starts[..2], [60_000_000, 121_100_000]);
    assert!(starts[2] >= 122_000_000, "{starts:?}");
}

#[test]
fn a_ring_takes_at_most_two_and_a_half_kilobytes() {
    let sizes = run_with_limiter(
        "local sizes = {}
         for index, limit in ipairs({ 600, 1000000 }) do
           local limiter = recovered_limiter({ { limit = limit, period = SHAPED + 60, burst = 1 } }, nil)
           for bucket = 1, 700 do
             local at = 60000000 + bucket * 100000
             take_slot(limiter, at, 0)
             count_slots(limiter.cursors[1], at + 10000, math.floor(limit / 600) - 1)
           end
           sizes[index] = #cmsgpack.pack(limiter.cursors[1].ring)
         end
         return sizes",
    );
    assert!(sizes[0] < 1_300 && sizes[1] < 2_500, "{sizes:?}");
}

fn connection() -> redis::Connection {
    let url = std::env::var("WEIR_TEST_REDIS_URL").unwrap_or_else(|_| {
        panic!(
            "this test needs a server: run it with `cargo xtask test`, which provides it, or set WEIR_TEST_REDIS_URL"
        )
    });
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

/// After every slot of a test.
fn late() -> Timestamp {
    at(1 << 50)
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_secs(1_800_000_000) + Duration::from_micros(micros)
}

fn any_limits() -> impl Strategy<Value = RateLimits> {
    let one = |period| {
        (1u32..2_000, 1u32..6, any_margin(), any::<bool>()).prop_map(move |(limit, burst, margin, is_window)| {
            let limit = RateLimit::with_burst(limit, period, burst)?.with_margin(margin)?;
            Some(if is_window { limit.as_window() } else { limit })
        })
    };
    (any_periods().prop_flat_map(move |periods| periods.into_iter().map(one).collect::<Vec<_>>()), any_interval())
        .prop_map(set)
}

/// The budgets of a limit key, of its destination and of its group; of a destination and its group; or of one of them.
fn any_budgets() -> impl Strategy<Value = Vec<RateLimits>> {
    prop::collection::vec(any_limits(), 1..=3)
}

/// Windows with and without a name.
fn any_periods() -> impl Strategy<Value = BTreeSet<Period>> {
    let seconds = prop_oneof![Just(1), Just(60), Just(3_600), Just(86_400), 1u32..=86_400, 2u32..20];
    prop::collection::btree_set(seconds.prop_map(|seconds| Period::from_seconds(seconds).unwrap()), 0..=4)
}

fn set((limits, interval): (Vec<Option<RateLimit>>, u32)) -> RateLimits {
    let limits = RateLimits::new(limits.into_iter().flatten().collect()).unwrap();
    limits.with_min_interval(MinInterval::from_millis(interval))
}

fn any_margin() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 0..=weir_core::limit::MAX_MARGIN_MS]
}

/// In milliseconds; 0 for none.
fn any_interval() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1u32..200, 1u32..=60_000]
}

/// Limits and bursts from the whole accepted range.
fn limits_of_the_whole_range() -> impl Strategy<Value = RateLimits> {
    let one = |period| {
        let most = weir_core::limit::MAX_LIMIT;
        let around = prop_oneof![1..=most, Just(1), Just(most), Just(86_000)];
        (around.clone(), around, any_margin())
            .prop_map(move |(limit, burst, margin)| RateLimit::with_burst(limit, period, burst)?.with_margin(margin))
    };
    (any_periods().prop_flat_map(move |periods| periods.into_iter().map(one).collect::<Vec<_>>()), any_interval())
        .prop_map(set)
}

/// Steps at rising times.
/// Whether an edit to these limits leaves out one of a longer window. It comes back before that is over.
fn is_left_out(limit: &RateLimit, new: &RateLimits) -> bool {
    let sends = new.as_slice().first().map_or(0, |new| new.limit.get());
    sends % 2 == 1 && limit.period.window() >= Duration::from_secs(60)
}

fn any_steps(edits: bool) -> impl Strategy<Value = Vec<Step>> {
    let parts = (0u64..3_000_000, 0u8..if edits { 12 } else { 10 }, any_limits(), 1u32..100);
    prop::collection::vec(parts, 1..60).prop_map(|list| {
        let (mut now, mut last) = (0, 1);
        let step = |(gap, kind, limits, cost)| {
            now += gap / 16;
            match kind {
                6 => Step::Wait(at(now), cost),
                // Mostly the last one, and sometimes another one that started with it.
                7 => Step::GiveBack(if gap % 4 > 0 { last } else { cost }),
                8 => Step::Hold(at(now + gap)),
                9 => Step::Recover(at(now)),
                10.. => Step::Limits(limits),
                _ => {
                    last = cost;
                    Step::Take(at(now), cost)
                }
            }
        };
        list.into_iter().map(step).collect()
    })
}

/// Lua and Rust grant the same slots. A budget may have no limit for a while. When it gets one, the new ring assumes that the
/// earlier sends kept a spacing. Lua rounds this spacing up to microseconds, so a send may count in the next bucket.
fn same_slots(first: &[RateLimits], steps: &[Step]) -> Result<(), TestCaseError> {
    let edits = steps.iter().filter_map(|step| if let Step::Limits(new) = step { Some(new) } else { None });
    let all: Vec<_> = first.iter().chain(edits).collect();
    let (lua, rust) = (in_lua(first, steps), in_rust(first, steps));
    if all.iter().all(|limits| !limits.as_slice().is_empty()) {
        prop_assert_eq!(lua, rust);
        return Ok(());
    }
    let bucket = all.iter().flat_map(|limits| limits.as_slice()).map(RateLimit::bucket).max().unwrap_or_default();
    let most = bucket * steps.len() as u32;
    prop_assert_eq!(lua.len(), rust.len());
    for (lua, rust) in lua.into_iter().zip(rust) {
        prop_assert!(
            lua.start.max(rust.start).since(lua.start.min(rust.start)) <= most,
            "{lua:?} is not near {rust:?}"
        );
        prop_assert_eq!(lua.end.since(lua.start), rust.end.since(rust.start));
    }
    Ok(())
}

proptest! {
    #[test]
    fn parts_of_members_are_the_permits_that_start_first(
        mut flows in prop::collection::vec((0u32..40, 1u64..6), 1..20),
        open in 0u64..600,
    ) {
        flows.sort_unstable();
        let member = |(at, weight): &(u32, u64)| format!("{{ at = {at}, count = 0, job = {{ weight = {weight} }} }},");
        let members: String = flows.iter().map(member).collect();
        let text = format!(
            "local group, flows = {{}}, {{ {members} }}
             local answer = {{ FLOWS.give_parts(group, flows, {open}) }}
             for _, flow in ipairs(flows) do
               answer[#answer + 1] = flow.count
             end
             return answer"
        );
        let source = assemble(&[&constants(), ARGUMENTS], &[LIMITER, TURNS, &text]);
        let answer: Vec<u64> = redis::cmd("EVAL").arg(source).arg(0).query(&mut connection()).unwrap();
        let (left, counts) = (answer[0], &answer[1..]);
        prop_assert_eq!(left + counts.iter().sum::<u64>(), open);
        prop_assert!(left <= flows.len() as u64 + 1, "{} are left", left);
        // The virtual time at which the next permit of a member starts, if it has `others` already.
        let start = |flow: usize, others: u64| f64::from(flows[flow].0) + others as f64 / flows[flow].1 as f64;
        let last_given = (0..counts.len()).filter(|flow| counts[*flow] > 0).map(|flow| start(flow, counts[flow] - 1));
        let first_left = (0..counts.len()).map(|flow| start(flow, counts[flow]));
        let (last_given, first_left) = (last_given.fold(0.0, f64::max), first_left.fold(f64::MAX, f64::min));
        prop_assert!(last_given <= first_left + 1e-9, "{counts:?}: {last_given} {first_left}");
    }

    #[test]
    fn slots_in_lua_are_those_in_rust_rounded_up_to_microseconds(limits in any_budgets(), steps in any_steps(false)) {
        for (lua, rust) in in_lua(&limits, &steps).into_iter().zip(in_rust(&limits, &steps)) {
            prop_assert!(lua.start >= rust.start, "{lua:?} starts before {rust:?}");
            // Each step adds a spacing, or a burst of spacings, each rounded up by less than a microsecond. By that a slot
            // may count in a later bucket.
            let windows = limits.iter().flat_map(|limits| limits.of_shape(Shape::Window));
            let buckets = windows.map(RateLimit::bucket).max().unwrap_or_default();
            let most = Duration::from_micros(6 * steps.len() as u64) + buckets * steps.len() as u32;
            prop_assert!(lua.start <= rust.start + most, "{lua:?} starts long after {rust:?}");
            prop_assert_eq!(lua.end.since(lua.start), rust.end.since(rust.start));
        }
    }

    /// Without a spacing nothing is rounded, so both count the same, also after edits of these windows and while long ones
    /// are not in force.
    #[test]
    fn windows_in_lua_are_those_in_rust(limits in any_budgets(), steps in any_steps(true)) {
        // An edit of a budget keeps its windows, and takes the numbers from other limits.
        let edited = |limits: &RateLimits, new: &RateLimits| {
            let (sends, margin) = new.as_slice().first().map_or((7, 0), |new| (new.limit.get(), new.margin_ms()));
            let window = |limit: &RateLimit| {
                RateLimit::new(sends, limit.period).unwrap().with_margin(margin).unwrap().as_window()
            };
            let kept = limits.as_slice().iter().filter(|limit| !is_left_out(limit, new));
            RateLimits::new(kept.map(window).collect()).unwrap()
        };
        let of_windows = |(of, step): (&RateLimits, Step)| match step {
            Step::Limits(new) => Step::Limits(edited(of, &new).with_min_interval(new.min_interval())),
            step => step,
        };
        let first: Vec<_> = limits.iter().map(|limits| edited(limits, &RateLimits::default())).collect();
        let steps: Vec<_> = limits.iter().cycle().zip(steps).map(of_windows).collect();
        same_slots(&first, &steps)?;
    }

    /// The same in costs, beside a limit of another period in requests, across edits of both.
    #[test]
    fn costs_in_lua_are_those_in_rust(limits in any_budgets(), steps in any_steps(true)) {
        let of = |limit: &RateLimit, new: &RateLimits, index: usize| {
            let (sends, margin) = new.as_slice().first().map_or((7, 0), |new| (new.limit.get(), new.margin_ms()));
            let window = RateLimit::new(sends.max(100), limit.period).unwrap().with_margin(margin).unwrap().as_window();
            if index % 3 == 2 { window } else { window.in_costs().unwrap() }
        };
        let mut edits = 0;
        let mut costs = |budget: &RateLimits, new: &RateLimits| {
            edits += 1;
            let of = |(index, limit)| of(limit, new, index + edits / 3);
            let kept = budget.as_slice().iter().enumerate().filter(|(_, limit)| !is_left_out(limit, new));
            RateLimits::new(kept.map(of).collect()).unwrap()
        };
        let first: Vec<_> = limits.iter().map(|limits| costs(limits, &RateLimits::default())).collect();
        let in_costs = |(of, step): (&RateLimits, Step)| match step {
            Step::Limits(new) => Step::Limits(costs(of, &new).with_min_interval(new.min_interval())),
            step => step,
        };
        let steps = limits.iter().cycle().zip(steps).map(in_costs).collect::<Vec<_>>();
        same_slots(&first, &steps)?;
    }

    #[test]
    fn slots_over_the_whole_range_are_those_in_rust(limits in limits_of_the_whole_range(), steps in any_steps(false)) {
        let limits = [limits];
        for (lua, rust) in in_lua(&limits, &steps).into_iter().zip(in_rust(&limits, &steps)) {
            prop_assert!(lua.start >= rust.start, "{lua:?} starts before {rust:?}");
            // A million spacings, each rounded up by less than a microsecond, would be a second.
            prop_assert!(lua.start <= rust.start + Duration::from_secs(1), "{lua:?} starts long after {rust:?}");
            prop_assert_eq!(lua.end.since(lua.start), rust.end.since(rust.start));
        }
    }

    #[test]
    fn no_window_exceeds_the_largest_rate_across_edits(
        rates in prop::collection::vec((1u32..300, 1u32..4, any::<bool>()), 1..6),
        takes in 1u64..60,
        gap in 0u64..30_000,
    ) {
        let limits = |&(rate, burst, is_window): &(u32, u32, bool)| {
            let limit = RateLimit::with_burst(rate, Period::SECOND, burst).unwrap();
            RateLimits::new(vec![if is_window { limit.as_window() } else { limit }]).unwrap()
        };
        let mut steps = Vec::new();
        for (edit, rate) in (0..).zip(&rates) {
            steps.push(Step::Limits(limits(rate)));
            steps.extend((0..takes).map(|take| Step::Take(at((edit * takes + take) * gap), 1)));
        }
        let mut slots = in_lua(&[limits(&rates[0])], &steps);
        // A burst that an edit adds may start before slots that were granted ahead.
        slots.sort_by_key(|slot| slot.start);
        let bound = rates.iter().map(|rate| rate.0).max().unwrap() + rates.iter().map(|rate| if rate.2 { 1 } else { rate.1 }).max().unwrap() - 1;
        // The worst case: the first send is at the end of its slot, the last at the start.
        for (first, last) in slots.iter().zip(slots.iter().skip(bound as usize)) {
            prop_assert!(last.start + Duration::from_nanos(1) >= first.end + Duration::from_secs(1), "{first:?} {last:?}");
        }
    }

    /// Calls of callers outside Weir start at any end of their slots.
    #[test]
    fn slots_of_any_width_keep_every_window(
        limits in any_limits(),
        steps in prop::collection::vec((0u64..300_000, 0u64..600_000, 0u8..8), 1..120),
    ) {
        let mut now = 0;
        let mut kinds = Vec::new();
        let step = |(gap, width, kind): (u64, u64, u8)| {
            now += gap / 16;
            kinds.push(kind);
            Step::Wide(at(now), Duration::from_micros(if kind % 2 == 0 { width } else { 0 }))
        };
        let steps: Vec<_> = steps.into_iter().map(step).collect();
        let slots = in_lua(std::slice::from_ref(&limits), &steps);
        let rust = in_rust(std::slice::from_ref(&limits), &steps);
        let late = |(slot, kind): (&Slot, &u8)| if kind % 4 < 2 { slot.end - Duration::from_nanos(1) } else { slot.start };
        let mut sends: Vec<_> = slots.iter().zip(&kinds).map(late).collect();
        sends.sort_unstable();
        for limit in limits.as_slice() {
            for (first, last) in sends.iter().zip(sends.iter().skip(limit.bound() as usize)) {
                prop_assert!(last.since(*first) >= limit.period.window() + limit.margin(), "{limit:?}: {first:?} {last:?}");
            }
        }
        if let Some(interval) = limits.min_interval() {
            prop_assert!(sends.windows(2).all(|pair| pair[1].since(pair[0]) >= interval.as_duration()));
        }
        // Rounding may move a slot to a later bucket.
        let bucket = limits.as_slice().iter().map(RateLimit::bucket).max().unwrap_or_default();
        let apart = (bucket + Duration::from_micros(6)) * steps.len() as u32;
        for (lua, rust) in slots.iter().zip(&rust) {
            prop_assert!(lua.start.since(rust.start).max(rust.start.since(lua.start)) <= apart, "{lua:?} {rust:?}");
        }
    }

    #[test]
    fn edited_limits_in_lua_stay_close_to_those_in_rust(limits in any_limits(), steps in any_steps(true)) {
        let limits = [limits];
        let edits = steps.iter().filter_map(|step| match step {
            Step::Limits(limits) => Some(limits),
            _ => None,
        });
        // A rounded time may count in another bucket.
        let windows = edits.chain(&limits).flat_map(|limits| limits.of_shape(Shape::Window));
        let buckets = windows.map(RateLimit::bucket).max().unwrap_or_default() * steps.len() as u32;
        for (lua, rust) in in_lua(&limits, &steps).into_iter().zip(in_rust(&limits, &steps)) {
            // An edit keeps the debt as a number of sends, with its rounding error. The new spacing can be 86,400 ·
            // 2,000 times as long, and makes the error as many times larger.
            let apart = lua.start.since(rust.start).max(rust.start.since(lua.start));
            let span = lua.start.since(at(0)).max(Duration::from_secs(1));
            prop_assert!(apart <= span / 100 + buckets, "{lua:?} {rust:?}");
        }
    }
}
