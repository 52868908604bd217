//! The keys of the operator: the first one seals, all of them open.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey},
    hkdf, hmac,
    rand::{SecureRandom as _, SystemRandom},
};

use crate::{Column, HEAD_LEN, VERSION};

/// What stands first instead of a key, so that new values are stored clear.
const NONE: &str = "none";
const KEY_LEN: usize = 32;
/// The most keys of a ring: one that seals, and those of rotations that are not complete.
const MOST_KEYS: usize = 16;

/// The id of a key: a part of a digest, which says nothing else of the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(crate) [u8; 4]);

impl KeyId {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u32::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes()))
    }
}

/// A key of the operator.
#[derive(Clone)]
pub(crate) struct Key {
    id: KeyId,
    derives: hkdf::Prk,
}

impl Key {
    fn new(bytes: &[u8; KEY_LEN]) -> Self {
        let digest = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, bytes), b"weir: id of a key");
        let mut id = [0; 4];
        id.copy_from_slice(&digest.as_ref()[..4]);
        Self {
            id: KeyId(id),
            // The key is uniformly random, so nothing is to be extracted.
            derives: hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, bytes),
        }
    }

    pub(crate) fn id(&self) -> KeyId {
        self.id
    }

    /// The key of one row of one column, and what is authenticated with its values.
    fn of_row(&self, column: &Column, row: &[u8]) -> (LessSafeKey, Aad<Vec<u8>>) {
        let place = [&[VERSION], column.name.as_bytes(), &[0], row].concat();
        let info = [place.as_slice()];
        let derived = self.derives.expand(&info, &AES_256_GCM).expect("HKDF makes up to 8160 bytes");
        (LessSafeKey::new(UnboundKey::from(derived)), Aad::from(place))
    }

    pub(crate) fn seal(&self, column: &Column, row: &[u8], value: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).expect("the system has random bytes");
        let mut sealed = Vec::with_capacity(HEAD_LEN + NONCE_LEN + value.len() + MAX_TAG_LEN);
        sealed.push(VERSION);
        sealed.extend_from_slice(&self.id.0);
        sealed.extend_from_slice(&nonce);
        let start = sealed.len();
        sealed.extend_from_slice(value);
        let (key, place) = self.of_row(column, row);
        let tag = key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), place, &mut sealed[start..])
            .expect("a value is shorter than 64 GiB");
        sealed.extend_from_slice(tag.as_ref());
        sealed
    }

    /// `None` if the value is damaged or of another place.
    pub(crate) fn open(&self, column: &Column, row: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.get(HEAD_LEN..)?.split_at_checked(NONCE_LEN)?;
        let (key, place) = self.of_row(column, row);
        let mut value = sealed.to_owned();
        let len = key.open_in_place(Nonce::try_assume_unique_for_key(nonce).ok()?, place, &mut value).ok()?.len();
        value.truncate(len);
        Some(value)
    }
}

/// The keys of a process. The default has none, and stores everything clear.
#[derive(Clone, Default)]
pub struct Keyring {
    keys: Vec<Key>,
    /// Whether new values are sealed.
    seals: bool,
    pub(crate) seals_payloads: bool,
}

impl Keyring {
    /// Whether it also seals payloads.
    #[must_use]
    pub fn sealing_payloads(self, seals_payloads: bool) -> Self {
        Self { seals_payloads, ..self }
    }

    pub fn seals_payloads(&self) -> bool {
        self.seals_payloads && self.first().is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The id of the key that seals new values.
    pub fn first_id(&self) -> Option<KeyId> {
        self.first().map(Key::id)
    }

    /// The ids of all keys.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> {
        self.keys.iter().map(Key::id)
    }

    pub fn has(&self, id: KeyId) -> bool {
        self.find(id).is_some()
    }

    pub(crate) fn first(&self) -> Option<&Key> {
        self.keys.first().filter(|_| self.seals)
    }

    pub(crate) fn find(&self, id: KeyId) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id)
    }
}

/// Two rings are equal if they seal and open alike.
impl PartialEq for Keyring {
    fn eq(&self, other: &Self) -> bool {
        let ids = |ring: &Self| ring.keys.iter().map(Key::id).collect::<Vec<_>>();
        (self.seals, self.seals_payloads, ids(self)) == (other.seals, other.seals_payloads, ids(other))
    }
}

impl Eq for Keyring {}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(Key::id).collect::<Vec<_>>();
        f.debug_struct("Keyring").field("seals", &self.seals).field("keys", &ids).finish_non_exhaustive()
    }
}

/// Why a text has no keys. It never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeys {
    #[error(
        "key {0} is not the base64 of 32 bytes; make a key with `openssl rand -base64 32`, and separate several by commas"
    )]
    NotAKey(usize),
    #[error("key {0} stands twice; remove one of them")]
    Twice(usize),
    #[error("`none` stands only in front of other keys: new values are then stored clear")]
    NoneAlone,
    #[error("there are more than {MOST_KEYS} keys; `weir secrets check` says which ones nothing needs any more")]
    TooMany,
}

impl FromStr for Keyring {
    type Err = InvalidKeys;

    /// Reads keys in base64, separated by commas. Empty: none.
    fn from_str(text: &str) -> Result<Self, InvalidKeys> {
        let mut items: Vec<_> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        let seals = items.first().is_some_and(|first| *first != NONE);
        if !seals && !items.is_empty() {
            items.remove(0);
            if items.is_empty() {
                return Err(InvalidKeys::NoneAlone);
            }
        }
        if items.len() > MOST_KEYS {
            return Err(InvalidKeys::TooMany);
        }
        let mut ring = Self { keys: Vec::with_capacity(items.len()), seals, seals_payloads: false };
        for (n, item) in (1..).zip(items) {
            if item == NONE {
                return Err(InvalidKeys::NoneAlone);
            }
            let bytes = STANDARD.decode(item).ok().and_then(|bytes| <[u8; KEY_LEN]>::try_from(bytes).ok());
            let key = Key::new(&bytes.ok_or(InvalidKeys::NotAKey(n))?);
            if ring.has(key.id) {
                return Err(InvalidKeys::Twice(n));
            }
            ring.keys.push(key);
        }
        Ok(ring)
    }
}
