//! The activity log, and the first answers to requests with an idempotency key.
//!
//! Both are written in the transaction of the change that they belong to: the methods that change something for a
//! person take an [`Activity`], and those that create something a [`Creation`]. What Weir changes by itself (pauses,
//! holds, breakers) the store records on its own.

use std::collections::BTreeSet;

use async_trait::async_trait;
use weir_core::{ApiKeyId, DestinationId, Timestamp, activity::Activity};

use crate::{Page, PageRequest, StoreResult};

/// The first answer to a request with an `Idempotency-Key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedAnswer {
    /// The digest of the caller and its key.
    pub key: [u8; 32],
    /// The digest of the request. It tells a repetition from a different request with the same key.
    pub request: [u8; 32],
    /// The answer, without secrets.
    pub answer: String,
    pub at: Timestamp,
}

/// What is stored in the transaction of a creation, or of an edit that must not be made twice.
#[derive(Debug, Clone)]
pub struct Creation {
    pub activity: Activity,
    /// If another request has stored an answer under this key and it is still kept, nothing is created.
    pub answer: Option<KeyedAnswer>,
}

impl From<Activity> for Creation {
    fn from(activity: Activity) -> Self {
        Self { activity, answer: None }
    }
}

/// The result of a creation.
#[derive(Debug, Clone, PartialEq)]
pub enum Created<T> {
    New(T),
    /// The answer to an earlier request with the same idempotency key. Nothing was created now.
    Before(KeyedAnswer),
    /// There are as many as the limit allows. Nothing was created.
    Full,
}

impl<T> Created<T> {
    /// What was created. `None` if nothing was.
    pub fn into_new(self) -> Option<T> {
        match self {
            Self::New(new) => Some(new),
            Self::Before(_) | Self::Full => None,
        }
    }
}

/// Who did something, in a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActorFilter {
    Name(String),
    Key(ApiKeyId),
}

/// Which activities to list. Times are of `at`, `from` included, `to` excluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilter {
    pub destination_id: Option<DestinationId>,
    pub actor: Option<ActorFilter>,
    /// Only activities of these tenants. `None`: all activities, also those that belong to no tenant.
    pub tenants: Option<BTreeSet<String>>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
}

#[async_trait]
pub trait ActivityLog: Send + Sync {
    /// Records an activity that changes nothing else in the store, such as the showing of a secret. If it comes with an
    /// answer, it is recorded only if no answer is stored under the same key.
    async fn record_activity(&self, creation: Creation) -> StoreResult<Created<()>>;

    /// Newest first.
    async fn list_activity(&self, filter: &ActivityFilter, page: PageRequest) -> StoreResult<Page<Activity>>;

    /// The answer that was stored under a key at or after `kept_from`.
    async fn keyed_answer(&self, key: [u8; 32], kept_from: Timestamp) -> StoreResult<Option<KeyedAnswer>>;

    /// Deletes some activities and answers from before these times. Returns how many; 0 when none is left.
    async fn prune_activity(&self, activity_before: Timestamp, answers_before: Timestamp) -> StoreResult<u64>;
}
