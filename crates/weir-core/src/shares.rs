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
    /// What it could send if nothing else bounded it ([`most`]): what other limits of its own are compared with.
    pub most_per_s: f64,
    /// It could send more without the group.
    pub binds: bool,
    /// Until when people hold the group.
    pub held_until: Option<Timestamp>,
}

impl Wish {
    /// The rate for each part of its weight at which it has all that it wants.
    fn fill(&self) -> f64 {
        self.per_s / self.weight
    }
}

impl Share {
    /// The shares of all members, in the order of the wishes.
    pub fn of_all(rate: f64, wishes: &[Wish], held_until: Option<Timestamp>) -> Vec<Self> {
        let parts = divide(rate, wishes).into_iter().zip(most(rate, wishes));
        let share = |((per_s, most_per_s), wish): ((f64, f64), &Wish)| Self {
            per_s,
            most_per_s,
            binds: per_s < wish.per_s,
            held_until,
        };
        parts.zip(wishes).map(share).collect()
    }

    pub fn is_held(&self, now: Timestamp) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }
}

/// The parts of `rate`, in the order of the wishes.
pub fn divide(rate: f64, wishes: &[Wish]) -> Vec<f64> {
    // Whoever wants least for its weight gets all it wants; the rest is divided again.
    let mut weight: f64 = wishes.iter().map(|wish| wish.weight).sum();
    let (mut left, mut parts) = (rate, vec![0.0; wishes.len()]);
    for at in by_fill(wishes) {
        let wish = wishes[at];
        parts[at] = wish.per_s.min(left.max(0.0) * wish.weight / weight);
        left -= parts[at];
        weight -= wish.weight;
    }
    parts
}

/// What each of them would get of `rate` if it wanted all of it, beside the others with their wishes.
pub fn most(rate: f64, wishes: &[Wish]) -> Vec<f64> {
    let order = by_fill(wishes);
    let all: f64 = wishes.iter().map(|wish| wish.weight).sum();
    // Of the first n: what they wish together, and the weight of the others.
    let mut firsts = vec![(0.0, all)];
    for &at in &order {
        let (wished, weight) = firsts[firsts.len() - 1];
        firsts.push((wished + wishes[at].per_s, weight - wishes[at].weight));
    }
    let numbers: Vec<usize> = (1..=order.len()).collect();
    let mut most = vec![0.0; wishes.len()];
    for (place, &at) in order.iter().enumerate() {
        let one = wishes[at];
        // It counts among those that want more, wherever its wish puts it.
        let without = |n: usize| match firsts[n] {
            (wished, weight) if n > place => (wished - one.per_s, weight + one.weight),
            first => first,
        };
        let get_all = |n: &usize| {
            let (wished, weight) = without(*n);
            wished + wishes[order[n - 1]].fill() * weight <= rate
        };
        let (wished, weight) = without(numbers.partition_point(get_all));
        most[at] = (rate - wished).max(0.0) * one.weight / weight;
    }
    most
}

/// Who wants least for its weight is the first.
fn by_fill(wishes: &[Wish]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by(|&a, &b| wishes[a].fill().total_cmp(&wishes[b].fill()));
    order
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

    #[test]
    fn the_most_that_one_can_get_is_its_part_if_it_wanted_all() {
        let infinite = f64::INFINITY;
        let cases: [(f64, &[(f64, f64)]); 7] = [
            (100.0, &[(1.0, 6.0), (1.0, 10.0)]),
            (10.0, &[(1.0, infinite), (1.0, infinite)]),
            (80.0, &[(1.0, infinite), (2.0, infinite), (5.0, 20.0)]),
            (10.0, &[(1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (7.0, 0.0)]),
            (10.0, &[(1.0, 0.0), (3.0, infinite), (1.0, 1.0), (2.0, 9.0), (1.0, 5.0)]),
            (0.0, &[(1.0, 1.0), (1.0, infinite)]),
            (10.0, &[(3.0, 4.0)]),
        ];
        for (rate, wishes) in cases {
            let wishes: Vec<_> = wishes.iter().map(|&(weight, per_s)| Wish { weight, per_s }).collect();
            for (at, found) in most(rate, &wishes).into_iter().enumerate() {
                let mut asking = wishes.clone();
                asking[at].per_s = infinite;
                let expected = divide(rate, &asking)[at];
                assert!((found - expected).abs() < 1e-9, "{wishes:?}, {at}: {found}, not {expected}");
            }
        }
    }
}
