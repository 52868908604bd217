//! Permits that go straight to the worker of this process, past the delivery queue.
//!
//! What this process publishes it hands to its own worker while that one keeps up: no entry is written, read, acknowledged and
//! deleted, and no other process is woken. Such permits are nobody else's, so one that is lost with its answer can be taken
//! back. A process without a worker, or whose worker is behind, publishes into the delivery queue.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use weir_queue::Permit;

/// With so many waiting, the worker is behind and others may help.
const MOST_WAITING: usize = 512;

#[derive(Default)]
pub(crate) struct Local {
    /// While a worker takes.
    sender: Mutex<Option<UnboundedSender<Permit>>>,
    waiting: Arc<AtomicUsize>,
}

/// The worker's end.
pub(crate) struct Handed {
    permits: UnboundedReceiver<Permit>,
    waiting: Arc<AtomicUsize>,
}

impl Local {
    // A panic while the lock is held is a bug already reported; a sender is whole at any time.
    fn sender(&self) -> MutexGuard<'_, Option<UnboundedSender<Permit>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker begins to take.
    pub(crate) fn open(&self) -> Handed {
        let (sender, permits) = unbounded_channel();
        *self.sender() = Some(sender);
        Handed { permits, waiting: self.waiting.clone() }
    }

    /// It takes no more.
    pub(crate) fn close(&self) {
        self.sender().take();
    }

    /// Whether permits should go straight to the worker.
    pub(crate) fn takes(&self) -> bool {
        self.sender().is_some() && self.waiting.load(Ordering::Relaxed) < MOST_WAITING
    }

    /// Hands permits over. Answers them back when nobody takes any more.
    pub(crate) fn hand(&self, permits: Vec<Permit>) -> Result<(), Vec<Permit>> {
        let sender = self.sender();
        let Some(sender) = sender.as_ref().filter(|sender| !sender.is_closed()) else { return Err(permits) };
        self.waiting.fetch_add(permits.len(), Ordering::Relaxed);
        for permit in permits {
            // The receiver is closed under the same lock, or gone with the whole queue.
            let _ = sender.send(permit);
        }
        Ok(())
    }
}

impl Handed {
    /// At least one permit; none at the end.
    pub(crate) async fn take(&mut self, max: usize) -> Vec<Permit> {
        let mut permits = Vec::new();
        self.permits.recv_many(&mut permits, max).await;
        self.waiting.fetch_sub(permits.len(), Ordering::Relaxed);
        permits
    }
}
