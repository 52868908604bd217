//! The keys that a process accepts: those from its settings, and the stored keys with a role and tenants.
//!
//! Keys are kept as SHA-256 digests, so that a comparison takes the same time for every length, and a memory dump does
//! not contain the keys.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Uri, header};
use parking_lot::RwLock;
use subtle::ConstantTimeEq;
use weir_core::{ApiKeyId, Timestamp, access::KeyDigest};
use weir_store::{ApiKey, KeyUse, SessionSecret, SharedStore, Store, StoreResult};

use super::{
    caller::Caller,
    cookie::SessionCookie,
    digest::digest,
    is_guarded,
    session::{self, Fingerprint, SESSION_LENGTH, Token},
    throttle::Throttle,
};
use crate::{
    meters,
    problem::{ApiResult, Problem, ProblemKind},
};

/// How often the stored keys are read again: a new key must be valid, and a deleted one invalid, within a second.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

/// How much later than the recorded use of a key a use is before it is recorded too.
const RECORD_USES_EVERY: Duration = Duration::from_secs(60);
/// A use this soon after the last one is not even noted, so that the processors rarely share the place where it is noted.
const NOTE_USES_EVERY: Duration = Duration::from_secs(1);

const NOT_VALID: &str = "the API key is not valid: it is wrong, has expired, or was deleted";

/// The keys in the settings of the process. Their holders are admins of all tenants.
#[derive(Clone, Default)]
pub struct SettingKeys(Vec<(KeyDigest, Caller)>);

impl SettingKeys {
    /// Blank keys are ignored: an empty bearer token must never be valid.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Self {
        let keys = keys.into_iter().filter(|key| !key.as_ref().trim().is_empty());
        let holder = |(place, key): (usize, K)| (digest(key.as_ref().trim()), Caller::of_settings(place));
        Self(keys.enumerate().map(holder).collect())
    }

    /// Whether no key is configured, so that requests need none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The holder of a key. Compares every key, so that the time does not reveal which one matched.
    fn holder(&self, given: &KeyDigest) -> Option<&Caller> {
        self.0.iter().fold(None, |found, (known, caller)| if known.ct_eq(given).into() { Some(caller) } else { found })
    }

    fn signer_of(&self, token: &Token, secret: &SessionSecret) -> Option<&Caller> {
        self.0.iter().find(|(digest, _)| token.is_signed(secret, digest)).map(|(_, caller)| caller)
    }
}

impl fmt::Debug for SettingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SettingKeys({})", self.0.len())
    }
}

/// All keys that this process accepts. Clones share the stored keys.
#[derive(Clone)]
pub struct KeyRing {
    /// Replaced when the settings are read again.
    configured: Arc<RwLock<Arc<SettingKeys>>>,
    /// `None` until they are read.
    stored: Arc<RwLock<Option<StoredKeys>>>,
    throttle: Arc<Throttle>,
}

/// Where a wrong key was tried, for metrics and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    Login,
    Request,
}

/// Why a request has no sender.
#[derive(Debug)]
pub(crate) enum NoCaller<'h> {
    /// Its key is not valid.
    WrongKey(&'h str),
    Refused(Problem),
}

impl From<Problem> for NoCaller<'_> {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

/// The stored keys. The time of a look-up may reveal a part of a stored digest, but nobody can compute a key from it;
/// a fingerprint is no secret.
struct StoredKeys {
    /// What signs sessions.
    secret: SessionSecret,
    by_digest: HashMap<KeyDigest, StoredKey>,
    /// The digest of the key with this fingerprint: a session names its key by the fingerprint.
    digests: HashMap<Fingerprint, KeyDigest>,
}

struct StoredKey {
    caller: Caller,
    expires_at: Option<Timestamp>,
    uses: Uses,
}

/// The uses of a key. A request only notes them here; [`KeyRing::keep_fresh`] records them.
struct Uses {
    id: ApiKeyId,
    /// In the store.
    recorded_at: Option<Timestamp>,
    /// In nanoseconds; the earliest instant until there is one.
    noted_at: AtomicI64,
}

impl Uses {
    fn new(id: ApiKeyId, recorded_at: Option<Timestamp>) -> Self {
        let noted_at = AtomicI64::new(recorded_at.unwrap_or(Timestamp::MIN).as_nanos());
        Self { id, recorded_at, noted_at }
    }

    fn note(&self, now: Timestamp) {
        // Of two uses at one time either may be noted: they differ by less than is recorded.
        let noted_at = Timestamp::from_nanos(self.noted_at.load(Ordering::Relaxed));
        if now >= noted_at + NOTE_USES_EVERY {
            self.noted_at.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Takes over what the keys that were read before have noted.
    fn noted_before(&self, before: &Self) {
        self.noted_at.fetch_max(before.noted_at.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The noted use, if it is to be recorded.
    fn unrecorded(&self) -> Option<KeyUse> {
        let at = Timestamp::from_nanos(self.noted_at.load(Ordering::Relaxed));
        let is_due = match self.recorded_at {
            None => at > Timestamp::MIN,
            Some(recorded_at) => at >= recorded_at + RECORD_USES_EVERY,
        };
        is_due.then_some(KeyUse { id: self.id, at })
    }
}

impl StoredKeys {
    fn new(secret: SessionSecret, keys: impl IntoIterator<Item = ApiKey>) -> Self {
        let mut stored = Self { secret, by_digest: HashMap::new(), digests: HashMap::new() };
        for key in keys {
            stored.digests.insert(session::fingerprint(&secret, &key.digest), key.digest);
            let (digest, expires_at) = (key.digest, key.expires_at);
            let (caller, uses) = (Caller::of_key(&key), Uses::new(key.id, key.last_used_at));
            stored.by_digest.insert(digest, StoredKey { caller, expires_at, uses });
        }
        stored
    }

    fn noted_before(&self, before: &Self) {
        for (digest, key) in &self.by_digest {
            if let Some(before) = before.by_digest.get(digest) {
                key.uses.noted_before(&before.uses);
            }
        }
    }

    fn valid(&self, digest: &KeyDigest, now: Timestamp) -> Option<&StoredKey> {
        self.by_digest.get(digest).filter(|key| key.expires_at.is_none_or(|at| now < at))
    }

    fn signer_of(&self, token: &Token, now: Timestamp) -> Option<&StoredKey> {
        let digest = self.digests.get(&token.fingerprint()).filter(|digest| token.is_signed(&self.secret, digest))?;
        self.valid(digest, now)
    }
}

impl KeyRing {
    /// Only the keys of the settings, until the first [`Self::refresh`].
    pub fn new(configured: SettingKeys) -> Self {
        let configured = Arc::new(RwLock::new(Arc::new(configured)));
        Self { configured, stored: Arc::default(), throttle: Arc::default() }
    }

    /// The keys of the settings were read again. Requests with the earlier keys are refused from now on, and their
    /// sessions end.
    pub fn configure(&self, configured: SettingKeys) {
        *self.configured.write() = Arc::new(configured);
    }

    fn configured(&self) -> Arc<SettingKeys> {
        Arc::clone(&self.configured.read())
    }

    /// Reads the stored keys again and again, and records their uses, until `shutdown` resolves. While the store is
    /// unavailable, the known keys stay valid: without the store, a request can do almost nothing.
    pub async fn keep_fresh(self, store: SharedStore, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            if let Err(error) = self.refresh(&*store).await {
                tracing::debug!(%error, "could not read the API keys; trying again");
            }
            if let Err(error) = self.record_uses(&*store).await {
                tracing::debug!(%error, "could not record the uses of the API keys; trying again");
            }
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(REFRESH_EVERY) => {}
            }
        }
    }

    /// Reads the stored keys and the secret of sessions again. The first process that needs the secret makes it.
    pub async fn refresh(&self, store: &dyn Store) -> StoreResult<()> {
        let secret = store.session_secret(rand::random()).await?;
        let keys = StoredKeys::new(secret, store.api_keys().await?);
        let mut stored = self.stored.write();
        if let Some(before) = &*stored {
            keys.noted_before(before);
        }
        *stored = Some(keys);
        Ok(())
    }

    /// Records the uses of the stored keys since the last record. A recorded use is known at the next [`Self::refresh`],
    /// and until then it is recorded again.
    pub async fn record_uses(&self, store: &dyn Store) -> StoreResult<()> {
        let uses: Vec<KeyUse> = {
            let stored = self.stored.read();
            let keys = stored.iter().flat_map(|stored| stored.by_digest.values());
            keys.filter_map(|key| key.uses.unrecorded()).collect()
        };
        if uses.is_empty() { Ok(()) } else { store.record_key_uses(uses).await }
    }

    /// Whether every request needs a key or a session.
    pub(crate) fn are_required(&self) -> bool {
        !self.configured().is_empty()
    }

    /// The sender of a request, or why it has none. `Ok(None)`: the path needs no key.
    pub(crate) fn caller<'h>(
        &self,
        uri: &Uri,
        headers: &'h HeaderMap,
        cookie: SessionCookie<'_>,
        now: Timestamp,
    ) -> Result<Option<Caller>, NoCaller<'h>> {
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
            let detail = "send `Authorization: Bearer <key>`, or log in with `POST /v1/session`";
            return Err(Problem::new(ProblemKind::Unauthorized, detail).into());
        }
        Ok(Some(Caller::anonymous()))
    }

    /// The holder of a key.
    fn holder<'h>(&self, key: &'h str, now: Timestamp) -> Result<Caller, NoCaller<'h>> {
        let given = digest(key);
        if let Some(caller) = self.configured().holder(&given) {
            return Ok(caller.clone());
        }
        // Lock the stored keys only now, because most requests have a key of the settings or none.
        let stored = self.stored.read();
        let stored = stored.as_ref().ok_or_else(not_read_yet)?;
        match stored.valid(&given, now) {
            Some(key) => {
                key.uses.note(now);
                Ok(key.caller.clone())
            }
            None if self.are_required() || !stored.by_digest.is_empty() => Err(NoCaller::WrongKey(key)),
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
        let stored = self.stored.read();
        let stored = stored.as_ref().ok_or_else(not_read_yet)?;
        if let Some(caller) = self.configured().signer_of(token, &stored.secret) {
            return Ok(Some(caller.clone().in_session(expires_at)));
        }
        Ok(stored.signer_of(token, now).map(|key| {
            key.uses.note(now);
            key.caller.clone().in_session(expires_at)
        }))
    }

    /// Starts a session with a key. `None`: the key is not valid.
    pub(crate) fn log_in(&self, key: &str, now: Timestamp) -> ApiResult<Option<(Caller, Token)>> {
        let stored = self.stored.read();
        let stored = stored.as_ref().ok_or_else(not_read_yet)?;
        let given = digest(key.trim());
        let configured = self.configured();
        let of_settings = configured.holder(&given).map(|caller| (caller, None));
        let found = of_settings.or_else(|| stored.valid(&given, now).map(|key| (&key.caller, key.expires_at)));
        let Some((caller, key_ends_at)) = found else { return Ok(None) };
        // A session ends with its key.
        let expires_at = key_ends_at.unwrap_or(Timestamp::MAX).min(now + SESSION_LENGTH);
        let token = Token::sign(&stored.secret, &given, expires_at);
        Ok(Some((caller.clone().in_session(token.expires_at()), token)))
    }

    /// The refusal of a key that is not valid. It is counted and logged, without the key; after too many of them the
    /// client is told to wait.
    pub(crate) fn refuse(&self, trial: Trial, key: &str, address: IpAddr, now: Timestamp) -> Problem {
        let from = trial.as_str();
        match self.throttle.failed(address, key.trim(), now) {
            Ok(()) => {
                meters::key_refused(from, "refused");
                tracing::warn!(%address, from, "a key that is not valid was refused");
                Problem::new(ProblemKind::Unauthorized, NOT_VALID)
            }
            Err(too_many) => {
                meters::key_refused(from, "throttled");
                if too_many.is_reported {
                    tracing::warn!(%address, from, "many keys that are not valid are tried; further ones are counted only");
                }
                Problem::too_many_failures(too_many.wait)
            }
        }
    }
}

impl Trial {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Request => "request",
        }
    }
}

fn not_read_yet() -> Problem {
    Problem::new(ProblemKind::Unavailable, "the API keys are not read yet; try again")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests;
