//! The shares of members in the rate of their limit group.

use weir_core::{
    Condition, Destination, LimitGroup, Timestamp,
    limiter::COST_OF_ONE,
    shares::{Share, Wish},
};

use super::{Measured, as_number};

/// The mean of these numbers of waiting deliveries with their usual costs, as a usual cost.
pub(crate) fn mean_cost(waiting: impl Iterator<Item = (u64, u32)>) -> u32 {
    let add = |(all, sum): (u64, u64), (waiting, cost): (u64, u32)| {
        (all + waiting, sum.saturating_add(waiting.saturating_mul(cost.max(COST_OF_ONE).into())))
    };
    let (all, sum) = waiting.fold((0, 0), add);
    sum.checked_div(all).and_then(|mean| u32::try_from(mean).ok()).unwrap_or(0)
}

/// Notes the share of each member of a group. All members must be there.
pub(crate) fn share(group: &LimitGroup, members: &mut [(&Destination, &mut Measured)], now: Timestamp) {
    let held_until = group.temporary.hold_at(now).map(|hold| hold.until);
    let cost = as_number(mean_cost(members.iter().map(|(_, of)| (of.counts.waiting(), of.usual_cost))));
    // While it is held, the rate is that after the hold.
    let without_limit = held_until.map(|_| 0.0);
    let Some(rate) = group.at(now).rate_limits.per_second_at(cost).or(without_limit) else { return };
    let wish = |(destination, measured): &(&Destination, &mut Measured)| {
        let settings = &destination.settings;
        let rests = destination.is_stopped() || destination.is(Condition::Held, now);
        let forecast = measured.forecast(destination, &settings.rate_limits, settings.max_in_flight, now);
        let of_keys = measured.watched_keys.and_then(|keys| keys.per_s).unwrap_or(f64::INFINITY);
        let most = forecast.per_second().unwrap_or(f64::INFINITY).min(of_keys);
        let per_s = match measured.counts.waiting() {
            _ if rests => 0.0,
            0 => measured.achieved_per_s.min(most),
            _ => most,
        };
        Wish { weight: settings.weight.into(), per_s }
    };
    let wishes: Vec<Wish> = members.iter().map(wish).collect();
    for ((destination, measured), share) in members.iter_mut().zip(Share::of_all(rate, &wishes, held_until)) {
        // Whoever rests, or has no backlog, could have more than it takes.
        let idle = destination.is_stopped() || measured.counts.waiting() == 0;
        let per_s = if idle { share.most_per_s } else { share.per_s };
        measured.share = Some(Share { per_s, ..share });
    }
}
