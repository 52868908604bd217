//! The shares of members in the rate of their limit group: weighted max–min among those that have a backlog. What one of
//! them cannot use goes to the others.

use weir_core::{Condition, Destination, LimitGroup, Timestamp};

use super::Measured;

/// What a member may send of the rate of its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    pub(crate) per_s: f64,
    /// It could send more without the group.
    pub(crate) binds: bool,
    /// Until when people hold the group.
    pub(crate) held_until: Option<Timestamp>,
}

impl Share {
    pub(crate) fn is_held(&self, now: Timestamp) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }
}

/// What a member, or a limit key, wants of the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wish {
    pub(crate) weight: f64,
    pub(crate) per_s: f64,
}

/// The parts of `rate`, in the order of the wishes.
pub(crate) fn divide(rate: f64, wishes: &[Wish]) -> Vec<f64> {
    // Whoever wants least for its weight gets all it wants; the rest is divided again.
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    let filled_at = |at: usize| wishes[at].per_s / wishes[at].weight;
    order.sort_by(|&a, &b| filled_at(a).total_cmp(&filled_at(b)));
    let mut weight: f64 = wishes.iter().map(|wish| wish.weight).sum();
    let (mut left, mut parts) = (rate, vec![0.0; wishes.len()]);
    for at in order {
        let wish = wishes[at];
        parts[at] = wish.per_s.min(left.max(0.0) * wish.weight / weight);
        left -= parts[at];
        weight -= wish.weight;
    }
    parts
}

/// Notes the share of each member of a group. All members must be there.
pub(crate) fn share(group: &LimitGroup, members: &mut [(&Destination, &mut Measured)], now: Timestamp) {
    let held_until = group.temporary.hold_at(now).map(|hold| hold.until);
    // While it is held, the rate is that after the hold.
    let without_limit = held_until.map(|_| 0.0);
    let Some(rate) = group.at(now).rate_limits.per_second().or(without_limit) else { return };
    let wish = |(destination, measured): &(&Destination, &mut Measured)| {
        let settings = &destination.settings;
        let rests = destination.is_stopped() || destination.is(Condition::Held, now);
        let forecast = measured.forecast(destination, &settings.rate_limits, settings.max_in_flight, now);
        let most = forecast.per_second().unwrap_or(f64::INFINITY);
        let per_s = match measured.counts.waiting() {
            _ if rests => 0.0,
            0 => measured.achieved_per_s.min(most),
            _ => most,
        };
        Wish { weight: settings.weight.into(), per_s }
    };
    let wishes: Vec<Wish> = members.iter().map(wish).collect();
    let parts = divide(rate, &wishes);
    let used: f64 = parts.iter().sum();
    for (((destination, measured), wish), part) in members.iter_mut().zip(wishes).zip(parts) {
        // Whoever rests, or has no backlog, would get at least what is left.
        let idle = destination.is_stopped() || measured.counts.waiting() == 0;
        let left = if idle { (rate - used).max(0.0) } else { 0.0 };
        measured.share = Some(Share { per_s: part + left, binds: part < wish.per_s, held_until });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(rate: f64, wishes: &[(f64, f64)]) -> Vec<f64> {
        divide(rate, &wishes.iter().map(|&(weight, per_s)| Wish { weight, per_s }).collect::<Vec<_>>())
    }

    #[test]
    fn a_rate_is_divided_by_weight_and_what_one_cannot_use_goes_to_the_others() {
        let all = f64::INFINITY;
        for (rate, wishes, expected) in [
            (10.0, &[(1.0, all), (1.0, all)][..], &[5.0, 5.0][..]),
            (80.0, &[(1.0, all), (2.0, all), (5.0, all)], &[10.0, 20.0, 50.0]),
            (80.0, &[(1.0, all), (2.0, all), (5.0, 20.0)], &[20.0, 40.0, 20.0]),
            (10.0, &[(1.0, 2.0), (1.0, 3.0)], &[2.0, 3.0]),
            (10.0, &[(1.0, 0.0), (3.0, all), (1.0, 1.0)], &[0.0, 9.0, 1.0]),
            (10.0, &[], &[]),
        ] {
            let found = parts(rate, wishes);
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{wishes:?}: {found:?}");
        }
    }
}
