//! API keys: single rows, few and rarely changed.

use async_trait::async_trait;
use weir_core::{ApiKeyId, activity::Activity};
use weir_store::{
    ApiKey, ApiKeys, Created, Creation, KeyUse, SessionSecret, StoreResult,
    rows::{API_KEYS, Corrupt, api_key, session_secret, tenants_json},
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, query, values},
    transaction::Transaction,
};

const INSERT: &str = "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, ?)";

const NAME_MAKER: &str = "INSERT INTO api_key_makers (key_id, name, maker_id) VALUES (?, ?, ?)";

const DELETE: &str = "DELETE FROM api_keys WHERE id = ?";

/// What is kept beside a key.
const DELETE_BESIDE: [&str; 2] =
    ["DELETE FROM api_key_makers WHERE key_id = ?", "DELETE FROM api_key_uses WHERE key_id = ?"];

const RECORD_USE: &str = "INSERT INTO api_key_uses (key_id, at) SELECT id, ? FROM api_keys WHERE id = ?
    ON CONFLICT (key_id) DO UPDATE SET at = excluded.at WHERE at < excluded.at";

const SESSION_SECRET: &str = "SELECT secret FROM session_secret";

const KEEP_SESSION_SECRET: &str = "INSERT INTO session_secret VALUES (1, ?) ON CONFLICT DO NOTHING";

#[async_trait]
impl ApiKeys for SqliteStore {
    async fn api_keys(&self) -> StoreResult<Vec<ApiKey>> {
        self.read(API_KEYS.to_owned(), Values::default(), api_key).await
    }

    async fn create_api_key(&self, key: ApiKey, creation: Creation) -> StoreResult<Created<()>> {
        self.edit(Durable::Yes, move |transaction| transaction.create_once(&creation, |this| this.create_api_key(&key)))
            .await
    }

    async fn delete_api_key(&self, id: ApiKeyId, activity: Activity) -> StoreResult<bool> {
        self.edit(Durable::Yes, move |transaction| {
            let deleted = transaction.delete_api_key(id)?;
            transaction.recorded(deleted, |deleted| *deleted, &activity)
        })
        .await
    }

    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> StoreResult<()> {
        self.edit(Durable::No, move |transaction| transaction.record_key_uses(&uses)).await
    }

    async fn session_secret(&self, proposed: SessionSecret) -> StoreResult<SessionSecret> {
        // Normally there is one, and a reader does not wait for the writer.
        let kept = self.read(SESSION_SECRET.to_owned(), Values::default(), session_secret).await?.pop();
        match kept {
            Some(kept) => Ok(kept),
            None => self.edit(Durable::Yes, move |transaction| transaction.keep_session_secret(&proposed)).await,
        }
    }
}

impl Transaction<'_, '_> {
    fn create_api_key(&mut self, key: &ApiKey) -> Result<()> {
        let tenants = tenants_json(&key.tenants);
        let mut values = Values::default();
        values.bind(key.id.as_bytes()).bind(&key.name).bind(key.role.as_str()).bind(tenants.as_deref());
        values.bind(&key.digest).bind(key.created_at).bind(key.expires_at);
        execute(self.connection, INSERT, &values)?;
        let Some(maker) = &key.created_by else { return Ok(()) };
        let values = values![key.id.as_bytes(), maker.name(), maker.key_id().map(|id| id.as_bytes().to_vec())];
        execute(self.connection, NAME_MAKER, &values).map(drop)
    }

    fn record_key_uses(&mut self, uses: &[KeyUse]) -> Result<()> {
        for KeyUse { id, at } in uses {
            execute(self.connection, RECORD_USE, &values![at, id.as_bytes()])?;
        }
        Ok(())
    }

    fn delete_api_key(&mut self, id: ApiKeyId) -> Result<bool> {
        let values = values![id.as_bytes()];
        let is_deleted = execute(self.connection, DELETE, &values)? == 1;
        for delete in DELETE_BESIDE {
            execute(self.connection, delete, &values)?;
        }
        Ok(is_deleted)
    }

    /// Keeps a secret if there is none, and returns the kept one.
    fn keep_session_secret(&mut self, proposed: &SessionSecret) -> Result<SessionSecret> {
        execute(self.connection, KEEP_SESSION_SECRET, &values![proposed])?;
        let kept = query(self.connection, SESSION_SECRET, &Values::default(), |row| session_secret(row))?.pop();
        Ok(kept.ok_or(Corrupt("the secret of sessions"))?)
    }
}
