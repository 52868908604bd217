//! Sealed rows: which keys they need, and the rotation, which stores each of them as a new one would be stored.
//!
//! ```text
//!   column by column: a page of heads ──need another key?──▶ some rows at a time ──renewed in one transaction──▶ …
//! ```
//!
//! The rotation runs beside the processes. It keeps no place of its own: a row that has the right key is skipped by its
//! head, so that an interrupted rotation is simply run again.
//!
//! A store keeps the keys that may have sealed rows. A process adds its first key before it seals anything, and adds it
//! again within a second if a rotation has removed it too early. Who lacks one of these keys does not start, and stops
//! sending if it runs.

use std::collections::BTreeMap;

use async_trait::async_trait;
use weir_sealing::{COLUMNS, Column, KeyId, Keyring, LOOKED_AT, Unopened, key_of};

use crate::{StoreError, StoreResult};

/// The heads that are read at one time: 17 bytes each, and its id.
const HEADS: u32 = 1_000;
/// The rows that one transaction renews: few enough that no other write waits for long.
const RENEWED_AT_ONCE: usize = 32;

/// The primary key of a row. The default is before every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealedRow {
    pub id: [u8; 16],
    /// 0 in a table without it.
    pub number: u32,
}

impl SealedRow {
    /// The row as it is authenticated.
    pub fn authenticated(&self, column: &Column) -> Vec<u8> {
        match column.number {
            Some(_) => weir_sealing::row(&self.id, self.number).to_vec(),
            None => self.id.to_vec(),
        }
    }
}

/// What one step of the rotation has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Renewed {
    pub rows: u64,
    /// Rows that no key opens.
    pub unopened: u64,
    pub last_error: Option<Unopened>,
}

#[async_trait]
pub trait SealedRows: Send + Sync {
    /// The keys that may have sealed rows, in their order.
    async fn sealing_keys(&self) -> StoreResult<Vec<KeyId>>;

    async fn remove_sealing_key(&self, key: KeyId) -> StoreResult<()>;

    /// The first bytes ([`LOOKED_AT`]) of the next values behind a row, at most `limit`.
    async fn heads(&self, column: &Column, after: SealedRow, limit: u32) -> StoreResult<Vec<(SealedRow, Vec<u8>)>>;

    /// Stores these rows again as [`Keyring::renewed`] says, in one transaction. Rows that were deleted are skipped.
    async fn renew(&self, column: &Column, rows: &[SealedRow], keyring: &Keyring) -> StoreResult<Renewed>;

    /// After a rotation: overwrites what it has left in the files, where the store can. Says what else is to be done.
    async fn clean_up(&self) -> StoreResult<Option<String>>;
}

/// The first of these keys that a ring lacks.
pub fn missing_key(keys: &[KeyId], keyring: &Keyring) -> Option<KeyId> {
    keys.iter().copied().find(|key| !keyring.has(*key))
}

/// The error of a process that lacks a key.
pub fn lacks(key: KeyId) -> StoreError {
    StoreError::Sealed(Unopened::KeyMissing { column: "a row of the database", key })
}

/// How many values each column has, by the key that sealed them; `None`: clear.
pub type SealedCounts = BTreeMap<(&'static str, Option<KeyId>), u64>;

/// How far a rotation, or a count, has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub column: &'static str,
    pub read: u64,
    pub renewed: u64,
}

/// Counts the values of every sealed column by their keys. With `renewing` it renews them first.
pub async fn count_sealed(
    store: &dyn SealedRows,
    renewing: Option<&Keyring>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> StoreResult<(SealedCounts, Renewed)> {
    let (mut counts, mut total) = (SealedCounts::new(), Renewed::default());
    for column in COLUMNS {
        let (mut after, mut read) = (SealedRow::default(), 0);
        loop {
            let heads = store.heads(column, after, HEADS).await?;
            let Some((last, _)) = heads.last() else { break };
            after = *last;
            read += heads.len() as u64;
            let is_due = |head: &[u8]| renewing.is_some_and(|keyring| keyring.is_due(column, head));
            let due: Vec<SealedRow> = heads.iter().filter(|(_, head)| is_due(head)).map(|(row, _)| *row).collect();
            if let Some(keyring) = renewing {
                for rows in due.chunks(RENEWED_AT_ONCE) {
                    let renewed = store.renew(column, rows, keyring).await?;
                    total.rows += renewed.rows;
                    total.unopened += renewed.unopened;
                    total.last_error = renewed.last_error.or(total.last_error);
                    progress(Progress { column: column.name, read, renewed: total.rows });
                }
            }
            for (_, head) in heads.iter().filter(|(_, head)| !is_due(head)) {
                *counts.entry((column.name, key_of(column, head))).or_default() += 1;
            }
            progress(Progress { column: column.name, read, renewed: total.rows });
        }
    }
    Ok((counts, total))
}

/// The expression for the first bytes of a value.
pub fn head_of(column: &Column) -> String {
    format!("substr({}, 1, {LOOKED_AT})", column.column)
}
