//! The digests of keys.

use sha2::{Digest as _, Sha256};
use weir_core::access::KeyDigest;

/// The digest by which a key is stored and found.
pub(crate) fn digest(key: &str) -> KeyDigest {
    Sha256::digest(key.as_bytes()).into()
}
