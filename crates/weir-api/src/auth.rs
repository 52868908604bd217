//! Who sends a request: keys from the settings of the process, and stored keys with a role and tenants.
//!
//! Keys are kept as SHA-256 digests, so that a comparison takes the same time for every length, and a memory dump does
//! not contain the keys. If the settings have any key, every path under `/v1` needs one. Otherwise the server listens
//! only on loopback, and a request without a key is an admin. Health, metrics and the documentation need no key: they
//! show no data of tenants.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, LazyLock, PoisonError, RwLock},
    time::Duration,
};

use axum::extract::FromRequestParts;
use http::{HeaderMap, Uri, header, request::Parts};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use weir_core::{
    Timestamp,
    access::{KeyDigest, Role, TenantScope},
};
use weir_store::{ApiKey, SharedStore, Store, StoreResult};

use crate::problem::{self, ApiResult, Problem, ProblemKind};

/// How often the stored keys are read again: a new key must be valid, and a deleted one invalid, within a second.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

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
    /// The stored keys by digest; `None` until they are read. The time of a look-up may reveal a part of a stored
    /// digest, but nobody can compute a key from it.
    stored: Arc<RwLock<Option<HashMap<KeyDigest, StoredKey>>>>,
}

struct StoredKey {
    caller: Caller,
    expires_at: Option<Timestamp>,
}

impl KeyRing {
    /// Only the keys of the settings, until the first [`Self::refresh`].
    pub fn new(configured: ApiKeys) -> Self {
        Self { configured, stored: Arc::default() }
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
        let keys = store.api_keys().await?.into_iter().map(|key| (key.digest, StoredKey::from(key))).collect();
        // The map is replaced in one step, so after a panic under the lock it is still complete.
        *self.stored.write().unwrap_or_else(PoisonError::into_inner) = Some(keys);
        Ok(())
    }

    /// The sender of a request, or why the request is refused. `None`: the path needs no key.
    pub(crate) fn caller(&self, uri: &Uri, headers: &HeaderMap, now: Timestamp) -> ApiResult<Option<Caller>> {
        if is_guarded(uri.path()) { self.holder(headers, now).map(Some) } else { Ok(None) }
    }

    /// The holder of the key in a request.
    fn holder(&self, headers: &HeaderMap, now: Timestamp) -> ApiResult<Caller> {
        let needs_key = !self.configured.is_empty();
        let Some(key) = bearer(headers) else {
            let missing = || Problem::new(ProblemKind::Unauthorized, "send `Authorization: Bearer <key>`");
            return if needs_key { Err(missing()) } else { Ok(Caller::admin()) };
        };
        let given = digest(key);
        if self.configured.contains(&given) {
            return Ok(Caller::admin());
        }
        // Only now, because most requests have a key of the settings or none.
        let stored = self.stored.read().unwrap_or_else(PoisonError::into_inner);
        let Some(stored) = &*stored else {
            return Err(Problem::new(ProblemKind::Unavailable, "the API keys are not read yet; try again"));
        };
        let found = stored.get(&given).filter(|key| key.expires_at.is_none_or(|at| now < at));
        match found {
            Some(key) => Ok(key.caller.clone()),
            None if needs_key || !stored.is_empty() => {
                Err(Problem::new(ProblemKind::Unauthorized, "the API key is not valid"))
            }
            None => Ok(Caller::admin()),
        }
    }
}

impl From<ApiKey> for StoredKey {
    fn from(key: ApiKey) -> Self {
        Self { caller: Caller::new(key.role, key.tenants), expires_at: key.expires_at }
    }
}

/// The sender of a request, with its rights.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    role: Role,
    tenants: Arc<TenantScope>,
}

impl Caller {
    fn new(role: Role, tenants: TenantScope) -> Self {
        Self { role, tenants: Arc::new(tenants) }
    }

    /// An admin of all tenants. Most requests have this caller, so it is made once.
    fn admin() -> Self {
        static ADMIN: LazyLock<Caller> = LazyLock::new(|| Caller::new(Role::Admin, TenantScope::All));
        ADMIN.clone()
    }

    /// Refuses a request that needs a role which this caller does not have.
    pub(crate) fn check_role(&self, needed: Role) -> ApiResult<()> {
        let Self { role, .. } = self;
        if role.includes(needed) {
            return Ok(());
        }
        let detail = format!("this needs a key with the role `{needed}`; the role of this key is `{role}`");
        Err(Problem::new(ProblemKind::Forbidden, detail))
    }

    /// Whether the caller is not bound to tenants.
    pub(crate) fn sees_all(&self) -> bool {
        matches!(*self.tenants, TenantScope::All)
    }

    /// Whether the caller may see and change data of `tenant`.
    pub(crate) fn sees(&self, tenant: &str) -> bool {
        self.tenants.includes(tenant)
    }

    /// Whether the caller may see and create keys of this scope.
    pub(crate) fn sees_scope(&self, scope: &TenantScope) -> bool {
        self.tenants.includes_scope(scope)
    }

    pub(crate) fn check_sees(&self, tenant: &str) -> ApiResult<()> {
        if self.sees(tenant) {
            return Ok(());
        }
        Err(Problem::not_found(format!("for this key there is no tenant `{tenant}`: name a tenant of the key")))
    }

    /// Refuses a key that is bound to tenants. For operations on the installation as a whole.
    pub(crate) fn check_unbound(&self) -> ApiResult<()> {
        if self.sees_all() {
            return Ok(());
        }
        Err(Problem::not_found("there is no such path for a key that is bound to tenants"))
    }

    /// The tenant that a list or a filter is limited to: the named one, or the only one of this caller. `None`: all
    /// tenants.
    pub(crate) fn limit_to(&self, named: Option<String>) -> ApiResult<Option<String>> {
        if let Some(tenant) = named {
            return self.check_sees(&tenant).map(|()| Some(tenant));
        }
        match &*self.tenants {
            TenantScope::All => Ok(None),
            TenantScope::Only(_) => match self.only_tenant() {
                Some(tenant) => Ok(Some(tenant.to_owned())),
                None => Err(Problem::invalid_field("/tenant", "is required: this key is bound to several tenants")),
            },
        }
    }

    fn only_tenant(&self) -> Option<&str> {
        let mut tenants = self.tenants.tenants()?.iter();
        tenants.next().filter(|_| tenants.next().is_none()).map(String::as_str)
    }
}

/// The caller that [`crate::observe`] found.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let found = parts.extensions.get::<Self>().cloned();
        found.ok_or_else(|| problem::internal("a request was not authenticated", &parts.uri.path()))
    }
}

/// The digest by which a key is stored and found.
pub(crate) fn digest(key: &str) -> KeyDigest {
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
    use axum::response::IntoResponse as _;
    use weir_core::ApiKeyId;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn admitted(keys: &KeyRing, path: &'static str, authorization: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        keys.caller(&Uri::from_static(path), &headers, NOW).is_ok()
    }

    fn with_stored(keys: KeyRing, key: &str, expires_at: Option<Timestamp>) -> KeyRing {
        let stored = ApiKey {
            id: ApiKeyId::new(NOW, 1),
            name: "stored".to_owned(),
            role: Role::Read,
            tenants: TenantScope::All,
            digest: digest(key),
            created_at: NOW,
            expires_at,
        };
        keys.stored.write().unwrap().get_or_insert_default().insert(stored.digest, stored.into());
        keys
    }

    fn bound(tenants: &[&str]) -> Caller {
        let tenants = TenantScope::Only(tenants.iter().map(|&tenant| tenant.to_owned()).collect());
        Caller::new(Role::Operate, tenants)
    }

    #[test]
    fn guarded_paths_need_a_valid_key() {
        let configured = ApiKeys::new(["alpha", " beta ", "", " "]);
        assert_eq!(format!("{configured:?}"), "ApiKeys(2)");
        let keys = with_stored(KeyRing::new(configured), "wk_gamma", Some(NOW + std::time::Duration::from_nanos(1)));
        let keys = with_stored(keys, "wk_expired", Some(NOW));
        let table = [
            ("/v1/events", Some("Bearer alpha"), true),
            ("/v1/events", Some("bearer beta"), true),
            ("/v1/events", Some("Bearer wk_gamma"), true),
            ("/v1/events", Some("Bearer wk_expired"), false),
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
    }

    #[test]
    fn without_configured_keys_no_path_needs_one_but_a_given_key_must_be_valid() {
        let keys = KeyRing::new(ApiKeys::new([""; 1]));
        assert!(!admitted(&keys, "/v1/events", Some("Bearer anything")), "the stored keys are not known yet");
        *keys.stored.write().unwrap() = Some(HashMap::new());
        assert!(admitted(&keys, "/v1/events", None));
        assert!(admitted(&keys, "/v1/events", Some("Bearer anything")), "there are no keys at all");
        let keys = with_stored(keys, "wk_gamma", None);
        assert!(admitted(&keys, "/v1/events", None));
        assert!(admitted(&keys, "/v1/events", Some("Bearer wk_gamma")));
        assert!(!admitted(&keys, "/v1/events", Some("Bearer wk_deleted")), "a deleted key must not become an admin");
    }

    #[test]
    fn a_caller_that_is_bound_to_tenants_is_limited_to_them() {
        let some = |tenant: &str| Some(tenant.to_owned());
        let status =
            |limited: ApiResult<Option<String>>| limited.map_err(|problem| problem.into_response().status().as_u16());
        for (caller, named, expected) in [
            (Caller::admin(), None, Ok(None)),
            (Caller::admin(), some("acme"), Ok(some("acme"))),
            (bound(&["acme"]), None, Ok(some("acme"))),
            (bound(&["acme"]), some("acme"), Ok(some("acme"))),
            (bound(&["acme"]), some("globex"), Err(404)),
            (bound(&["acme", "globex"]), some("globex"), Ok(some("globex"))),
            (bound(&["acme", "globex"]), None, Err(422)),
        ] {
            assert_eq!(status(caller.limit_to(named.clone())), expected, "{caller:?} {named:?}");
        }
    }
}
