//! Whether an event passes the filters of its destinations, which limit keys it has there, and which limits their groups
//! have. Its data and the groups are read by the task of the producer, before the event joins a commit batch: a tenant may
//! have thousands of filters, and all producers wait for the commit.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use weir_core::{
    LimitGroup, LimitGroupId, LimitKey,
    event::Event,
    filter::{Data, Filter, Fingerprint},
    limit_key::KeyLimits,
};

/// What is looked for in the data of an event, and the groups that must be known to take it.
#[derive(Debug, Clone, Default)]
pub struct Looks {
    /// Filters, each once.
    pub filters: Arc<[Arc<Filter>]>,
    /// Limit keys, one for each pointer; none if the event names its key.
    pub key_limits: Arc<[Arc<KeyLimits>]>,
    /// Limit groups, each once; none if the event has the usual cost.
    pub limit_groups: Arc<[LimitGroupId]>,
}

/// Limit groups as they were read; `None` for one that does not exist.
pub(crate) type KnownGroups = HashMap<LimitGroupId, Option<Arc<LimitGroup>>>;

/// The filters or limit keys that are evaluated before others get their turn on the thread.
const EVALUATED_AT_ONCE: usize = 32;

/// What the filters say about one event, by the text of the filter, and its limit keys by their pointers. So a verdict stays
/// right whatever is edited between the evaluation and the commit.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    filters: HashMap<Fingerprint, bool>,
    keys: HashMap<String, LimitKey>,
    groups: Arc<KnownGroups>,
}

impl Verdicts {
    /// Evaluates what is looked for, with the data of the event read at most once.
    pub async fn judge(&self, event: &Event, looks: &Looks) {
        let Looks { filters, key_limits, .. } = looks;
        if filters.is_empty() && key_limits.is_empty() {
            return;
        }
        let data = event.body.data();
        let text = String::from_utf8_lossy(&data);
        let data = Data::new(&text);
        for part in filters.chunks(EVALUATED_AT_ONCE) {
            self.evaluate(&data, part, &[]);
            tokio::task::yield_now().await;
        }
        for part in key_limits.chunks(EVALUATED_AT_ONCE) {
            self.evaluate(&data, &[], part);
            tokio::task::yield_now().await;
        }
    }

    /// Evaluates what was set since [`Self::judge`].
    pub(crate) fn judge_late(&self, event: &Event, filters: &[Arc<Filter>], key_limits: &[Arc<KeyLimits>]) {
        if !filters.is_empty() || !key_limits.is_empty() {
            let data = event.body.data();
            self.evaluate(&Data::new(&String::from_utf8_lossy(&data)), filters, key_limits);
        }
    }

    fn evaluate(&self, data: &Data<'_>, filters: &[Arc<Filter>], key_limits: &[Arc<KeyLimits>]) {
        let mut found = self.0.lock();
        for filter in filters {
            found.filters.entry(filter.fingerprint()).or_insert_with(|| filter.matches(data));
        }
        for KeyLimits { pointer, .. } in key_limits.iter().map(|of| &**of) {
            if !found.keys.contains_key(pointer) {
                found.keys.insert(pointer.clone(), LimitKey::found(pointer, data));
            }
        }
    }

    /// Takes the groups of the part that the event is in.
    pub(crate) fn know(&self, groups: &Arc<KnownGroups>) {
        self.0.lock().groups = Arc::clone(groups);
    }

    /// The limit group, if it exists. `None`: it was not read.
    pub(crate) fn group(&self, id: LimitGroupId) -> Option<Option<Arc<LimitGroup>>> {
        self.0.lock().groups.get(&id).cloned()
    }

    /// `None`: the filter was not evaluated.
    pub(crate) fn of(&self, filter: &Filter) -> Option<bool> {
        self.0.lock().filters.get(&filter.fingerprint()).copied()
    }

    /// The limit key at this pointer. `None`: it was not looked for.
    pub(crate) fn key(&self, pointer: &str) -> Option<LimitKey> {
        self.0.lock().keys.get(pointer).cloned()
    }
}

/// A copy of an event has its own fan-out.
impl Clone for Verdicts {
    fn clone(&self) -> Self {
        Self::default()
    }
}
