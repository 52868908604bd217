//! The statements that read and write whole rows of destinations, and the rows.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use weir_core::Destination;
use weir_sealing::Keyring;
use weir_store::{
    destination_columns, edited_columns,
    rows::{self, Row as _},
};

use crate::{
    cache::Change,
    rows::{Read, Statement, bind, unwritable, uuid},
};

/// The columns for [`rows::destination`] and [`read_change`].
macro_rules! select {
    ($from:literal) => {
        concat!("SELECT ", destination_columns!(), ", version, deleted_at ", $from)
    };
}

/// The named destinations whose versions or holds differ from the cached ones.
pub(crate) const LOOK_UP: &str = select!(
    "FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS r (named, cached, held)
    JOIN destinations ON id = r.named AND (version <> r.cached OR held_until IS DISTINCT FROM r.held)"
);

/// The destinations of some tenants that have changed since the cached versions: of each tenant the first ones. For a
/// tenant that is not cached, deleted destinations are left out.
pub(crate) const CHANGED: &str = select!(
    "FROM unnest($1::text[], $2::bigint[]) AS r (named, cached), LATERAL (
        SELECT * FROM destinations
        WHERE tenant = r.named AND version > r.cached AND (r.cached > 0 OR deleted_at IS NULL)
        ORDER BY version LIMIT $3
    ) AS changed"
);

pub(crate) const LIST: &str = select!(
    "FROM destinations
    WHERE deleted_at IS NULL AND ($1::text[] IS NULL OR tenant = ANY($1)) AND ($2::uuid IS NULL OR id < $2)
        AND ($3::text IS NULL OR name = $3) AND ($4::text IS NULL OR url = $4)
    ORDER BY id DESC LIMIT $5"
);

/// Counted up to the maximum, in the index of names.
pub(crate) const COUNT_OF_TENANT: &str = "
SELECT count(*) FROM (SELECT FROM destinations WHERE tenant = $1 AND deleted_at IS NULL LIMIT $2) AS counted";

/// Two are enough to know that a name is not unique.
pub(crate) const NAMED: &str =
    select!("FROM destinations WHERE tenant = $1 AND name = $2 AND deleted_at IS NULL LIMIT 2");

pub(crate) const EDITED: &str =
    select!("FROM destinations WHERE (updated_at, id) > ($1, $2) ORDER BY updated_at, id LIMIT $3");

/// Reads and locks a destination for an edit.
pub(crate) const LOCK_LIVE: &str = select!("FROM destinations WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE");

/// Reads and locks destinations for one edit of all, in the order of their ids, so that two such edits do not deadlock.
pub(crate) const LOCK_ALL_LIVE: &str =
    select!("FROM destinations WHERE id = ANY($1) AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE");

pub(crate) const INSERT: &str = concat!(
    "INSERT INTO destinations (",
    edited_columns!(),
    ", takes_alerts, id, tenant, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25, $26, $27, $28, $29, $30, $31, $32, $33)"
);

pub(crate) const UPDATE: &str = concat!(
    "UPDATE destinations SET (",
    edited_columns!(),
    ", takes_alerts, version)
    = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25, $26, $27, $28, $29, $30, DEFAULT)
    WHERE id = $31"
);

/// The first 31 parameters of [`INSERT`] and [`UPDATE`].
pub(crate) fn write_destination(
    sql: &'static str,
    destination: &Destination,
    keyring: &Keyring,
) -> Result<Statement, sqlx::Error> {
    let values = rows::destination_values(destination, keyring).map_err(unwritable)?;
    let statement = values.into_iter().fold(sqlx::query(sql), bind);
    Ok(statement.bind(destination.settings.takes_alerts()).bind(uuid(destination.id.as_bytes())))
}

pub(crate) fn read_change(row: &PgRow, keyring: &Keyring) -> Read<Change> {
    let is_deleted = row.optional_int(33)?.is_some();
    Ok(Change {
        id: row.destination_id(0)?,
        tenant: row.text(1)?,
        version: row.int(32)?,
        destination: if is_deleted { None } else { Some(Arc::new(rows::destination(row, keyring)?)) },
    })
}
