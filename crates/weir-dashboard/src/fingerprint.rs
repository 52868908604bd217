//! A short text that is another one for each content.

use sha2::{Digest, Sha256};

/// The first 64 bits of the SHA-256 of a content: `0a1b2c3d4e5f6071`.
pub(crate) fn fingerprint(content: &[u8]) -> String {
    Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_content_has_another_fingerprint() {
        assert_eq!(fingerprint(b"abc"), "ba7816bf8f01cfea");
        assert_ne!(fingerprint(b"abd"), fingerprint(b"abc"));
    }
}
