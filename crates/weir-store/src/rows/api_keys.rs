//! API keys.

use serde_json::json;
use weir_core::{
    ApiKeyId,
    access::{Actor, TenantScope},
};

use super::{Corrupt, Row};
use crate::{ApiKey, SessionSecret};

/// All keys, the oldest first, with the columns for [`api_key`].
pub const API_KEYS: &str = "SELECT api_keys.id, api_keys.name, role, tenants, digest, created_at, expires_at,
        makers.name, makers.maker_id, uses.at
    FROM api_keys
    LEFT JOIN api_key_makers AS makers ON makers.key_id = api_keys.id
    LEFT JOIN api_key_uses AS uses ON uses.key_id = api_keys.id
    ORDER BY api_keys.id";

pub fn api_key<E: From<Corrupt>>(row: &impl Row<E>) -> Result<ApiKey, E> {
    let maker_id = row.optional_id(8)?.map(ApiKeyId::from_bytes);
    let maker = |name| Actor::stored(name, maker_id).ok_or(Corrupt("the maker of an API key"));
    let digest = row.optional_bytes(4)?.and_then(|digest| digest.try_into().ok());
    Ok(ApiKey {
        id: ApiKeyId::from_bytes(row.id(0)?),
        name: row.text(1)?,
        role: row.parsed(2, "the role of an API key", |role| role.parse().ok())?,
        tenants: row
            .optionally_parsed(3, "the tenants of an API key", |tenants| serde_json::from_str(tenants).ok())?
            .map_or(TenantScope::All, TenantScope::Only),
        digest: digest.ok_or(Corrupt("the digest of an API key"))?,
        created_at: row.time(5)?,
        expires_at: row.optional_time(6)?,
        created_by: row.optional_text(7)?.map(maker).transpose()?,
        last_used_at: row.optional_time(9)?,
    })
}

/// From one column.
pub fn session_secret<E: From<Corrupt>>(row: &impl Row<E>) -> Result<SessionSecret, E> {
    let secret = row.optional_bytes(0)?.and_then(|secret| secret.try_into().ok());
    Ok(secret.ok_or(Corrupt("the secret of sessions"))?)
}

/// The tenants of a key as a JSON array; `None` for all tenants.
pub fn tenants_json(scope: &TenantScope) -> Option<String> {
    scope.tenants().map(|tenants| json!(tenants).to_string())
}
