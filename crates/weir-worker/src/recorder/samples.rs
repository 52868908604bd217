//! Reports of the answers of adaptive destinations to their jobs, a few times a second.

use std::{collections::HashMap, time::Duration};

use weir_core::{DestinationId, Timestamp, adaptive::Sample};
use weir_queue::{Queue, Report};

use crate::attempt::FinishedAttempt;

/// How long an answer waits for others. A pace is cut a quarter of a second after the refusal at the latest.
const GATHER: Duration = Duration::from_millis(200);

/// What was seen since the last reports: for each destination, one sample for each pace that its slots followed. The
/// places of the worker bound how many there are.
#[derive(Default)]
pub(super) struct Samples {
    gathered: HashMap<(DestinationId, u32), Sample>,
    since: Timestamp,
}

impl Samples {
    pub(super) fn add(&mut self, attempt: &FinishedAttempt) {
        let Some(sample) = &attempt.sample else { return };
        if self.gathered.is_empty() {
            self.since = attempt.result.now;
        }
        let key = (attempt.destination.id, sample.generation);
        self.gathered.entry(key).and_modify(|known| known.merge(sample)).or_insert(**sample);
    }

    /// How long until reports are due; `None` if there is nothing to report.
    pub(super) fn due_in(&self, now: Timestamp) -> Option<Duration> {
        (!self.gathered.is_empty()).then(|| (self.since + GATHER).since(now))
    }

    /// Sends the reports. Lost ones cost little: the next answers say the same.
    pub(super) async fn send(&mut self, queue: &dyn Queue) {
        let report = |((destination_id, _), sample)| Report { destination_id, sample };
        let reports: Vec<_> = self.gathered.drain().map(report).collect();
        if let Err(error) = queue.report(&reports).await {
            tracing::debug!(%error, "could not report answers of adaptive destinations");
        }
    }
}
