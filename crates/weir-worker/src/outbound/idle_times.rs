//! The idle timeouts of servers, learned from connections that they have closed.
//!
//! Most servers do not name their idle timeout. When the spacing of a slow limit is close to that timeout, every
//! request would collide with the close of its connection.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{connection::BEFORE_CLOSE, origin::Origin};

/// How long a learned timeout is used: as long as a connection lives at most. So after a server has raised its timeout,
/// idle connections are closed at the old timeout only for this long.
const LEARNED_FOR: Duration = Duration::from_secs(300);
/// A connection that is closed earlier shows no idle timeout: its server was restarted, or a load balancer moved it.
const LEAST_LEARNED: Duration = Duration::from_secs(2);
/// How many origins are remembered: as many as there can be idle connections.
const MOST_LEARNED: usize = 4_096;

#[derive(Default)]
pub(super) struct IdleTimes(HashMap<Arc<Origin>, Learned>);

struct Learned {
    closes_after: Duration,
    until: Instant,
}

impl IdleTimes {
    /// How long a connection to this origin can be idle and still be used. Unlimited when nothing was learned.
    pub(super) fn trusted_for(&self, origin: &Arc<Origin>, now: Instant) -> Duration {
        let learned = self.0.get(origin).filter(|learned| now < learned.until);
        learned.map_or(Duration::MAX, |learned| learned.closes_after.saturating_sub(BEFORE_CLOSE))
    }

    /// Records that the server closed a connection after this idle time.
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
