//! The shares of members in a common rate: weighted max–min among those that want some of it. What one of them cannot use goes
//! to the others.

use crate::time::Timestamp;

/// What a member of a limit group, or a limit key, wants of the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    pub weight: f64,
    pub per_s: f64,
}

/// What a member may send of the rate of its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    pub per_s: f64,
    /// It could send more without the group.
    pub binds: bool,
    /// Until when people hold the group.
    pub held_until: Option<Timestamp>,
}

impl Share {
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }
}

/// The parts of `rate`, in the order of the wishes.
pub fn divide(rate: f64, wishes: &[Wish]) -> Vec<f64> {
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
