//! API keys: single rows, few and rarely changed.

use async_trait::async_trait;
use weir_core::{ApiKeyId, activity::Activity};
use weir_store::{
    ApiKey, ApiKeys, Created, Creation, SessionSecret, StoreResult,
    rows::{API_KEY_COLUMNS, Corrupt, api_key, session_secret, tenants_json},
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, query},
    transaction::Transaction,
};

/// The values of [`API_KEY_COLUMNS`].
const INSERT: &str = "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, ?)";

const DELETE: &str = "DELETE FROM api_keys WHERE id = ?";

const SESSION_SECRET: &str = "SELECT secret FROM session_secret";

const KEEP_SESSION_SECRET: &str = "INSERT INTO session_secret VALUES (1, ?) ON CONFLICT DO NOTHING";

#[async_trait]
impl ApiKeys for SqliteStore {
    async fn api_keys(&self) -> StoreResult<Vec<ApiKey>> {
        self.read(format!("SELECT {API_KEY_COLUMNS} FROM api_keys ORDER BY id"), Values::default(), api_key).await
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
        values.blob(key.id.as_bytes()).text(&key.name).text(key.role.as_str()).optional_text(tenants.as_deref());
        values.blob(&key.digest).int(key.created_at.as_nanos()).optional_int(key.expires_at.map(|at| at.as_nanos()));
        execute(self.connection, INSERT, &values).map(drop)
    }

    fn delete_api_key(&mut self, id: ApiKeyId) -> Result<bool> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        Ok(execute(self.connection, DELETE, &values)? == 1)
    }

    /// Keeps a secret if there is none, and returns the kept one.
    fn keep_session_secret(&mut self, proposed: &SessionSecret) -> Result<SessionSecret> {
        let mut values = Values::default();
        values.blob(proposed);
        execute(self.connection, KEEP_SESSION_SECRET, &values)?;
        let kept = query(self.connection, SESSION_SECRET, &Values::default(), |row| session_secret(row))?.pop();
        Ok(kept.ok_or(Corrupt("the secret of sessions"))?)
    }
}
