//! The limiter in Lua against the one in Rust.

use proptest::prelude::*;
use weir_core::{RateLimits, Slot};

use super::*;

/// Plays a list of deeds on one limiter, and answers the slots it handed out.
const PLAY: &str = "
local limiter = recovered_limiter(list(read_limit), nil)
local slots = {}
while more() do
  local deed = text()
  if deed == 'take' then
    local slot_start, slot_end = take_slot(limiter, number())
    slots[#slots + 1] = slot_start
    slots[#slots + 1] = slot_end
  elseif deed == 'hold' then
    hold_limiter(limiter, number())
  elseif deed == 'limits' then
    reconfigure(limiter, list(read_limit))
  elseif deed == 'recover' then
    limiter = recovered_limiter(list(read_limit), number())
  end
end
return slots
";

#[derive(Debug, Clone)]
enum Deed {
    Take(Timestamp),
    Hold(Timestamp),
    Limits(RateLimits),
    /// Nothing is known but the last start.
    Recover(Timestamp),
}

fn in_rust(first: &RateLimits, deeds: &[Deed]) -> Vec<Slot> {
    let mut limits = first.clone();
    let mut limiter = Limiter::new(first);
    let mut slots = Vec::new();
    for deed in deeds {
        match deed {
            Deed::Take(at) => slots.push(limiter.take(*at)),
            Deed::Hold(until) => limiter.hold(*until),
            Deed::Limits(new) => {
                limits = new.clone();
                limiter.reconfigure(new);
            }
            Deed::Recover(last) => limiter = Limiter::recovered(&limits, Some(*last)),
        }
    }
    slots
}

fn in_lua(first: &RateLimits, deeds: &[Deed]) -> Vec<Slot> {
    let source = [&constants(), ARGUMENTS, LIMITER, PLAY].join("\n");
    let mut call = Call {
        shard: Shard::of(DestinationId::from_bytes([0; 16])),
        operation: Operation::Begin,
        command: redis::cmd("EVAL"),
    };
    call.arg(source).arg(0).arg(0).limits(first.as_slice());
    let mut limits = first;
    for deed in deeds {
        match deed {
            Deed::Take(at) => call.arg("take").not_before(*at),
            Deed::Hold(until) => call.arg("hold").not_before(*until),
            Deed::Limits(new) => {
                limits = new;
                call.arg("limits").limits(new.as_slice())
            }
            Deed::Recover(last) => call.arg("recover").limits(limits.as_slice()).not_before(*last),
        };
    }
    let times: Vec<i64> = call.command.query(&mut connection()).unwrap();
    times.chunks(2).map(|slot| Slot { start: from_micros(slot[0]), end: from_micros(slot[1]) }).collect()
}

fn connection() -> redis::Connection {
    let url = std::env::var("WEIR_TEST_REDIS_URL").unwrap_or_else(|_| {
        panic!(
            "this test needs a server: run it with `cargo xtask test`, which provides it, or set WEIR_TEST_REDIS_URL"
        )
    });
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_secs(1_800_000_000) + Duration::from_micros(micros)
}

fn any_limits() -> impl Strategy<Value = RateLimits> {
    let one =
        |period| (1u32..2_000, 1u32..6).prop_map(move |(limit, burst)| RateLimit::with_burst(limit, period, burst));
    let each = Period::ALL.map(|period| prop::option::of(one(period)));
    each.prop_map(|limits| RateLimits::new(limits.into_iter().flatten().flatten().collect()).unwrap())
}

/// Limits and bursts anywhere in what is accepted.
fn limits_of_the_whole_range() -> impl Strategy<Value = RateLimits> {
    let one = |period| {
        let most = weir_core::limit::MAX_LIMIT;
        let around = prop_oneof![1..=most, Just(1), Just(most), Just(86_000)];
        (around.clone(), around).prop_map(move |(limit, burst)| RateLimit::with_burst(limit, period, burst))
    };
    let each = Period::ALL.map(|period| prop::option::of(one(period)));
    each.prop_map(|limits| RateLimits::new(limits.into_iter().flatten().flatten().collect()).unwrap())
}

/// Deeds at rising times.
fn any_deeds(edits: bool) -> impl Strategy<Value = Vec<Deed>> {
    let deed = (0u64..3_000_000, 0u8..if edits { 12 } else { 10 }, any_limits());
    prop::collection::vec(deed, 1..60).prop_map(|steps| {
        let mut now = 0;
        let step = |(gap, kind, limits)| {
            now += gap / 16;
            match kind {
                8 => Deed::Hold(at(now + gap)),
                9 => Deed::Recover(at(now)),
                10.. => Deed::Limits(limits),
                _ => Deed::Take(at(now)),
            }
        };
        steps.into_iter().map(step).collect()
    })
}

proptest! {
    #[test]
    fn slots_in_lua_are_those_in_rust_rounded_up_to_microseconds(limits in any_limits(), deeds in any_deeds(false)) {
        for (lua, rust) in in_lua(&limits, &deeds).into_iter().zip(in_rust(&limits, &deeds)) {
            prop_assert!(lua.start >= rust.start, "{lua:?} starts before {rust:?}");
            // Each deed adds a spacing, or a burst of them, rounded up by less than a microsecond.
            let most = Duration::from_micros(6 * deeds.len() as u64);
            prop_assert!(lua.start <= rust.start + most, "{lua:?} starts long after {rust:?}");
            prop_assert_eq!(lua.end.since(lua.start), rust.end.since(rust.start));
        }
    }

    #[test]
    fn slots_over_the_whole_range_are_those_in_rust(limits in limits_of_the_whole_range(), deeds in any_deeds(false)) {
        for (lua, rust) in in_lua(&limits, &deeds).into_iter().zip(in_rust(&limits, &deeds)) {
            prop_assert!(lua.start >= rust.start, "{lua:?} starts before {rust:?}");
            // A million spacings, each rounded up by less than a microsecond, would be a second.
            prop_assert!(lua.start <= rust.start + Duration::from_secs(1), "{lua:?} starts long after {rust:?}");
            prop_assert_eq!(lua.end.since(lua.start), rust.end.since(rust.start));
        }
    }

    #[test]
    fn no_window_exceeds_the_largest_rate_across_edits(
        rates in prop::collection::vec((1u32..300, 1u32..4), 1..6),
        takes in 1u64..60,
        gap in 0u64..30_000,
    ) {
        let limits = |&(rate, burst): &(u32, u32)| {
            RateLimits::new(RateLimit::with_burst(rate, Period::Second, burst).into_iter().collect()).unwrap()
        };
        let mut deeds = Vec::new();
        for (edit, rate) in (0..).zip(&rates) {
            deeds.push(Deed::Limits(limits(rate)));
            deeds.extend((0..takes).map(|take| Deed::Take(at((edit * takes + take) * gap))));
        }
        let mut slots = in_lua(&limits(&rates[0]), &deeds);
        // A burst that an edit adds may start before slots that were handed out ahead.
        slots.sort_by_key(|slot| slot.start);
        let bound = rates.iter().map(|rate| rate.0).max().unwrap() + rates.iter().map(|rate| rate.1).max().unwrap() - 1;
        // The first as late as its slot allows, the last as early.
        for (first, last) in slots.iter().zip(slots.iter().skip(bound as usize)) {
            prop_assert!(last.start + Duration::from_nanos(1) >= first.end + Duration::from_secs(1), "{first:?} {last:?}");
        }
    }

    #[test]
    fn edited_limits_in_lua_stay_close_to_those_in_rust(limits in any_limits(), deeds in any_deeds(true)) {
        for (lua, rust) in in_lua(&limits, &deeds).into_iter().zip(in_rust(&limits, &deeds)) {
            // A debt in sends keeps its rounding, at a spacing up to 86,400 · 2,000 times as long.
            let apart = lua.start.since(rust.start).max(rust.start.since(lua.start));
            let span = lua.start.since(at(0)).max(Duration::from_secs(1));
            prop_assert!(apart <= span / 100, "{lua:?} {rust:?}");
        }
    }
}
