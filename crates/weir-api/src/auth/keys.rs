//! The keys that a process accepts: those from its settings, and the stored keys with a role and tenants.
//!
//! Keys are kept as SHA-256 digests, so that a comparison takes the same time for every length, and a memory dump does
//! not contain the keys.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use http::{HeaderMap, Uri, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use weir_core::{Timestamp, access::KeyDigest};
use weir_store::{ApiKey, SharedStore, Store, StoreResult};

use super::{
    caller::Caller,
    cookie::SessionCookie,
    is_guarded,
    session::{self, Fingerprint, SESSION_LENGTH, Token},
    throttle::LoginThrottle,
};
use crate::problem::{ApiResult, Problem, ProblemKind};

/// How often the stored keys are read again: a new key must be valid, and a deleted one invalid, within a second.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

const NOT_VALID: &str = "the API key is not valid: it is wrong, has expired, or was deleted";

/// The keys in the settings of the process. Their holders are admins of all tenants.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<KeyDigest>);

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
    fn contains(&self, given: &KeyDigest) -> bool {
        self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(given)).into()
    }

    fn have_signed(&self, token: &Token) -> bool {
        self.0.iter().any(|digest| token.is_signed_by(digest))
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

/// All keys that this process accepts. Clones share the stored keys.
#[derive(Clone)]
pub struct KeyRing {
    configured: ApiKeys,
    /// `None` until they are read.
    stored: Arc<RwLock<Option<StoredKeys>>>,
    logins: Arc<LoginThrottle>,
}

/// The stored keys. The time of a look-up may reveal a part of a stored digest, but nobody can compute a key from it;
/// a fingerprint is no secret.
#[derive(Default)]
struct StoredKeys {
    by_digest: HashMap<KeyDigest, StoredKey>,
    /// The digest of the key with this fingerprint: a session names its key by the fingerprint.
    digests: HashMap<Fingerprint, KeyDigest>,
}

struct StoredKey {
    caller: Caller,
    expires_at: Option<Timestamp>,
}

impl StoredKeys {
    fn valid(&self, digest: &KeyDigest, now: Timestamp) -> Option<&StoredKey> {
        self.by_digest.get(digest).filter(|key| key.expires_at.is_none_or(|at| now < at))
    }

    fn signer_of(&self, token: &Token, now: Timestamp) -> Option<&StoredKey> {
        let digest = self.digests.get(&token.fingerprint()).filter(|digest| token.is_signed_by(digest))?;
        self.valid(digest, now)
    }
}

impl FromIterator<ApiKey> for StoredKeys {
    fn from_iter<I: IntoIterator<Item = ApiKey>>(keys: I) -> Self {
        let mut stored = Self::default();
        for key in keys {
            stored.digests.insert(session::fingerprint(&key.digest), key.digest);
            let (digest, expires_at) = (key.digest, key.expires_at);
            stored.by_digest.insert(digest, StoredKey { caller: Caller::of_key(&key), expires_at });
        }
        stored
    }
}

impl KeyRing {
    /// Only the keys of the settings, until the first [`Self::refresh`].
    pub fn new(configured: ApiKeys) -> Self {
        Self { configured, stored: Arc::default(), logins: Arc::default() }
    }

    /// Reads the stored keys again and again until `shutdown` resolves. While the store is unavailable, the known keys
    /// stay valid: without the store, a request can do almost nothing.
    pub async fn keep_fresh(self, store: SharedStore, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            if let Err(error) = self.refresh(&*store).await {
                tracing::debug!(%error, "could not read the API keys; trying again");
            }
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(REFRESH_EVERY) => {}
            }
        }
    }

    /// Reads the stored keys again.
    pub async fn refresh(&self, store: &dyn Store) -> StoreResult<()> {
        let keys = store.api_keys().await?.into_iter().collect();
        // The keys are replaced in one step, so after a panic under the lock they are still complete.
        *self.stored.write().unwrap_or_else(PoisonError::into_inner) = Some(keys);
        Ok(())
    }

    /// Whether every request needs a key or a session.
    pub(crate) fn are_required(&self) -> bool {
        !self.configured.is_empty()
    }

    /// The sender of a request, or why the request is refused. `None`: the path needs no key.
    pub(crate) fn caller(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        cookie: SessionCookie<'_>,
        now: Timestamp,
    ) -> ApiResult<Option<Caller>> {
        if !is_guarded(uri.path()) {
            return Ok(None);
        }
        // The key overrides the cookie: a browser adds the cookie without being asked.
        if let Some(key) = bearer(headers) {
            return self.holder(key, now).map(Some);
        }
        for token in cookie.tokens(headers) {
            if let Some(caller) = self.in_session(&token, now)? {
                return Ok(Some(caller));
            }
        }
        // A cookie that is not valid counts as none: it may be of another server, because cookies do not belong to a
        // port.
        if self.are_required() {
            return Err(unauthorized("send `Authorization: Bearer <key>`, or log in with `POST /v1/session`"));
        }
        Ok(Some(Caller::anonymous()))
    }

    /// The holder of a key.
    fn holder(&self, key: &str, now: Timestamp) -> ApiResult<Caller> {
        let given = digest(key);
        if self.configured.contains(&given) {
            return Ok(Caller::of_settings());
        }
        // Lock the stored keys only now, because most requests have a key of the settings or none.
        let stored = self.stored.read().unwrap_or_else(PoisonError::into_inner);
        let stored = stored.as_ref().ok_or_else(not_read_yet)?;
        match stored.valid(&given, now) {
            Some(key) => Ok(key.caller.clone()),
            None if self.are_required() || !stored.by_digest.is_empty() => Err(unauthorized(NOT_VALID)),
            None => Ok(Caller::anonymous()),
        }
    }

    /// The holder of the key that a session was made with; `None` if this server has not signed the token, or if the
    /// session or its key has ended.
    fn in_session(&self, token: &Token, now: Timestamp) -> ApiResult<Option<Caller>> {
        let expires_at = token.expires_at();
        if now >= expires_at {
            return Ok(None);
        }
        if self.configured.have_signed(token) {
            return Ok(Some(Caller::of_settings().in_session(expires_at)));
        }
        let stored = self.stored.read().unwrap_or_else(PoisonError::into_inner);
        let stored = stored.as_ref().ok_or_else(not_read_yet)?;
        Ok(stored.signer_of(token, now).map(|key| key.caller.clone().in_session(expires_at)))
    }

    /// Starts a session with a key. Too many failures from one address, or in all, are refused.
    pub(crate) fn log_in(&self, key: &str, address: IpAddr, now: Timestamp) -> ApiResult<(Caller, Token)> {
        let stored = self.stored.read().unwrap_or_else(PoisonError::into_inner);
        let stored = stored.as_ref().ok_or_else(not_read_yet)?;
        let given = digest(key.trim());
        let valid = || {
            if self.configured.contains(&given) {
                return Some((Caller::of_settings(), None));
            }
            stored.valid(&given, now).map(|key| (key.caller.clone(), key.expires_at))
        };
        let admitted = self.logins.attempt(address, now, valid).map_err(Problem::too_many_failures)?;
        let (caller, key_ends_at) = admitted.ok_or_else(|| unauthorized(NOT_VALID))?;
        // A session ends with its key.
        let expires_at = key_ends_at.unwrap_or(Timestamp::MAX).min(now + SESSION_LENGTH);
        let token = Token::sign(&given, expires_at);
        Ok((caller.in_session(token.expires_at()), token))
    }
}

fn unauthorized(detail: &'static str) -> Problem {
    Problem::new(ProblemKind::Unauthorized, detail)
}

fn not_read_yet() -> Problem {
    Problem::new(ProblemKind::Unavailable, "the API keys are not read yet; try again")
}

/// The digest by which a key is stored and found.
pub(crate) fn digest(key: &str) -> KeyDigest {
    Sha256::digest(key.as_bytes()).into()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests;
