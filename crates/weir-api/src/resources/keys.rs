//! API keys: created, listed and deleted by admins.
//!
//! An admin that is bound to tenants sees and creates only keys that are bound to some of these tenants.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde_json::json;
use weir_api_types as types;
use weir_core::{
    ApiKeyId,
    access::{Actor, Role, TenantScope},
    activity::{Action, Activity},
};
use weir_store::{ApiKey, Created, Page};

use super::{activity::Author, destinations::unstored, edit::Edit};
use crate::{
    auth::{self, Caller},
    problem::{ApiResult, Problem, Refused},
    readers::{
        fields::object,
        idempotency::{FirstAnswer, IdempotencyParameters, Keyed},
        page::{self, List, Listing, PageParameters},
        query::Query,
        texts::{ApiKeyIdText, TenantText, TimeText, check_visible, text},
    },
    state::Api,
};

/// The most stored keys. Each API process keeps all keys in memory, so clients could otherwise use up this memory.
const MAX_KEYS: usize = 1_000;
/// An admin who is bound to tenants adds no key if it sees this many. Otherwise the admin of one tenant could use up
/// the keys of all.
const MAX_KEYS_OF_TENANTS: usize = 100;
const MAX_NAME_CHARS: usize = 100;
/// 256 bits. Nobody can guess a key of this length, so its digest needs no salt and no slow hash.
const SECRET_BYTES: usize = 32;

/// The list of keys.
pub(crate) enum Keys {}

impl Listing for Keys {
    const TAG: u8 = b'k';
}

type KeyPage = PageParameters<Keys>;

text! {
    /// What a key may do: `ingest` posts events; `read` reads everything except secrets; `operate` also posts events
    /// and changes destinations and deliveries; `admin` may do everything.
    #[schema(as = Role, value_type = String, pattern = "^(ingest|read|operate|admin)$", example = "ingest")]
    pub(crate) struct RoleText(Role);
    parse = crate::readers::texts::parsed;
}

text! {
    /// 1 to 100 characters without control characters. Names that people could take for Weir itself (`weir`), for a key
    /// of the settings (`WEIR_API_KEYS`), for a request without a key (`anonymous`) or for an id (`key_…`) are refused.
    #[schema(as = KeyName, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]{1,100}$", example = "billing service")]
    pub(crate) struct KeyNameText(String);
    parse = |text| {
        let fits = (1..=MAX_NAME_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        if !fits {
            return Err("must be 1 to 100 characters without control characters".to_owned());
        }
        check_visible(text)?;
        if Actor::looks_like_another(text) {
            let detail = "must not look like Weir, another actor or an id: say what the key is for, as in `weir producer`";
            return Err(detail.to_owned());
        }
        Ok(text.to_owned())
    };
}

object! {
    /// A new API key.
    pub(crate) struct KeyRequest {
        /// What the key is for. Two keys may have the same name.
        name: KeyNameText,
        role: RoleText,
        /// The tenants whose data the key may see and change; null: all tenants. For a key with tenants, data of other
        /// tenants does not exist.
        #[schema(min_items = 1, max_items = 100)]
        tenants: Option<Vec<TenantText>>,
        /// When the key stops being valid; null: never.
        expires_at: Option<TimeText>,
    }
}

/// Create an API key
///
/// Only this answer shows the key: Weir stores its digest. The key is valid at once in this process, and within a
/// second in every other process. An admin that is bound to tenants can create keys only for these tenants.
///
/// With an `Idempotency-Key`, a repeated request creates no second key. But Weir cannot show the first key again: the
/// answer is 409 and names its id, so that it can be deleted.
#[utoipa::path(
    post, path = "/v1/keys", operation_id = "create_key", tag = "keys", request_body = KeyRequest,
    params(IdempotencyParameters),
    responses(
        (status = 201, description = "The key, which is shown only here", body = types::CreatedApiKey),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    _: Query<()>,
    Keyed { body: request, idempotency }: Keyed<KeyRequest>,
) -> ApiResult<Response> {
    if let Some(first) = idempotency.first_answer(&api).await? {
        return Err(created_before(&first));
    }
    let now = api.clock.now();
    let tenants = scope(request.tenants, &caller)?;
    let expires_at = request.expires_at.map(|at| at.0);
    if expires_at.is_some_and(|at| at <= now) {
        return Err(Problem::invalid_field("/expires_at", "must be in the future"));
    }
    check_room(&api.store.api_keys().await?, &caller)?;
    let secret = format!("wk_{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; SECRET_BYTES]>()));
    let key = ApiKey {
        id: ApiKeyId::new(now, rand::random()),
        name: request.name.0,
        role: request.role.0,
        tenants,
        digest: auth::digest(&secret),
        created_at: now,
        expires_at,
        created_by: Some(caller.actor().clone()),
        last_used_at: None,
    };
    let activity = about(&key, author.does(Action::KeyCreated, now)).changing(None, Some(rights(&key)));
    let first = FirstAnswer::new(StatusCode::CREATED, &view(key.clone()))?;
    let creation = idempotency.creation(activity, &first, now)?;
    if let Created::Before(stored) = api.store.create_api_key(key.clone(), creation).await? {
        return Err(created_before(&idempotency.read(stored)?));
    }
    api.keys.refresh(&*api.store).await?;
    tracing::info!(key = %key.id, key_role = %key.role, "API key created");
    let view = types::CreatedApiKey { key: self::view(key), secret };
    Ok(unstored((StatusCode::CREATED, Json(view)).into_response()))
}

/// Refuses another key if there are too many. An admin that is bound to tenants learns only of the keys that it sees.
fn check_room(keys: &[ApiKey], caller: &Caller) -> ApiResult<()> {
    let seen = keys.iter().filter(|key| caller.sees_scope(&key.tenants)).count();
    let most = if caller.sees_all() { MAX_KEYS } else { MAX_KEYS_OF_TENANTS };
    if seen >= most {
        return Err(Problem::conflict(format!("there are already {most} keys: delete one first")));
    }
    if keys.len() >= MAX_KEYS {
        return Err(Problem::conflict("the installation has no room for another key: ask its admin to delete some"));
    }
    Ok(())
}

/// The refusal of a repeated creation: the key was shown once, and cannot be shown again.
fn created_before(first: &FirstAnswer) -> Problem {
    let id = first.body["id"].as_str().unwrap_or_default();
    let detail = "was shown only in the first answer: delete it and create another, with a new idempotency key";
    Problem::conflict(format!("this idempotency key has already created the key {id}, which {detail}"))
}

/// An activity about a key. It belongs to the tenant of the key if the key has exactly one.
fn about(key: &ApiKey, activity: Activity) -> Activity {
    let tenant = key.tenants.tenants().filter(|tenants| tenants.len() == 1).and_then(|tenants| tenants.first());
    activity.of_key(key.id, &key.name, tenant.cloned())
}

/// What a key may do, for the activity log.
fn rights(key: &ApiKey) -> serde_json::Value {
    json!({"role": key.role.as_str(), "tenants": key.tenants.tenants(), "expires_at": key.expires_at})
}

/// The tenants of a new key, which must be within those of its creator.
fn scope(named: Option<Vec<TenantText>>, caller: &Caller) -> ApiResult<TenantScope> {
    let scope = match named {
        None => TenantScope::All,
        Some(tenants) => TenantScope::Only(tenants.into_iter().map(|tenant| tenant.0).collect()),
    };
    if caller.sees_scope(&scope) {
        return Ok(scope);
    }
    Err(Problem::invalid_field("/tenants", "must name only tenants of the key that creates this one"))
}

/// List API keys
///
/// The list has expired keys too, but no keys from the settings of the server. Each key says who created it, and when it
/// was last used: by a request, or by a session that was begun with it.
#[utoipa::path(
    get, path = "/v1/keys", operation_id = "list_keys", tag = "keys", params(KeyPage),
    responses((status = 200, description = "One page, newest first", body = List<types::ApiKey>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(page): Query<KeyPage>,
) -> ApiResult<Json<List<types::ApiKey>>> {
    let mut keys = api.store.api_keys().await?;
    keys.retain(|key| caller.sees_scope(&key.tenants));
    keys.retain(|key| page.request.before.is_none_or(|before| *key.id.as_bytes() < before));
    keys.reverse();
    Ok(page::view::<Keys, _, _>(Page::of(keys, page.request, |key| *key.id.as_bytes()), |key| *key.id.as_bytes(), view))
}

/// Delete an API key
///
/// The key is refused at once in this process, and within a second in every other process.
#[utoipa::path(
    delete, path = "/v1/keys/{id}", operation_id = "delete_key", tag = "keys",
    params(("id" = ApiKeyIdText, Path, description = "`key_…`")),
    responses((status = 204, description = "Deleted"))
)]
pub(crate) async fn delete(
    Edit { api, id: ApiKeyIdText(id), caller, author, .. }: Edit<ApiKeyIdText>,
) -> ApiResult<StatusCode> {
    let missing = || Problem::not_found(format!("there is no key {id}"));
    let known = api.store.api_keys().await?;
    let found = known.into_iter().find(|key| key.id == id && caller.sees_scope(&key.tenants));
    let key = found.ok_or_else(missing)?;
    let activity = about(&key, author.does(Action::KeyDeleted, api.clock.now())).changing(Some(rights(&key)), None);
    if !api.store.delete_api_key(id, activity).await? {
        return Err(missing());
    }
    api.keys.refresh(&*api.store).await?;
    tracing::info!(key = %id, "API key deleted");
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) fn view(key: ApiKey) -> types::ApiKey {
    types::ApiKey {
        id: key.id.to_string(),
        name: key.name,
        role: key.role.as_str().to_owned(),
        tenants: key.tenants.tenants().map(|tenants| tenants.iter().cloned().collect()),
        created_at: key.created_at,
        expires_at: key.expires_at,
        created_by: key.created_by.as_ref().map(|maker| maker.name().to_owned()),
        created_by_key_id: key.created_by.as_ref().and_then(Actor::key_id).map(ToString::to_string),
        last_used_at: key.last_used_at,
    }
}
