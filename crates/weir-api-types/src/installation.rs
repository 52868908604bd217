//! The installation: callers, keys, activity, processes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use weir_core::Timestamp;

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// The name of the key; null for a key from the settings of the server, and without a key.
    pub name: Option<String>,
    pub role: String,
    /// Null: all tenants.
    pub tenants: Option<Vec<String>>,
    /// When the session ends; null for a request with a key, or without one.
    pub session_expires_at: Option<Timestamp>,
    /// Whether requests need a key or a session. If not, everybody who reaches the server is an admin.
    pub keys_required: bool,
    /// The version of Weir.
    #[schema(example = "0.1.0")]
    pub version: String,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    #[schema(example = "key_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    pub name: String,
    pub role: String,
    /// Null: all tenants.
    pub tenants: Option<Vec<String>>,
    pub created_at: Timestamp,
    /// Null: it is valid until it is deleted.
    pub expires_at: Option<Timestamp>,
    /// Who created it, by the name at that time: of an API key, `WEIR_API_KEYS` for a key of the settings, or
    /// `anonymous` without a key. Null: a version of Weir that did not record it.
    #[schema(example = "an admin")]
    pub created_by: Option<String>,
    /// The API key that created it; null for the others.
    pub created_by_key_id: Option<String>,
    /// When it was last used, recorded about once a minute. Null: never, as far as is recorded.
    pub last_used_at: Option<Timestamp>,
}

/// A newly created API key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedApiKey {
    #[serde(flatten)]
    pub key: ApiKey,
    /// Send it as `Authorization: Bearer wk_…`.
    #[schema(example = "wk_8qWz1m0yTDUp6n3v0r7cZb5k2hXo4eGf9sLjAaYtQiE")]
    pub secret: String,
}

/// What somebody did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    #[schema(example = "act_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    pub at: Timestamp,
    /// The name of the API key at that time, `WEIR_API_KEYS` for a key of the settings, `anonymous` without a key, or
    /// `weir` for Weir itself.
    #[schema(example = "billing service")]
    pub actor: String,
    /// `key`: an API key of the store; `setting`: a key of the settings; `anonymous`: no key; `system`: Weir itself.
    pub actor_kind: String,
    /// The API key of the actor. Names need not be unique.
    pub actor_key_id: Option<String>,
    #[schema(pattern = "^[a-z_]+\\.[a-z_]+$", example = "destination.edited")]
    pub action: String,
    /// Null: what belongs to no tenant.
    pub tenant: Option<String>,
    pub subject: Option<ActivitySubject>,
    /// The changed values before the change.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The changed values after the change.
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
    /// The `x-request-id` of the request; null for Weir itself.
    pub request_id: Option<String>,
}

/// What an activity is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivitySubject {
    #[serde(rename = "type")]
    #[schema(pattern = "^(destination|limit_group|event_type|delivery|replay|key)$", example = "destination")]
    pub kind: String,
    #[schema(example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    /// Its name at that time; null if it has none.
    pub name: Option<String>,
}

/// The state of the installation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstallationStatus {
    pub as_of: Timestamp,
    /// The version of the process that answers.
    pub version: String,
    pub store: Backend,
    pub queue: Backend,
    /// Null while the queue cannot be reached.
    pub queue_depths: Option<QueueDepths>,
    /// The registered processes. Null while the store cannot be reached.
    pub processes: Option<Vec<Process>>,
    /// The fault of Weir itself that stalls destinations or lets no event in, as this process last saw it. It is known also
    /// while the store does not answer. Null: none is known.
    #[serde(default)]
    pub outage: Option<InstallationOutage>,
}

/// A fault of Weir itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstallationOutage {
    #[schema(
        pattern = "^(queue_away|store_slow|store_unwritable|no_worker|no_scheduler|workers_full)$",
        example = "no_worker"
    )]
    pub cause: String,
    /// In words.
    #[schema(example = "no worker runs")]
    pub reason: String,
    /// Since when the first destination has been stalled, or no event is accepted.
    pub since: Timestamp,
}

/// A store or a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Backend {
    /// `sqlite`, `postgres`, `memory` or `redis`.
    #[schema(example = "postgres")]
    pub kind: String,
    /// Whether it answers and can be used.
    pub is_reachable: bool,
    /// Why a store or a queue that answers cannot be used, as the end of a sentence; null otherwise.
    #[serde(default)]
    #[schema(example = "its disk is full")]
    pub obstacle: Option<String>,
    /// How long its answer took; null if there was none within two seconds.
    pub answered_in_ms: Option<f64>,
    /// The space that is left on the disk of a file; null for a server, and for a queue.
    pub free_bytes: Option<u64>,
}

/// A process. A process of an older version says nothing of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    pub id: i32,
    /// `serve`, `api`, `scheduler` or `worker`.
    pub role: Option<String>,
    pub version: Option<String>,
    /// The name of its machine; in a container that of the container, in Kubernetes that of the pod.
    pub host: Option<String>,
    pub started_at: Option<Timestamp>,
    /// By how many seconds the clock of its machine is ahead of that of Redis, at its last heartbeat; negative: behind.
    /// Beyond 30 s the process is not ready. Null: an older version, or a queue without a server.
    #[serde(default)]
    #[schema(example = 0.002)]
    pub clock_ahead_s: Option<f64>,
}

/// How much is in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueDepths {
    /// Destinations that have something to send.
    pub jobs: u64,
    /// Permits that no worker has taken yet.
    pub ready: u64,
    /// How long the oldest of them has waited.
    pub oldest_waited_ms: u64,
    /// Permits that have no slot yet.
    pub queued: u64,
    /// Sends started and not yet settled.
    pub in_flight: u64,
}

/// Whether the process is ready, and what an operator should look at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    #[schema(example = "ready")]
    pub status: String,
    /// Absent if there is nothing to say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A status in one word.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    #[schema(example = "ok")]
    pub status: String,
}

/// Whether a request is signed as it should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Verified {
    pub valid: bool,
    /// Why the signature is not valid; null if it is.
    pub reason: Option<String>,
    /// The signed time; null unless the signature matches and has a time.
    pub signed_at: Option<Timestamp>,
    /// How long ago that was; negative in the future.
    pub age_s: Option<i64>,
    /// What was found to be the cause: `newline`, `re_serialized`, `body_changed`, `timestamp`, `previous_secret`,
    /// `present_secret`, `other_style` or `other_destination`; null if none was found. A valid request may have the cause
    /// `previous_secret`.
    pub cause: Option<String>,
    /// The cause in words.
    pub hint: Option<String>,
}

/// The paths to begin with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Index {
    #[schema(example = "Weir")]
    pub name: String,
    pub version: String,
    /// The documentation of the API, as a page.
    #[schema(example = "/docs")]
    pub docs: String,
    /// The same as an OpenAPI document.
    #[schema(example = "/openapi.json")]
    pub openapi: String,
    #[schema(example = "/healthz")]
    pub health: String,
    /// What the paths of the API begin with.
    #[schema(example = "/v1")]
    pub api: String,
}
