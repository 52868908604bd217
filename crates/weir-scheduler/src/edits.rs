//! Announces edits again: an edit whose announcement was lost takes effect within two seconds, even if the
//! destination's job is parked for a day.
//!
//! An edit has a time, and can be read only a little after it. So each pass goes back a few seconds and skips the edits
//! that it has announced before. Announcing an edit twice changes nothing.

use std::{collections::HashSet, sync::Arc, time::Duration};

use weir_core::{Clock, LimitGroupId, Timestamp};
use weir_queue::{Edits, SharedQueue};
use weir_store::{EditPosition, EditStore, EditedDestination};

use crate::{
    release::Failure,
    run_every::{Agent, run_every},
};

/// The time between two passes: an edit takes effect within two seconds, even if its announcement was lost.
const INTERVAL: Duration = Duration::from_secs(1);
/// How far each pass goes back: much longer than the time between an edit and its visibility. Not longer, because each
/// pass reads every edit of this time, and a hundred thousand destinations may have been created at once.
const OVERLAP: Duration = Duration::from_secs(5);
/// How far the first pass goes back: for up to a day no process may have run. Earlier edits need no announcement,
/// because the jobs of their destinations have run since.
const FIRST_OVERLAP: Duration = Duration::from_secs(24 * 60 * 60);
/// Edits announced in one call: with more edits than this in a second a pass makes several calls.
const PAGE: u32 = 256;

/// Announces edits again.
pub struct EditWatcher {
    store: Arc<dyn EditStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    /// Where the next pass begins.
    since: Timestamp,
    /// The edits that the last passes have announced.
    announced: HashSet<EditPosition>,
}

impl EditWatcher {
    pub fn new(store: Arc<dyn EditStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let since = clock.now().before(FIRST_OVERLAP);
        Self { store, queue, clock, since, announced: HashSet::new() }
    }

    /// Makes a pass at once and then every second until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    /// Announces the edits of groups since [`Self::since`]. They are few, so that each is announced in several passes.
    async fn announce_groups(&self) -> Result<(), Failure> {
        let mut next = Some((self.since, LimitGroupId::from_bytes([0; 16])));
        while let Some(after) = next {
            let edited = self.store.limit_groups_edited_after(after, PAGE).await?;
            if !edited.is_empty() {
                self.queue.edited_groups(&edited).await?;
            }
            next = last_of_full(&edited).map(|last| (last.updated_at, last.id));
        }
        Ok(())
    }

    /// Announces the edits since [`Self::since`] that were not announced before.
    async fn announce(&mut self) -> Result<(), Failure> {
        self.announce_groups().await?;
        let mut next = Some(EditPosition::at(self.since));
        while let Some(position) = next {
            let edited = self.store.edited_after(position, PAGE).await?;
            let now = self.clock.now();
            let new = edited.iter().filter(|edited| !self.announced.contains(&edited.position));
            let mut edits = Edits::default();
            new.for_each(|edited| add(&mut edits, edited, now));
            if !edits.is_empty() {
                edits.announce(&*self.queue).await?;
                // Only after the call, so that edits whose announcement failed are announced again.
                self.announced.extend(edited.iter().map(|edited| edited.position));
            }
            next = last_of_full(&edited).map(|last| last.position);
        }
        Ok(())
    }
}

/// The last edit of a page behind which there may be more.
fn last_of_full<T>(page: &[T]) -> Option<&T> {
    page.last().filter(|_| page.len() == PAGE as usize)
}

impl Agent for EditWatcher {
    async fn make_pass(&mut self) {
        let now = self.clock.now();
        match self.announce().await {
            Ok(()) => {
                // The next pass goes back a little, because an edit may become visible late. Older edits are not
                // read again.
                self.since = now.before(OVERLAP);
                self.announced.retain(|position| position.updated_at >= self.since);
            }
            Err(error) => tracing::warn!(%error, "could not announce edits; the next pass tries again"),
        }
    }
}

fn add(edits: &mut Edits, edited: &EditedDestination, now: Timestamp) {
    let EditPosition { updated_at, id } = edited.position;
    match &edited.destination {
        Some(destination) => edits.add(destination, now),
        None => edits.add_deleted(id, updated_at, None),
    }
}
