//! Things handed over by whoever must not wait, to one who does.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Takes things in at any time, and gives out all that have gathered.
#[derive(Debug)]
pub struct Mailbox<T> {
    waiting: Mutex<Vec<T>>,
    added: Notify,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), added: Notify::new() }
    }
}

impl<T> Mailbox<T> {
    // A panic while the lock is held is a bug already reported; a list is whole at any time.
    fn waiting(&self) -> MutexGuard<'_, Vec<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands some over.
    pub fn add(&self, things: Vec<T>) {
        if !things.is_empty() {
            self.waiting().extend(things);
            self.added.notify_one();
        }
    }

    /// Everything that has gathered, once there is something. For one receiver.
    pub async fn take(&self) -> Vec<T> {
        loop {
            let things = std::mem::take(&mut *self.waiting());
            if !things.is_empty() {
                return things;
            }
            self.added.notified().await;
        }
    }
}
