//! Destinations as targets, each compiled once per version of its settings.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use weir_core::{
    Destination, DestinationId, Timestamp,
    answer_history::{AnswerHistory, RefusalTrend},
    destination::USER_AGENT,
    outcome::SendResult,
};
use weir_queue::Permit;
use weir_store::{StoreError, WorkerStore};

use crate::outbound::Target;

/// Above this number of targets, all are forgotten. A target takes a few kilobytes, so these take a few hundred
/// megabytes at most.
const MAX_CACHED: usize = 50_000;

/// A destination and its compiled request parts.
pub(crate) struct DestinationTarget {
    pub(crate) destination: Arc<Destination>,
    pub(crate) target: Target,
    /// The answers since the last edit, which may have changed the limits.
    answers: Mutex<AnswerHistory>,
}

impl DestinationTarget {
    pub(crate) fn new(destination: Arc<Destination>, target: Target) -> Self {
        Self { destination, target, answers: Mutex::default() }
    }

    /// Counts the result of a send. Returns what the recent answers say, this one included.
    pub(crate) fn record(&self, result: &SendResult, now: Timestamp) -> RefusalTrend {
        // No code panics while it holds the lock.
        let mut answers = self.answers.lock();
        answers.record(result.refusal().is_some(), now)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.destination.settings.timeout_ms.into())
    }
}

/// Compiled targets, by destination.
pub(crate) struct Targets {
    store: Arc<dyn WorkerStore>,
    /// The `user-agent` of destinations that name none; `None`: that of the program.
    user_agent: Option<String>,
    compiled: HashMap<DestinationId, Arc<DestinationTarget>>,
}

impl Targets {
    pub(crate) fn new(store: Arc<dyn WorkerStore>, user_agent: Option<String>) -> Self {
        Self { store, user_agent, compiled: HashMap::new() }
    }

    /// The targets of these permits, in the same order, with the current settings or those at the publication of the
    /// permits. `None` for a deleted destination.
    pub(crate) async fn resolve(
        &mut self,
        permits: &[Permit],
    ) -> Result<Vec<Option<Arc<DestinationTarget>>>, StoreError> {
        if self.compiled.len() > MAX_CACHED {
            self.compiled.clear();
        }
        // Permits of this process may carry their destination as it was at the claim. The others only name it.
        let mut unknown = Vec::new();
        for permit in permits {
            match &permit.delivery.destination {
                // Permits may arrive out of the order of their claims, so older settings do not replace newer ones.
                Some(destination) => self.refresh(destination, |known, other| known < other),
                None => unknown.push(permit.delivery.claim.destination_id),
            }
        }
        unknown.sort_unstable();
        unknown.dedup();
        // Read the others in one call. The store has the current settings, so they replace any other version.
        if !unknown.is_empty() {
            for (id, destination) in unknown.iter().zip(self.store.destinations(&unknown).await?) {
                match destination {
                    Some(destination) => self.refresh(&destination, |known, other| known != other),
                    None => drop(self.compiled.remove(id)),
                }
            }
        }
        Ok(permits.iter().map(|permit| self.compiled.get(&permit.delivery.claim.destination_id).cloned()).collect())
    }

    /// Compiles the destination if it is unknown, or if `replaces` says so for the edit times of the known and the
    /// given version.
    fn refresh(&mut self, destination: &Arc<Destination>, replaces: impl Fn(Timestamp, Timestamp) -> bool) {
        let edited_at = |compiled: &Arc<DestinationTarget>| compiled.destination.updated_at;
        let known = self.compiled.get(&destination.id).map(edited_at);
        if known.is_none_or(|known| replaces(known, destination.updated_at)) {
            let settings = &destination.settings;
            let mut headers = settings.headers.clone();
            if let Some(user_agent) = &self.user_agent
                && !headers.iter().any(|(name, _)| name == USER_AGENT)
            {
                headers.push((USER_AGENT.to_owned(), user_agent.clone()));
            }
            let target = Target::new(&settings.url, &headers, &settings.signing.style, &settings.body)
                .by_way_of(&settings.egress);
            let compiled = DestinationTarget::new(destination.clone(), target);
            self.compiled.insert(destination.id, Arc::new(compiled));
        }
    }
}
