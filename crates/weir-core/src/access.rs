//! Who may do what: the role of an API key, and the tenants that the key is bound to.
//!
//! ```text
//! admin ⊃ operate ⊃ read
//!                 ⊃ ingest
//! ```

use std::collections::BTreeSet;

use crate::id::ApiKeyId;

/// The digest of an API key. Weir never stores the key itself.
pub type KeyDigest = [u8; 32];

/// What a key may do.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case", const_into_str, parse_err_ty = InvalidRole, parse_err_fn = InvalidRole::of)]
pub enum Role {
    /// Post events, and nothing else.
    Ingest,
    /// Read everything except secrets, and change nothing.
    Read,
    /// Read, post events, and change destinations and deliveries.
    Operate,
    /// Everything, including secrets, keys and the alert policy.
    Admin,
}

/// The text is not the name of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be \"ingest\", \"read\", \"operate\" or \"admin\"")]
pub struct InvalidRole;

impl InvalidRole {
    fn of(_: &str) -> Self {
        Self
    }
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Ingest, Self::Read, Self::Operate, Self::Admin];

    /// The name in JSON and in the store.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Whether this role may do what needs the role `needed`.
    pub const fn includes(self, needed: Self) -> bool {
        match self {
            Self::Ingest => matches!(needed, Self::Ingest),
            Self::Read => matches!(needed, Self::Read),
            Self::Operate => !matches!(needed, Self::Admin),
            Self::Admin => true,
        }
    }
}

/// The tenants whose data a key may see and change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TenantScope {
    /// All tenants, and what belongs to no tenant.
    #[default]
    All,
    /// Only these tenants. For such a key, data of other tenants does not exist.
    Only(BTreeSet<String>),
}

impl TenantScope {
    /// Only this tenant.
    pub fn one(tenant: impl Into<String>) -> Self {
        Self::Only([tenant.into()].into())
    }

    /// The tenant, if there is only one.
    pub fn only(&self) -> Option<&str> {
        let tenants = self.tenants()?;
        tenants.first().filter(|_| tenants.len() == 1).map(String::as_str)
    }

    /// Whether a key may see and change data of `tenant`.
    pub fn includes(&self, tenant: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(tenants) => tenants.contains(tenant),
        }
    }

    /// Whether everything in `other` is in this scope too.
    pub fn includes_scope(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(own), Self::Only(others)) => others.is_subset(own),
        }
    }

    /// The tenants that a list is limited to. `None`: all tenants.
    pub fn tenants(&self) -> Option<&BTreeSet<String>> {
        match self {
            Self::All => None,
            Self::Only(tenants) => Some(tenants),
        }
    }
}

/// Who did something, as the activity log names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Actor {
    /// The holder of a stored key. Two keys may have one name, so only the id tells them apart.
    Key { id: ApiKeyId, name: String },
    /// The holder of a key in the settings of the process. The settings give keys no names.
    Setting,
    /// The sender of a request without a key, on a server that needs none.
    Anonymous,
    /// Weir itself, for example when it opens a breaker.
    Weir,
}

impl Actor {
    const SETTING: &str = "WEIR_API_KEYS";
    const ANONYMOUS: &str = "anonymous";
    const WEIR: &str = "weir";

    /// The actor with this name and key in the store; `None` if there is no such actor.
    pub fn stored(name: String, key_id: Option<ApiKeyId>) -> Option<Self> {
        match (key_id, &*name) {
            (Some(id), _) => Some(Self::Key { id, name }),
            (None, Self::SETTING) => Some(Self::Setting),
            (None, Self::ANONYMOUS) => Some(Self::Anonymous),
            (None, Self::WEIR) => Some(Self::Weir),
            (None, _) => None,
        }
    }

    /// The name of the key at that time, or the name of the others.
    pub fn name(&self) -> &str {
        match self {
            Self::Key { name, .. } => name,
            Self::Setting => Self::SETTING,
            Self::Anonymous => Self::ANONYMOUS,
            Self::Weir => Self::WEIR,
        }
    }

    /// The stored key.
    pub fn key_id(&self) -> Option<&ApiKeyId> {
        match self {
            Self::Key { id, .. } => Some(id),
            Self::Setting | Self::Anonymous | Self::Weir => None,
        }
    }

    /// What the actor is, in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Key { .. } => "key",
            Self::Setting => "setting",
            Self::Anonymous => "anonymous",
            Self::Weir => "system",
        }
    }

    /// Whether people could take a key with this name for Weir, for a key of the settings, for a request without a key,
    /// or for the id of another key. Case, spaces and signs make no difference.
    pub fn looks_like_another(key_name: &str) -> bool {
        let letters = |text: &str| -> String {
            text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
        };
        let is_id = key_name.trim().get(..ID_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(ID_PREFIX));
        let name = letters(key_name);
        is_id || [Self::SETTING, Self::ANONYMOUS, Self::WEIR].iter().any(|other| letters(other) == name)
    }
}

/// How the ids of keys begin.
const ID_PREFIX: &str = "key_";

#[cfg(test)]
mod tests {
    use super::*;

    fn only<const N: usize>(tenants: [&str; N]) -> TenantScope {
        TenantScope::Only(tenants.map(str::to_owned).into())
    }

    #[test]
    fn each_role_includes_exactly_these_roles() {
        use Role::{Admin, Ingest, Operate, Read};
        for (role, included) in [
            (Ingest, &[Ingest][..]),
            (Read, &[Read]),
            (Operate, &[Ingest, Read, Operate]),
            (Admin, &[Ingest, Read, Operate, Admin]),
        ] {
            for needed in Role::ALL {
                assert_eq!(role.includes(needed), included.contains(&needed), "{role} for {needed}");
            }
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert_eq!("root".parse::<Role>(), Err(InvalidRole));
    }

    #[test]
    fn every_actor_is_read_back_and_a_key_is_no_other_actor_by_its_name() {
        let id = ApiKeyId::new(crate::Timestamp::from_secs(1_800_000_000), 1);
        for other in [Actor::Weir, Actor::Anonymous, Actor::Setting] {
            assert_eq!(Actor::stored(other.name().to_owned(), None), Some(other.clone()));
            let key = Actor::Key { id, name: other.name().to_owned() };
            assert_eq!(Actor::stored(other.name().to_owned(), Some(id)), Some(key.clone()));
            assert_ne!((key.kind(), key.key_id()), (other.kind(), other.key_id()));
        }
        assert_eq!(Actor::stored("billing".to_owned(), None), None);
    }

    #[test]
    fn names_that_look_like_another_actor_are_known() {
        let id = ApiKeyId::new(crate::Timestamp::from_secs(1_800_000_000), 1).to_string();
        for name in ["weir", " Weir ", "W\u{200b}eir", "ANONYMOUS", "weir_api_keys", "Weir API keys", &id, " KEY_x"] {
            assert!(Actor::looks_like_another(name), "{name:?}");
        }
        for name in ["weir producer", "anonymous reports", "monkey_1", "key", "billing", "…", "キー"] {
            assert!(!Actor::looks_like_another(name), "{name:?}");
        }
        assert_eq!(ID_PREFIX.strip_suffix('_'), Some(ApiKeyId::PREFIX));
    }

    #[test]
    fn a_scope_includes_its_tenants_and_smaller_scopes() {
        assert!(TenantScope::All.includes("acme") && only(["acme"]).includes("acme") && !only(["acme"]).includes("ac"));
        for (outer, inner, expected) in [
            (TenantScope::All, TenantScope::All, true),
            (TenantScope::All, only(["acme"]), true),
            (only(["acme"]), TenantScope::All, false),
            (only(["acme", "globex"]), only(["acme"]), true),
            (only(["acme"]), only(["acme", "globex"]), false),
            (only(["acme"]), only([]), true),
        ] {
            assert_eq!(outer.includes_scope(&inner), expected, "{outer:?} {inner:?}");
        }
    }
}
