//! The API keys that are created through the API, and the secret that signs sessions. Keys from the settings of the
//! process are not stored.

use async_trait::async_trait;
use weir_core::{
    ApiKeyId, Timestamp,
    access::{Actor, KeyDigest, Role, TenantScope},
    activity::Activity,
};

use crate::{Created, Creation, StoreResult};

/// A stored key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub id: ApiKeyId,
    /// A name for people: it need not be unique.
    pub name: String,
    pub role: Role,
    pub tenants: TenantScope,
    pub digest: KeyDigest,
    pub created_at: Timestamp,
    /// The first instant at which the key is no longer valid. `None`: it is valid until it is deleted.
    pub expires_at: Option<Timestamp>,
    /// `None`: a program of an earlier version made the key.
    pub created_by: Option<Actor>,
    /// The last use that was recorded: at most about a minute before the last use. `None`: no use was recorded.
    pub last_used_at: Option<Timestamp>,
}

/// A use of a stored key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUse {
    pub id: ApiKeyId,
    pub at: Timestamp,
}

/// The secret that signs the sessions of browsers.
pub type SessionSecret = [u8; 32];

#[async_trait]
pub trait ApiKeys: Send + Sync {
    /// All keys, the oldest first, expired ones included. There are few: each API process keeps them in memory.
    async fn api_keys(&self) -> StoreResult<Vec<ApiKey>>;

    async fn create_api_key(&self, key: ApiKey, creation: Creation) -> StoreResult<Created<()>>;

    /// `false` if there is no such key.
    async fn delete_api_key(&self, id: ApiKeyId, activity: Activity) -> StoreResult<bool>;

    /// Records the last uses of keys. A later recorded use stays, and a key that does not exist is left out. The loss of
    /// the record in a power failure is of no consequence.
    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> StoreResult<()>;

    /// The secret that signs sessions, which all processes share. If there is none, `proposed` becomes it; of several
    /// proposals at one time the first does, and all callers get that one.
    async fn session_secret(&self, proposed: SessionSecret) -> StoreResult<SessionSecret>;
}
