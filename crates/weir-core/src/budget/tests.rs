//! Random trees of budgets: flows with limits of their own that share groups, with takes, misses, edits, losses and
//! moves. Every window of every budget is checked.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{
    limit::{Period, RateLimit, RateLimits},
    limiter::GRANT_AHEAD,
};

const FLOWS: usize = 6;
const GROUPS: usize = 2;
/// What was granted before an edit or a move binds after this time.
const SETTLED: Duration = Duration::from_millis(100);

type Take = fn(&mut [&mut Limiter], u32, Timestamp, Timestamp) -> Result<Slot, Timestamp>;

#[derive(Debug, Clone)]
enum Step {
    /// A flow asks for a slot and sends at its start, at its end, or not at all.
    Take {
        flow: usize,
        cost: u32,
        wait_ms: u64,
        sends: Sends,
    },
    Edit {
        budget: usize,
        limits: RateLimits,
    },
    /// The state of a budget is lost, and recovered from the recorded sends of all that have used it.
    Lose {
        budget: usize,
    },
    Move {
        flow: usize,
        group: Option<usize>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sends {
    AtStart,
    AtEnd,
    Never,
}

/// A budget, and all that is known of it: the limits by the time from which on they bind, and its sends.
struct Judged {
    limiter: Limiter,
    limits: Vec<(Timestamp, RateLimits)>,
    /// Their times and costs.
    sends: Vec<(Timestamp, u32)>,
}

impl Judged {
    fn new(limits: RateLimits) -> Self {
        Self { limiter: Limiter::new(&limits), limits: vec![(Timestamp::MIN, limits)], sends: Vec::new() }
    }

    /// No window that begins while a limit binds holds more sends than the largest limit of its period up to its end.
    fn find_fault(&mut self) -> Option<String> {
        self.sends.sort_unstable();
        for (index, (first, _)) in self.sends.iter().enumerate() {
            let in_force = self.limits.iter().rposition(|(from, _)| from <= first)?;
            for limit in self.limits[in_force].1.as_slice() {
                let end = *first + limit.period.window();
                let of_period = |(_, limits): &(Timestamp, RateLimits)| {
                    let same =
                        |other: &&RateLimit| other.period == limit.period && other.is_in_costs() == limit.is_in_costs();
                    limits.as_slice().iter().find(same).copied()
                };
                // A window that spans an edit is bounded by the larger limit, and by none where one has none.
                let spanned = self.limits[in_force..].iter().take_while(|(from, _)| *from < end + SETTLED);
                let Some(spanned) = spanned.map(of_period).collect::<Option<Vec<_>>>() else { continue };
                let most = |of: fn(&RateLimit) -> u32| spanned.iter().map(of).max().unwrap_or(0) as usize;
                let bound = most(|limit| limit.limit.get()) + most(|limit| limit.burst.get()) - 1;
                let within = self.sends[index..].iter().take_while(|(send, _)| *send < end);
                let sends: usize = within.map(|(_, cost)| limit.taken_by(*cost) as usize).sum();
                if sends > bound {
                    return Some(format!("{sends} sends in {:?} under {bound}", limit.period));
                }
            }
        }
        None
    }
}

fn now_at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000) + Duration::from_millis(millis)
}

/// Plays the steps, and returns the first fault of any budget.
fn play(own: &[RateLimits], shared: &[RateLimits], steps: &[Step], take: Take) -> Option<String> {
    let mut budgets: Vec<_> = own.iter().chain(shared).cloned().map(Judged::new).collect();
    let mut group_of: [Option<usize>; FLOWS] = std::array::from_fn(|flow| Some(flow % GROUPS));
    // The sends that a group may still get from a slot that was granted under another one.
    let mut missed: [Option<(Slot, u32)>; FLOWS] = [None; FLOWS];
    let mut now = now_at(0);
    for step in steps {
        match step {
            Step::Take { flow, cost, wait_ms, sends } => {
                now = now + Duration::from_millis(*wait_ms);
                let path: Vec<_> = [*flow].into_iter().chain(group_of[*flow].map(|group| FLOWS + group)).collect();
                let mut states: Vec<_> = path.iter().map(|&at| budgets[at].limiter.clone()).collect();
                let mut list: Vec<_> = states.iter_mut().collect();
                if let Some((slot, cost)) = missed[*flow].take_if(|(slot, _)| slot.is_over(now)) {
                    give_back(&mut list, cost, slot.start, now);
                }
                // A worker that is told to ask later does so a little before its slot.
                let start = next_start(&list, *cost, now);
                if start == Timestamp::MAX {
                    // The cost is above a limit.
                    continue;
                }
                wait(&mut list, *cost, now, now, now + GRANT_AHEAD);
                now = now.max(start - GRANT_AHEAD);
                let granted = take(&mut list, *cost, now, now + GRANT_AHEAD);
                for (&at, state) in path.iter().zip(states) {
                    budgets[at].limiter = state;
                }
                let Ok(slot) = granted else { continue };
                let sent = match sends {
                    Sends::AtStart => slot.start,
                    Sends::AtEnd => slot.end - Duration::from_nanos(1),
                    Sends::Never => {
                        missed[*flow] = Some((slot, *cost));
                        continue;
                    }
                };
                path.iter().for_each(|&at| budgets[at].sends.push((sent, *cost)));
            }
            Step::Edit { budget, limits } => {
                budgets[*budget].limiter.reconfigure(limits);
                budgets[*budget].limits.push((now + SETTLED, limits.clone()));
            }
            Step::Lose { budget } => {
                let judged = &mut budgets[*budget];
                let (_, limits) = judged.limits.last()?;
                judged.limiter = Limiter::recovered(limits, judged.sends.iter().map(|(at, _)| *at).max());
            }
            Step::Move { flow, group } => {
                group_of[*flow] = *group;
                missed[*flow] = None;
            }
        }
    }
    budgets.iter_mut().find_map(Judged::find_fault)
}

fn any_limits() -> impl Strategy<Value = RateLimits> {
    (1u32..40, 1u32..200, 1u32..4, 0u8..8).prop_map(|(second, minute, burst, shapes)| {
        let second = RateLimit::with_burst(second, Period::SECOND, burst).unwrap();
        let minute = RateLimit::new(minute, Period::MINUTE).unwrap();
        RateLimits::new(match shapes {
            0 => vec![],
            1 => vec![second.as_window(), minute],
            2 => vec![second, minute.as_window()],
            3 => vec![minute.as_window().in_costs().unwrap()],
            5 => vec![second, minute.as_window().in_costs().unwrap()],
            4 => vec![second.as_window()],
            _ => vec![second],
        })
        .unwrap()
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let sends = prop_oneof![3 => Just(Sends::AtStart), 3 => Just(Sends::AtEnd), 1 => Just(Sends::Never)];
    prop_oneof![
        30 => (0..FLOWS, 1u32..12, 0u64..60, sends)
            .prop_map(|(flow, cost, wait_ms, sends)| Step::Take { flow, cost, wait_ms, sends }),
        1 => (0..FLOWS + GROUPS, any_limits()).prop_map(|(budget, limits)| Step::Edit { budget, limits }),
        1 => (0..FLOWS + GROUPS).prop_map(|budget| Step::Lose { budget }),
        1 => (0..FLOWS, prop::option::of(0..GROUPS)).prop_map(|(flow, group)| Step::Move { flow, group }),
    ]
}

proptest! {
    #[test]
    fn every_window_of_every_budget_holds_through_edits_losses_and_moves(
        own in prop::collection::vec(any_limits(), FLOWS),
        shared in prop::collection::vec(any_limits(), GROUPS),
        steps in prop::collection::vec(any_step(), 1..400),
    ) {
        prop_assert_eq!(play(&own, &shared, &steps, take), None);
    }

    /// What was granted by one budget and refused by another is spent in neither: each budget of a flow grants as many
    /// slots as the flow gets.
    #[test]
    fn a_take_that_one_budget_refuses_spends_nothing_of_the_others(
        own in any_limits(),
        shared in any_limits(),
        waits in prop::collection::vec(0u64..40, 1..200),
    ) {
        let [mut one, mut two] = [&own, &shared].map(Limiter::new);
        let mut now = now_at(0);
        for wait in waits {
            now = now + Duration::from_millis(wait);
            let before = (one.clone(), two.clone());
            match take(&mut [&mut one, &mut two], 1, now, now) {
                Ok(slot) => prop_assert!(slot.start == now && one.last_start() == two.last_start()),
                Err(start) => {
                    prop_assert!(start > now);
                    prop_assert_eq!(&(one.clone(), two.clone()), &before);
                }
            }
        }
    }
}

/// Two flows of 10/s each under 10/s in a minute's worth of takes.
fn contended() -> (Vec<RateLimits>, Vec<RateLimits>, Vec<Step>) {
    let per_second = |limit| RateLimits::new(vec![RateLimit::new(limit, Period::SECOND).unwrap()]).unwrap();
    let steps = (0..600).map(|number| Step::Take { flow: 2 * (number % 2), cost: 1, wait_ms: 10, sends: Sends::AtEnd });
    (vec![per_second(10); FLOWS], vec![per_second(10); GROUPS], steps.collect())
}

/// Negative control: a flow that takes its slot from its own budget alone.
#[test]
fn a_flow_that_skips_its_group_is_found() {
    let (own, shared, steps) = contended();
    let skips: Take = |budgets, cost, now, latest| take(&mut budgets[..1], cost, now, latest);
    assert!(play(&own, &shared, &steps, take).is_none());
    assert!(play(&own, &shared, &steps, skips).is_some());
}

/// Negative control: a take that spends one budget before another one refuses it. The slot is given back as time, so
/// that the flow gets less than its share; and where a budget is only asked and not moved, its windows break.
#[test]
fn a_take_that_moves_one_budget_and_not_the_other_is_found() {
    let (own, shared, steps) = contended();
    let moves_one: Take = |budgets, cost, now, latest| {
        let start = next_start(budgets, cost, now);
        if start > latest { Err(start) } else { Ok(budgets[0].take(start)) }
    };
    assert!(play(&own, &shared, &steps, moves_one).is_some());
    // A take that spends the first budget although the second refuses changes a state: the property above sees it.
    let [mut one, mut two] = [&own[0], &shared[0]].map(Limiter::new);
    let spends: Take = |budgets, _, now, latest| {
        let slots: Vec<_> = budgets.iter_mut().map(|budget| budget.take(now)).collect();
        let start = slots.iter().map(|slot| slot.start).max().unwrap_or(now);
        if start > latest { Err(start) } else { Ok(slots[0]) }
    };
    two.take(now_at(0));
    let before = one.clone();
    assert!(spends(&mut [&mut one, &mut two], 1, now_at(0), now_at(0)).is_err() && one != before);
}
