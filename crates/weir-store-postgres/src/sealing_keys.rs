//! The keys with which processes seal rows.

use sqlx::{Connection as _, PgConnection, postgres::PgRow};
use weir_sealing::{KeyId, Keyring};
use weir_store::{
    rows::{Corrupt, Row as _},
    sealing::missing_key,
};

use crate::{rows::Read, schema};

const KEYS: &str = "SELECT key_id FROM sealing_keys ORDER BY key_id";

const ADD_KEY: &str = "INSERT INTO sealing_keys VALUES ($1) ON CONFLICT DO NOTHING";

/// Programs that know nothing of sealed rows, or of bodies without heads, must not start any more.
pub(crate) const MARK: &str = "UPDATE schema_marker SET oldest_program = $1 WHERE oldest_program < $1";

pub(crate) async fn keys(connection: &mut PgConnection) -> Result<Vec<KeyId>, sqlx::Error> {
    let rows = sqlx::query(KEYS).fetch_all(connection).await?;
    let key = |row: &PgRow| Ok(row.text(0)?.parse().map_err(|_| Corrupt("the id of a key"))?);
    Ok(rows.iter().map(key).collect::<Read<_>>()?)
}

/// A key that may have sealed rows and that the ring lacks. If there is none, the first key of the ring is added to the
/// keys.
pub(crate) async fn check_keys(connection: &mut PgConnection, keyring: &Keyring) -> Result<Option<KeyId>, sqlx::Error> {
    let known = keys(connection).await?;
    let missing = missing_key(&known, keyring);
    if let (None, Some(first)) = (missing, keyring.first_id().filter(|first| !known.contains(first))) {
        let mut transaction = connection.begin().await?;
        sqlx::query(ADD_KEY).bind(first.to_string()).execute(&mut *transaction).await?;
        sqlx::query(MARK).bind(schema::SEALED).execute(&mut *transaction).await?;
        transaction.commit().await?;
    }
    Ok(missing)
}
