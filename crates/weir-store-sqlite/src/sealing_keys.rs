//! The keys with which processes seal rows.

use rusqlite::Connection;
use weir_sealing::KeyId;
use weir_store::rows::Corrupt;

use crate::{error::Result, schema};

/// The keys that may have sealed rows.
pub(crate) fn keys(connection: &Connection) -> Result<Vec<KeyId>> {
    let mut keys = connection.prepare("SELECT key_id FROM sealing_keys ORDER BY key_id")?;
    let keys = keys.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(keys
        .iter()
        .map(|key| key.parse().map_err(|_| Corrupt("the id of a key")))
        .collect::<std::result::Result<_, _>>()?)
}

/// Programs that know nothing of sealed rows must not start any more.
pub(crate) fn add_key(connection: &Connection, key: KeyId) -> Result<()> {
    connection.execute("INSERT INTO sealing_keys VALUES (?) ON CONFLICT DO NOTHING", [key.to_string()])?;
    connection.execute("UPDATE schema_marker SET oldest_program = max(oldest_program, ?)", [schema::SEALED])?;
    Ok(())
}
