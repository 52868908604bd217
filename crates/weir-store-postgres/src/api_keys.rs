//! API keys: single rows, few and rarely changed.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{ApiKeyId, activity::Activity};
use weir_store::{
    ApiKey, ApiKeys, Created, Creation, KeyUse, SessionSecret, StoreResult,
    rows::{API_KEYS, api_key, session_secret, tenants_json},
};

use crate::{
    PostgresStore,
    activity::{record, record_creation},
    edit::change,
    rows::uuid,
};

const INSERT: &str = "INSERT INTO api_keys VALUES ($1, $2, $3, $4, $5, $6, $7)";

const NAME_MAKER: &str = "INSERT INTO api_key_makers (key_id, name, maker_id) VALUES ($1, $2, $3)";

const DELETE: &str = "DELETE FROM api_keys WHERE id = $1";

/// What is kept beside a key.
const DELETE_BESIDE: [&str; 2] =
    ["DELETE FROM api_key_makers WHERE key_id = $1", "DELETE FROM api_key_uses WHERE key_id = $1"];

/// The keys are locked, so a use is never recorded after the deletion of its key; in their order, so two processes that
/// record the same keys never wait for each other.
const RECORD_USES: &str = "INSERT INTO api_key_uses (key_id, at)
    SELECT key.id, used.at FROM unnest($1::uuid[], $2::bigint[]) AS used (id, at) JOIN api_keys AS key ON key.id = used.id
    ORDER BY key.id FOR KEY SHARE OF key
    ON CONFLICT (key_id) DO UPDATE SET at = excluded.at WHERE api_key_uses.at < excluded.at";

const SESSION_SECRET: &str = "SELECT secret FROM session_secret";

const KEEP_SESSION_SECRET: &str = "INSERT INTO session_secret VALUES (true, $1) ON CONFLICT DO NOTHING";

#[async_trait]
impl ApiKeys for PostgresStore {
    async fn api_keys(&self) -> StoreResult<Vec<ApiKey>> {
        self.read(sqlx::query(API_KEYS), api_key).await
    }

    async fn create_api_key(&self, key: ApiKey, creation: Creation) -> StoreResult<Created<()>> {
        self.edit(|connection| change(create(connection, &key, &creation))).await
    }

    async fn delete_api_key(&self, id: ApiKeyId, activity: Activity) -> StoreResult<bool> {
        self.edit(|connection| change(delete(connection, id, &activity))).await
    }

    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> StoreResult<()> {
        self.edit(|connection| change(record_uses(connection, &uses))).await
    }

    async fn session_secret(&self, proposed: SessionSecret) -> StoreResult<SessionSecret> {
        // Normally there is one: a read-only server answers too.
        let kept = self.read(sqlx::query(SESSION_SECRET), session_secret).await?.pop();
        match kept {
            Some(kept) => Ok(kept),
            None => self.edit(|connection| change(keep_session_secret(connection, &proposed))).await,
        }
    }
}

async fn create(connection: &mut PgConnection, key: &ApiKey, creation: &Creation) -> Result<Created<()>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    if let Some(before) = record_creation(&mut transaction, creation).await? {
        transaction.rollback().await?;
        return Ok(Created::Before(before));
    }
    sqlx::query(INSERT)
        .bind(uuid(key.id.as_bytes()))
        .bind(&key.name)
        .bind(key.role.as_str())
        .bind(tenants_json(&key.tenants))
        .bind(&key.digest[..])
        .bind(key.created_at.as_nanos())
        .bind(key.expires_at.map(|at| at.as_nanos()))
        .execute(&mut *transaction)
        .await?;
    if let Some(maker) = &key.created_by {
        let maker_id = maker.key_id().map(|id| uuid(id.as_bytes()));
        let name = sqlx::query(NAME_MAKER).bind(uuid(key.id.as_bytes())).bind(maker.name()).bind(maker_id);
        name.execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(Created::New(()))
}

async fn record_uses(connection: &mut PgConnection, uses: &[KeyUse]) -> Result<(), sqlx::Error> {
    let ids: Vec<_> = uses.iter().map(|used| uuid(used.id.as_bytes())).collect();
    let times: Vec<i64> = uses.iter().map(|used| used.at.as_nanos()).collect();
    sqlx::query(RECORD_USES).bind(ids).bind(times).execute(connection).await.map(drop)
}

async fn delete(connection: &mut PgConnection, id: ApiKeyId, activity: &Activity) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let delete = sqlx::query(DELETE).bind(uuid(id.as_bytes()));
    let is_deleted = delete.execute(&mut *transaction).await?.rows_affected() == 1;
    if is_deleted {
        for delete in DELETE_BESIDE {
            sqlx::query(delete).bind(uuid(id.as_bytes())).execute(&mut *transaction).await?;
        }
        record(&mut transaction, activity).await?;
    }
    transaction.commit().await?;
    Ok(is_deleted)
}

/// Keeps a secret if there is none, and returns the kept one.
async fn keep_session_secret(
    connection: &mut PgConnection,
    proposed: &SessionSecret,
) -> Result<SessionSecret, sqlx::Error> {
    // The insert waits for another one that is under way, so the statement after it sees the secret of that one.
    sqlx::query(KEEP_SESSION_SECRET).bind(&proposed[..]).execute(&mut *connection).await?;
    Ok(session_secret(&sqlx::query(SESSION_SECRET).fetch_one(connection).await?)?)
}
