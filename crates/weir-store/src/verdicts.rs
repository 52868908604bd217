//! Whether an event passes the filters of its destinations. A filter is evaluated by the task of the producer, before
//! the event joins a commit batch: a tenant may have thousands of filters, and all producers wait for the commit.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use weir_core::{
    event::Event,
    filter::{Data, Filter, Fingerprint},
};

/// The filters that are evaluated before others get their turn on the thread.
const EVALUATED_AT_ONCE: usize = 32;

/// What the filters say about one event, by the text of the filter. So a verdict stays right whatever is edited between
/// the evaluation and the commit.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<HashMap<Fingerprint, bool>>);

impl Verdicts {
    /// Evaluates these filters, with the data of the event read at most once.
    pub async fn judge(&self, event: &Event, filters: &[Arc<Filter>]) {
        if filters.is_empty() {
            return;
        }
        let data = event.body.data();
        let text = String::from_utf8_lossy(&data);
        let data = Data::new(&text);
        for (index, part) in filters.chunks(EVALUATED_AT_ONCE).enumerate() {
            if index > 0 {
                tokio::task::yield_now().await;
            }
            self.evaluate(&data, part);
        }
    }

    /// Evaluates the filters that were set since [`Self::judge`].
    pub(crate) fn judge_late(&self, event: &Event, filters: &[Arc<Filter>]) {
        if !filters.is_empty() {
            let data = event.body.data();
            self.evaluate(&Data::new(&String::from_utf8_lossy(&data)), filters);
        }
    }

    fn evaluate(&self, data: &Data<'_>, filters: &[Arc<Filter>]) {
        let mut verdicts = self.0.lock();
        for filter in filters {
            verdicts.entry(filter.fingerprint()).or_insert_with(|| filter.matches(data));
        }
    }

    /// `None`: the filter was not evaluated.
    pub(crate) fn of(&self, filter: &Filter) -> Option<bool> {
        self.0.lock().get(&filter.fingerprint()).copied()
    }
}

/// A copy of an event has its own fan-out.
impl Clone for Verdicts {
    fn clone(&self) -> Self {
        Self::default()
    }
}
