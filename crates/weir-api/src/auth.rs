//! Authentication by bearer keys, which are compared in constant time.
//!
//! Keys are stored as SHA-256 digests, so that a comparison takes the same time for every length, and a memory dump
//! does not contain the keys. If any key is configured, every path under `/v1` needs one. Health, metrics and the
//! documentation need no key: they show no data of tenants.

use std::fmt;

use http::{HeaderMap, Uri, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::problem::{Problem, ProblemKind};

/// The configured API keys.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    /// Blank keys are ignored: an empty bearer token must never be valid.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Self {
        let keys = keys.into_iter();
        Self(keys.filter(|key| !key.as_ref().trim().is_empty()).map(|key| digest(key.as_ref().trim())).collect())
    }

    /// Whether no key is configured, so that requests need none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares every key, so that the time does not reveal which one matched.
    fn contains(&self, key: &str) -> bool {
        let given = digest(key);
        self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&given)).into()
    }

    /// Refuses a request that needs a key and does not send a valid one.
    pub(crate) fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self.is_empty() || !is_guarded(uri.path()) {
            return Ok(());
        }
        match bearer(headers) {
            Some(key) if self.contains(key) => Ok(()),
            Some(_) => Err(Problem::new(ProblemKind::Unauthorized, "the API key is not valid")),
            None => Err(Problem::new(ProblemKind::Unauthorized, "send `Authorization: Bearer <key>`")),
        }
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn is_guarded(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(keys: &ApiKeys, path: &'static str, authorization: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        keys.admit(&Uri::from_static(path), &headers).is_ok()
    }

    #[test]
    fn guarded_paths_need_a_valid_key() {
        let keys = ApiKeys::new(["alpha", " beta ", "", " "]);
        let table = [
            ("/v1/events", Some("Bearer alpha"), true),
            ("/v1/events", Some("bearer beta"), true),
            ("/v1/events", Some("Bearer alph"), false),
            ("/v1/events", Some("Bearer "), false),
            ("/v1/events", Some("Bearer"), false),
            ("/v1/events", Some("Basic alpha"), false),
            ("/v1/events", None, false),
            ("/v1", None, false),
            ("/v1/nothing-here", None, false),
            ("/healthz", None, true),
            ("/metrics", None, true),
        ];
        for (path, authorization, expected) in table {
            assert_eq!(admitted(&keys, path, authorization), expected, "{path} {authorization:?}");
        }
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
    }

    #[test]
    fn without_configured_keys_no_path_needs_one() {
        assert!(admitted(&ApiKeys::new([""; 1]), "/v1/events", None));
    }
}
