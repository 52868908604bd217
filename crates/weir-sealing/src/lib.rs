//! Secrets and payloads at rest.
//!
//! ```text
//!   value ──seal, with the first key──▶ version, id of the key, nonce, ciphertext, tag ──open, with any key──▶ value
//! ```
//!
//! A value is sealed with AES-256-GCM. Its key is derived (HKDF-SHA256) from the key of the operator, the name of the
//! column and the id of the row, so that a derived key seals few values and a random nonce cannot repeat. Column and row
//! are authenticated as well: a sealed value that was moved to another row or column does not open.
//!
//! Clear values stay readable, so that keys can be introduced and removed while processes run. A sealed text is escaped
//! by its prefix, sealed bytes by their first byte.

mod column;
mod keys;

pub use column::{BODY, COLUMNS, Column, EGRESS_SECRETS, Form, HEADERS, Holds, RESPONSE_BODY, SIGNING, row};
pub use keys::{InvalidKeys, KeyId, Keyring};

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::aead;

/// The first byte of sealed bytes. Event bodies are JSON objects, and begin with `{`.
const VERSION: u8 = 1;
/// The version and the id of the key.
const HEAD_LEN: usize = 1 + 4;
/// What sealing adds to bytes.
pub const OVERHEAD: usize = HEAD_LEN + aead::NONCE_LEN + 16;
/// The prefix of sealed texts.
const PREFIX: &str = "sealed:";
/// The prefix of a clear text that begins like a sealed one: an answer of a receiver may be any text.
const CLEAR: &str = "sealed:clear:";
/// How many bytes of a stored value [`key_of`] looks at.
pub const LOOKED_AT: usize = PREFIX.len() + 8 + 1;

/// Why a sealed value could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    #[error("{column} is sealed with the key {key}, which WEIR_ENCRYPTION_KEYS does not have")]
    KeyMissing { column: &'static str, key: KeyId },
    #[error("{column} is sealed and damaged, or belongs to another row")]
    Damaged { column: &'static str },
}

/// The key that sealed a stored value; `None` for a clear value. The first [`LOOKED_AT`] bytes are enough.
pub fn key_of(column: &Column, stored: &[u8]) -> Option<KeyId> {
    match column.form {
        Form::Bytes => match stored {
            [VERSION, a, b, c, d, ..] => Some(KeyId([*a, *b, *c, *d])),
            _ => None,
        },
        Form::Text => {
            let id = stored.strip_prefix(PREFIX.as_bytes())?.get(..9)?;
            std::str::from_utf8(id).ok()?.strip_suffix(':')?.parse().ok()
        }
    }
}

impl Keyring {
    /// Whether new values of a column are sealed.
    pub fn seals(&self, column: &Column) -> bool {
        self.first().is_some() && (column.holds == Holds::Secrets || self.seals_payloads())
    }

    /// A text as it is stored.
    pub fn seal_text<'t>(&self, column: &Column, row: &[u8], text: impl Into<Cow<'t, str>>) -> Cow<'t, str> {
        let text = text.into();
        match self.first().filter(|_| self.seals(column)) {
            Some(key) => {
                format!("{PREFIX}{}:{}", key.id(), STANDARD.encode(key.seal(column, row, text.as_bytes()))).into()
            }
            None if text.starts_with(PREFIX) => format!("{CLEAR}{text}").into(),
            None => text,
        }
    }

    /// Bytes as they are stored.
    pub fn seal_bytes<'b>(&self, column: &Column, row: &[u8], bytes: &'b [u8]) -> Cow<'b, [u8]> {
        match self.first().filter(|_| self.seals(column)) {
            Some(key) => key.seal(column, row, bytes).into(),
            None => bytes.into(),
        }
    }

    /// The text behind a stored one.
    pub fn open_text(&self, column: &Column, row: &[u8], stored: String) -> Result<String, Unopened> {
        let damaged = Unopened::Damaged { column: column.name };
        let Some(key) = key_of(column, stored.as_bytes()) else {
            return Ok(stored.strip_prefix(CLEAR).map(str::to_owned).unwrap_or(stored));
        };
        let sealed = STANDARD.decode(stored.get(LOOKED_AT..).unwrap_or_default()).map_err(|_| damaged)?;
        if key_of(&BODY, &sealed) != Some(key) {
            return Err(damaged);
        }
        String::from_utf8(self.open_sealed(column, row, key, &sealed)?).map_err(|_| damaged)
    }

    /// The bytes behind stored ones.
    pub fn open_bytes<'b>(&self, column: &Column, row: &[u8], stored: &'b [u8]) -> Result<Cow<'b, [u8]>, Unopened> {
        match key_of(column, stored) {
            Some(key) => self.open_sealed(column, row, key, stored).map(Cow::Owned),
            None => Ok(stored.into()),
        }
    }

    fn open_sealed(&self, column: &Column, row: &[u8], key: KeyId, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let found = self.find(key).ok_or(Unopened::KeyMissing { column: column.name, key })?;
        found.open(column, row, sealed).ok_or(Unopened::Damaged { column: column.name })
    }

    /// Whether something else is to be stored instead of a value ([`Self::renewed`]). Its first [`LOOKED_AT`] bytes are
    /// enough.
    pub fn is_due(&self, column: &Column, stored: &[u8]) -> bool {
        let key = key_of(column, stored);
        key != self.first_id() && (key.is_some() || self.seals(column))
    }

    /// What is to be stored instead of a value, so that only the first key is needed; `None` if it may stay. Without a
    /// first key, sealed values are to be clear. Payloads that are clear stay clear unless payloads are sealed.
    pub fn renewed(&self, column: &Column, row: &[u8], stored: &[u8]) -> Result<Option<Vec<u8>>, Unopened> {
        if !self.is_due(column, stored) {
            return Ok(None);
        }
        // Payloads that are sealed stay sealed, whatever new ones are.
        let all = self.clone().sealing_payloads(true);
        Ok(Some(match column.form {
            Form::Bytes => all.seal_bytes(column, row, &self.open_bytes(column, row, stored)?).into_owned(),
            Form::Text => {
                let damaged = |_| Unopened::Damaged { column: column.name };
                let stored = String::from_utf8(stored.to_owned()).map_err(damaged)?;
                all.seal_text(column, row, self.open_text(column, row, stored)?).into_owned().into_bytes()
            }
        }))
    }
}

#[cfg(test)]
mod tests;
