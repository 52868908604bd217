//! API keys: single rows, few and rarely changed.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, PgConnection};
use weir_core::ApiKeyId;
use weir_store::{
    ApiKey, ApiKeys, StoreResult,
    rows::{API_KEY_COLUMNS, api_key, tenants_json},
};

use crate::{PostgresStore, edits::Edit, rows::uuid};

/// The values of [`API_KEY_COLUMNS`].
const INSERT: &str = "INSERT INTO api_keys VALUES ($1, $2, $3, $4, $5, $6, $7)";

const DELETE: &str = "DELETE FROM api_keys WHERE id = $1";

#[async_trait]
impl ApiKeys for PostgresStore {
    async fn api_keys(&self) -> StoreResult<Vec<ApiKey>> {
        let all = format!("SELECT {API_KEY_COLUMNS} FROM api_keys ORDER BY id");
        self.read(sqlx::query(AssertSqlSafe(all)), api_key).await
    }

    async fn create_api_key(&self, key: ApiKey) -> StoreResult<()> {
        self.edit(Create(key)).await
    }

    async fn delete_api_key(&self, id: ApiKeyId) -> StoreResult<bool> {
        self.edit(Delete(id)).await
    }
}

struct Create(ApiKey);

#[async_trait]
impl Edit for Create {
    type Answer = ();

    async fn run(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let Self(key) = self;
        sqlx::query(INSERT)
            .bind(uuid(key.id.as_bytes()))
            .bind(&key.name)
            .bind(key.role.as_str())
            .bind(tenants_json(&key.tenants))
            .bind(&key.digest[..])
            .bind(key.created_at.as_nanos())
            .bind(key.expires_at.map(|at| at.as_nanos()))
            .execute(connection)
            .await
            .map(drop)
    }
}

struct Delete(ApiKeyId);

#[async_trait]
impl Edit for Delete {
    type Answer = bool;

    async fn run(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        Ok(sqlx::query(DELETE).bind(uuid(self.0.as_bytes())).execute(connection).await?.rows_affected() == 1)
    }
}
