//! Checks that the world comes to rest with everything delivered, if nothing more fails.
//!
//! `eventually` of stateright overlooks paths that end in a cycle, and this model has many: a job that runs, finds no
//! room and is paced again. So liveness is an invariant here. From *every* reachable state, also after faults, the
//! quiet course must end with everything delivered. In the quiet course nothing fails and each process takes its next
//! step. A course that returns to one of its own states never ends. Courses soon reach common states, and states from
//! which the course ends well are remembered, so the check costs about one more step for each state.

use std::{
    collections::HashSet,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use parking_lot::Mutex;

use crate::{
    actions::Protocol,
    state::{Delivery, State},
};

/// States from which the quiet course is known to end well.
#[derive(Debug, Default)]
pub(crate) struct Drained(Mutex<HashSet<u64>>);

impl Protocol {
    /// Whether the quiet course from this state ends with everything delivered.
    pub(crate) fn drains(&self, state: &State) -> bool {
        let mut known = self.drained.0.lock();
        let mut course = HashSet::new();
        let mut at = state.clone();
        loop {
            let here = BuildHasherDefault::<DefaultHasher>::default().hash_one(&at);
            // The rest of the course was followed before, and it ended with everything delivered.
            if known.contains(&here) {
                break;
            }
            // The course has returned to one of its own states, so it never ends.
            if !course.insert(here) {
                return false;
            }
            // Without a next step the world is at rest. That is good only if everything is delivered.
            match self.quiet_step(&at) {
                Some(next) => at = next,
                None if at.is_delivered() => break,
                None => return false,
            }
        }
        // The courses from all these states end well.
        known.extend(course);
        true
    }
}

impl State {
    fn is_delivered(&self) -> bool {
        let open = |delivery: &Delivery| matches!(delivery, Delivery::Waiting { .. } | Delivery::Claimed { .. });
        !self.store.deliveries.iter().any(open)
    }
}
