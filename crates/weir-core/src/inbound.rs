//! The bounds of what clients send: how many bytes of unfinished requests a process keeps, and how long a body may take
//! to arrive.

use std::{collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;

/// How long a body may take to arrive, whatever its size.
const TIME_OF_ANY_BODY: Duration = Duration::from_secs(10);
/// A body that continues to arrive at this rate gets more time. It is slower than any usual connection.
const BYTES_PER_SECOND: f64 = 16.0 * 1024.0;
/// The longest time, so that no client keeps its memory for long.
const LONGEST_TIME: Duration = Duration::from_secs(60);

/// How long after its head a body may take for its next byte, when this many bytes have arrived.
pub fn time_to_arrive(arrived: usize) -> Duration {
    let more = arrived as f64 / BYTES_PER_SECOND;
    (TIME_OF_ANY_BODY + Duration::from_secs_f64(more)).min(LONGEST_TIME)
}

/// The bytes that the bodies of all open requests may hold at one time, shared by those who send them.
///
/// A holder may hold as much as it leaves free. So a single one gets half of the budget, two get a third each, and there
/// is always room for one that holds nothing yet: however many requests a holder opens, it stands in nobody's way.
#[derive(Debug)]
pub struct ByteBudget<H> {
    bytes: usize,
    used: Mutex<Used<H>>,
}

#[derive(Debug)]
struct Used<H> {
    bytes: usize,
    /// Only those who hold something.
    holders: HashMap<H, usize>,
}

impl<H: Copy + Eq + Hash> ByteBudget<H> {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, used: Mutex::new(Used { bytes: 0, holders: HashMap::new() }) })
    }

    /// What one body of this holder holds: nothing yet.
    pub fn open(self: &Arc<Self>, holder: H) -> HeldBytes<H> {
        HeldBytes { budget: Arc::clone(self), holder, bytes: 0 }
    }
}

/// The bytes that one body holds. Its drop frees them.
#[derive(Debug)]
pub struct HeldBytes<H: Copy + Eq + Hash> {
    budget: Arc<ByteBudget<H>>,
    holder: H,
    bytes: usize,
}

impl<H: Copy + Eq + Hash> HeldBytes<H> {
    /// Holds at least this many bytes from now on. `false`: the budget does not allow it, and nothing has changed.
    ///
    /// A body counts as half of the budget at most. So one that is larger is accepted if there is no other.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let bytes = bytes.min(self.budget.bytes / 2);
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return true };
        let mut used = self.budget.used.lock();
        let held = used.holders.get(&self.holder).copied().unwrap_or(0) + more;
        if held > self.budget.bytes.saturating_sub(used.bytes + more) {
            return false;
        }
        used.bytes += more;
        used.holders.insert(self.holder, held);
        self.bytes = bytes;
        true
    }

    /// Frees everything that the body holds.
    pub fn release(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut used = self.budget.used.lock();
        used.bytes -= self.bytes;
        let left = used.holders.get(&self.holder).map_or(0, |held| held - self.bytes);
        match left {
            0 => used.holders.remove(&self.holder),
            left => used.holders.insert(self.holder, left),
        };
        self.bytes = 0;
    }
}

impl<H: Copy + Eq + Hash> Drop for HeldBytes<H> {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_leaves_as_much_free_as_it_holds() {
        let budget = ByteBudget::new(120);
        let (mut first, mut again) = (budget.open('a'), budget.open('a'));
        assert!(first.grow_to(40) && again.grow_to(20));
        assert!(!first.grow_to(41) && !again.grow_to(21), "half of the budget");
        let mut second = budget.open('b');
        assert!(second.grow_to(30) && !second.grow_to(31), "half of what the first leaves");
        let mut third = budget.open('c');
        assert!(third.grow_to(15) && !third.grow_to(16));
        drop((first, again));
        assert!(second.grow_to(50), "what others free can be used");
    }

    #[test]
    fn no_number_of_holders_takes_the_room_of_another() {
        let budget = ByteBudget::new(1_000);
        let hogs: Vec<_> = (0..8)
            .map(|holder| {
                let mut held = budget.open(holder);
                (1..=1_000).take_while(|&bytes| held.grow_to(bytes)).count();
                held
            })
            .collect();
        assert!(budget.open(8).grow_to(1), "{hogs:?}");
    }

    #[test]
    fn a_body_that_is_larger_than_the_budget_is_accepted_alone() {
        let budget = ByteBudget::new(10);
        let (mut large, mut other) = (budget.open('a'), budget.open('b'));
        assert!(large.grow_to(1_000) && other.grow_to(2));
        assert!(!other.grow_to(5) && !budget.open('a').grow_to(1));
        drop(large);
        assert!(other.grow_to(1_000));
    }

    #[test]
    fn what_is_held_is_freed_once() {
        let budget = ByteBudget::new(10);
        let mut held = budget.open('a');
        assert!(held.grow_to(3) && held.grow_to(2) && held.grow_to(5) && !budget.open('b').grow_to(3));
        held.release();
        held.release();
        drop(held);
        let left = |used: parking_lot::MutexGuard<'_, Used<char>>| (used.bytes, used.holders.len());
        assert_eq!(left(budget.used.lock()), (0, 0));
        assert!(budget.open('b').grow_to(5));
    }

    #[test]
    fn a_body_that_continues_to_arrive_gets_more_time() {
        let seconds = |arrived| time_to_arrive(arrived).as_secs();
        assert_eq!([0, 1, 16 * 1024, 160 * 1024, 1024 * 1024].map(seconds), [10, 10, 11, 20, 60]);
    }
}
