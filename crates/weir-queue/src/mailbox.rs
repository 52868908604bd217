//! A list of items from senders that must not wait, for one receiver that waits.

use parking_lot::Mutex;

use tokio::sync::Notify;

/// Collects items. The receiver takes all of them at once.
#[derive(Debug)]
pub struct Mailbox<T> {
    items: Mutex<Vec<T>>,
    added: Notify,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), added: Notify::new() }
    }
}

impl<T> Mailbox<T> {
    /// Adds items. Never waits.
    pub fn add(&self, items: Vec<T>) {
        if !items.is_empty() {
            self.items.lock().extend(items);
            self.added.notify_one();
        }
    }

    /// Waits for items and takes all of them. For one receiver.
    pub async fn take(&self) -> Vec<T> {
        loop {
            let items = std::mem::take(&mut *self.items.lock());
            if !items.is_empty() {
                return items;
            }
            self.added.notified().await;
        }
    }
}
