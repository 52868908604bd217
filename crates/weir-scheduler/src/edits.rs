//! The watch over edits: one whose announcement was lost is found and announced within two seconds, also where the destination's
//! job is parked for a day.
//!
//! Edits carry the time at which they were made, and can be read a little later: so each look goes back some seconds, and passes
//! over what it has announced before. To announce what is known changes nothing.

use std::{collections::HashSet, sync::Arc, time::Duration};

use weir_core::{Clock, Timestamp};
use weir_queue::{Edit, SharedQueue, Terms};
use weir_store::{EditPlace, EditedDestination, SharedStore};

use crate::returns::Failure;

/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long an edit takes from its time until it can be read, by far. Not longer: each look reads what was edited meanwhile, and
/// a hundred thousand destinations may have been made at once.
const OVERLAP: Duration = Duration::from_secs(5);
/// How far the first look goes back: nobody may have been there to look for a day. What was edited before has run since.
const FIRST_LOOK: Duration = Duration::from_secs(24 * 60 * 60);
/// Edits announced in one call.
const PAGE: u32 = 256;

/// Announces edits again.
pub struct EditWatcher {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    /// Of the last looks.
    announced: HashSet<EditPlace>,
}

impl EditWatcher {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock, announced: HashSet::new() }
    }

    /// Looks at once and then every second until `shutdown` resolves.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut since = self.clock.now().before(FIRST_LOOK);
        loop {
            let now = self.clock.now();
            tokio::select! {
                () = &mut shutdown => return,
                announced = self.announce(since) => match announced {
                    Ok(()) => {
                        since = now.before(OVERLAP);
                        self.announced.retain(|place| place.updated_at >= since);
                    }
                    Err(error) => tracing::warn!(%error, "could not look for edits; the next look tries again"),
                }
            }
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    async fn announce(&mut self, since: Timestamp) -> Result<(), Failure> {
        let mut place = EditPlace::at(since);
        loop {
            let edited = self.store.edited_after(place, PAGE).await?;
            let now = self.clock.now();
            let new = edited.iter().filter(|edited| !self.announced.contains(&edited.place));
            let edits: Vec<_> = new.map(|edited| edit(edited, now)).collect();
            if !edits.is_empty() {
                self.queue.edited(&edits).await?;
                self.announced.extend(edited.iter().map(|edited| edited.place));
            }
            match edited.last() {
                Some(last) if edited.len() == PAGE as usize => place = last.place,
                _ => return Ok(()),
            }
        }
    }
}

fn edit(edited: &EditedDestination, now: Timestamp) -> Edit {
    let EditPlace { updated_at, id } = edited.place;
    let terms = match &edited.destination {
        Some(destination) => Terms::of(destination, now),
        None => Terms::deleted(updated_at),
    };
    Edit { destination_id: id, terms }
}
