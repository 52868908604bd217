//! The sender of a request: its rights, and its name in the activity log.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use axum::extract::FromRequestParts;
use http::request::Parts;
use parking_lot::Mutex;
use weir_core::{
    ApiKeyId, Timestamp,
    access::{Actor, Role, TenantScope},
    shed::{Client, ClientId, Sender},
};
use weir_store::ApiKey;

use crate::problem::{self, ApiResult, Problem, ProblemKind};

/// The sender of a request, with its rights.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    holder: Arc<Holder>,
    credential: Credential,
}

/// Who has sent the last request on a connection: a request extension of a listener whose clients take turns.
#[derive(Debug, Clone, Default)]
pub struct LastSender(Arc<Mutex<Option<ClientId>>>);

impl LastSender {
    /// `None`: no request has told a key.
    pub fn get(&self) -> Option<ClientId> {
        *self.0.lock()
    }

    pub fn set(&self, client: ClientId) {
        *self.0.lock() = Some(client);
    }
}

/// Who holds a key. Sessions have the rights of the key.
#[derive(Debug)]
struct Holder {
    actor: Actor,
    role: Role,
    tenants: TenantScope,
    sharer: Sharer,
    sender: Sender,
}

/// Who shares bounded resources with others: each key is one, whoever holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sharer {
    /// A stored key.
    Key(ApiKeyId),
    /// A key of the settings, by its place there.
    Setting(usize),
    /// All who send no key, on a server that needs none.
    Nobody,
}

/// How a request identifies its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credential {
    /// A key in `Authorization`.
    Key,
    /// The cookie of a session.
    Session {
        /// The first instant at which the session is no longer valid.
        expires_at: Timestamp,
    },
    /// Nothing, on a server that needs no key.
    Nothing,
}

impl Sharer {
    /// Who it is where load is shed. `name`: for people.
    fn sender(self, name: &str, tenants: &TenantScope) -> Sender {
        let client = |kind: &str, id: &str, name: &str| Client { id: ClientId::of(kind, id), name: name.into() };
        let tenant = only(tenants).map(|tenant| client("tenant", tenant, tenant));
        let key = match self {
            Self::Key(id) => client("key", &id.to_string(), name),
            // The keys of the settings have the same places in each process.
            Self::Setting(place) => client("setting", &place.to_string(), &format!("{name} #{}", place + 1)),
            Self::Nobody => client("nobody", "", name),
        };
        Sender { key, tenant }
    }
}

/// The only tenant of a scope.
fn only(tenants: &TenantScope) -> Option<&str> {
    let mut tenants = tenants.tenants()?.iter();
    tenants.next().filter(|_| tenants.next().is_none()).map(String::as_str)
}

impl Caller {
    fn new(actor: Actor, role: Role, tenants: TenantScope, sharer: Sharer, credential: Credential) -> Self {
        let sender = sharer.sender(actor.name(), &tenants);
        Self { holder: Arc::new(Holder { actor, role, tenants, sharer, sender }), credential }
    }

    /// The holder of a stored key.
    pub(super) fn of_key(key: &ApiKey) -> Self {
        let actor = Actor::Key { id: key.id, name: key.name.clone() };
        Self::new(actor, key.role, key.tenants.clone(), Sharer::Key(key.id), Credential::Key)
    }

    /// The holder of the key at this place in the settings: an admin of all tenants.
    pub(super) fn of_settings(place: usize) -> Self {
        Self::new(Actor::Setting, Role::Admin, TenantScope::All, Sharer::Setting(place), Credential::Key)
    }

    /// The sender of a request without a key, on a server that needs none: an admin of all tenants.
    pub(super) fn anonymous() -> Self {
        static CALLER: LazyLock<Caller> = LazyLock::new(|| {
            Caller::new(Actor::Anonymous, Role::Admin, TenantScope::All, Sharer::Nobody, Credential::Nothing)
        });
        CALLER.clone()
    }

    /// A caller with this role, for tests.
    #[cfg(test)]
    pub(crate) fn for_test(role: Role) -> Self {
        Self::new(Actor::Setting, role, TenantScope::All, Sharer::Setting(0), Credential::Key)
    }

    /// The same holder of a key, identified by a session.
    pub(super) fn in_session(self, expires_at: Timestamp) -> Self {
        Self { credential: Credential::Session { expires_at }, ..self }
    }

    pub(crate) fn credential(&self) -> Credential {
        self.credential
    }

    /// The name that the activity log records for this caller.
    pub(crate) fn actor(&self) -> &Actor {
        &self.holder.actor
    }

    /// Who the caller is where resources are shared.
    pub(crate) fn sharer(&self) -> Sharer {
        self.holder.sharer
    }

    /// Who the caller is where load is shed.
    pub(crate) fn sender(&self) -> &Sender {
        &self.holder.sender
    }

    pub(crate) fn role(&self) -> Role {
        self.holder.role
    }

    /// The tenants that the caller is bound to. `None`: it sees all tenants.
    pub(crate) fn tenants(&self) -> Option<&BTreeSet<String>> {
        self.holder.tenants.tenants()
    }

    /// Refuses a request that needs a role which this caller does not have.
    pub(crate) fn check_role(&self, needed: Role) -> ApiResult<()> {
        let role = self.role();
        if role.includes(needed) {
            return Ok(());
        }
        let detail = format!("this needs a key with the role `{needed}`; the role of this key is `{role}`");
        Err(Problem::new(ProblemKind::Forbidden, detail))
    }

    /// Whether the caller is not bound to tenants.
    pub(crate) fn sees_all(&self) -> bool {
        self.tenants().is_none()
    }

    /// Whether the caller may see and change data of `tenant`.
    pub(crate) fn sees(&self, tenant: &str) -> bool {
        self.holder.tenants.includes(tenant)
    }

    /// Whether the caller may see and create keys of this scope.
    pub(crate) fn sees_scope(&self, scope: &TenantScope) -> bool {
        self.holder.tenants.includes_scope(scope)
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
        Err(Problem::not_found("this is about the whole installation, and the key is bound to tenants"))
    }

    /// The tenants that a list or a filter is limited to: the named one, or all of this caller.
    pub(crate) fn scope(&self, named: Option<String>) -> ApiResult<TenantScope> {
        let Some(tenant) = named else { return Ok(self.holder.tenants.clone()) };
        self.check_sees(&tenant)?;
        Ok(TenantScope::one(tenant))
    }

    /// The tenant of something new: the named one, or the only one of this caller. `None`: the caller is not bound to
    /// tenants and named none.
    pub(crate) fn limit_to(&self, named: Option<String>) -> ApiResult<Option<String>> {
        if let Some(tenant) = named {
            return self.check_sees(&tenant).map(|()| Some(tenant));
        }
        match &self.holder.tenants {
            TenantScope::All => Ok(None),
            scope @ TenantScope::Only(_) => match only(scope) {
                Some(tenant) => Ok(Some(tenant.to_owned())),
                None => Err(Problem::invalid_field("/tenant", "is required: this key is bound to several tenants")),
            },
        }
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

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    fn bound(tenants: &[&str]) -> Caller {
        let tenants = TenantScope::Only(tenants.iter().map(|&tenant| tenant.to_owned()).collect());
        Caller::new(Actor::Anonymous, Role::Operate, tenants, Sharer::Nobody, Credential::Key)
    }

    #[test]
    fn a_list_has_the_named_tenant_or_all_tenants_of_the_caller() {
        let both = ["acme", "globex"];
        let scope = |caller: Caller, named: Option<&str>| caller.scope(named.map(str::to_owned)).ok();
        assert_eq!(scope(Caller::of_settings(0), None), Some(TenantScope::All));
        assert_eq!(scope(bound(&both), None), Some(TenantScope::Only(both.map(str::to_owned).into())));
        assert_eq!(scope(bound(&both), Some("acme")), Some(TenantScope::one("acme")));
        assert_eq!(scope(bound(&both), Some("third")), None);
    }

    #[test]
    fn a_caller_that_is_bound_to_tenants_is_limited_to_them() {
        let some = |tenant: &str| Some(tenant.to_owned());
        let status =
            |limited: ApiResult<Option<String>>| limited.map_err(|problem| problem.into_response().status().as_u16());
        for (caller, named, expected) in [
            (Caller::of_settings(0), None, Ok(None)),
            (Caller::of_settings(0), some("acme"), Ok(some("acme"))),
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
