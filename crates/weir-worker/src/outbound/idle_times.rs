//! How long servers keep idle connections, learned from connections that they have closed.
//!
//! Most servers do not say it. A slow limit whose requests are about as far apart as a server keeps connections would meet the close
//! with each request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{connection::BEFORE_CLOSE, target::Origin};

/// What was learned is believed for so long.
const LEARNED_FOR: Duration = Duration::from_secs(300);
/// A connection that is closed earlier tells nothing: its server was restarted, or a balancer moved it.
const LEAST_LEARNED: Duration = Duration::from_secs(2);
/// Origins of which something is known.
const MOST_LEARNED: usize = 4_096;

#[derive(Default)]
pub(super) struct IdleTimes(HashMap<Arc<Origin>, Learned>);

struct Learned {
    closes_after: Duration,
    until: Instant,
}

impl IdleTimes {
    /// For how long an idle connection to this origin can be used, as far as is known.
    pub(super) fn trusted_for(&self, origin: &Arc<Origin>, now: Instant) -> Duration {
        let learned = self.0.get(origin).filter(|learned| now < learned.until);
        learned.map_or(Duration::MAX, |learned| learned.closes_after.saturating_sub(BEFORE_CLOSE))
    }

    /// The server has closed a connection that was idle for so long.
    pub(super) fn learn(&mut self, origin: &Arc<Origin>, closes_after: Duration, now: Instant) {
        if closes_after < LEAST_LEARNED {
            return;
        }
        if self.0.len() >= MOST_LEARNED {
            self.0.clear();
        }
        self.0.insert(origin.clone(), Learned { closes_after, until: now + LEARNED_FOR });
    }
}
