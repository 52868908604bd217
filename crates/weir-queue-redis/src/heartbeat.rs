//! The heartbeat of this process: the id under which it takes permits, and until when it may use them.

use tokio::{sync::watch, time::Instant};
use weir_core::claim::ProcessId;

/// As last renewed. A process that has never registered reads under a random name and may do everything, because no
/// other process watches it.
pub(crate) struct OwnHeartbeat {
    /// A random name of this process, for uses that need no registration.
    pub(crate) name: String,
    latest: watch::Sender<Option<Heartbeat>>,
}

#[derive(Debug, Clone, Copy)]
struct Heartbeat {
    process: ProcessId,
    until: Instant,
}

impl OwnHeartbeat {
    pub(crate) fn new() -> Self {
        Self { name: format!("{:016x}", rand::random::<u64>()), latest: watch::Sender::new(None) }
    }

    pub(crate) fn renew(&self, process: ProcessId, until: Instant) {
        self.latest.send_replace(Some(Heartbeat { process, until }));
    }

    pub(crate) fn process(&self) -> Option<ProcessId> {
        self.latest.borrow().map(|heartbeat| heartbeat.process)
    }

    /// The reader name under which this process takes permits.
    pub(crate) fn reader(&self) -> String {
        self.process().map_or_else(|| self.name.clone(), reader_named)
    }

    pub(crate) fn is_valid(&self) -> bool {
        is_valid(&self.latest.borrow())
    }

    /// Waits until it is valid.
    pub(crate) async fn valid(&self) {
        // The sender is in `self`, so the channel stays open.
        let _ = self.latest.subscribe().wait_for(is_valid).await;
    }
}

fn is_valid(heartbeat: &Option<Heartbeat>) -> bool {
    heartbeat.is_none_or(|heartbeat| Instant::now() < heartbeat.until)
}

/// The reader name of a process.
pub(crate) fn reader_named(process: ProcessId) -> String {
    process.0.to_string()
}
