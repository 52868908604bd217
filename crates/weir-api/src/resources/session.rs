//! Who sends the requests, and the sessions of browsers.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{Extensions, HeaderMap, StatusCode, header};
use weir_api_types as types;

use super::destinations::unstored;
use crate::{
    auth::{Caller, Credential, SessionCookie, Trial},
    problem::ApiResult,
    readers::{
        body::{Body, OpenBody},
        fields::object,
        query::Query,
        texts::text,
    },
    state::Api,
};

text! {
    /// An API key.
    #[schema(as = ApiKeyText, value_type = String, example = "wk_8qWz1m0yTDUp6n3v0r7cZb5k2hXo4eGf9sLjAaYtQiE")]
    pub(crate) struct SecretText(String);
    parse = |text| Ok(text.to_owned());
}

object! {
    /// A login.
    pub(crate) struct SessionRequest {
        /// The key whose rights the session gets.
        key: SecretText,
    }
}

/// Show who sends the request
///
/// Every key may use this.
#[utoipa::path(
    get, path = "/v1/me", operation_id = "show_me", tag = "session",
    responses((status = 200, description = "The rights of the key or session", body = types::Me))
)]
pub(crate) async fn me(State(api): State<Api>, caller: Caller, _: Query<()>) -> Response {
    unstored(Json(view(&api, &caller)).into_response())
}

/// Log in
///
/// The answer sets a cookie that replaces the key on every path for 12 hours, or until the key ends. With the cookie,
/// a method other than GET, HEAD and OPTIONS is refused unless a page of this server sends it. After ten keys within
/// a minute that are not valid from one address, ten that begin alike, or a hundred in all, the answer to further ones
/// is 429. A valid key is always accepted.
#[utoipa::path(
    post, path = "/v1/session", operation_id = "create_session", tag = "session", request_body = SessionRequest,
    responses(
        (status = 201, description = "The rights of the session, and its cookie", body = types::Me),
        (status = 429, response = inline(crate::problem::Throttled)),
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    extensions: Extensions,
    headers: HeaderMap,
    _: Query<()>,
    Body(request): OpenBody<SessionRequest>,
) -> ApiResult<Response> {
    let now = api.clock.now();
    let (key, address) = (&request.key.0, api.proxies.client(&extensions, &headers));
    let logged_in = api.keys.log_in(key, now)?;
    let (caller, token) = logged_in.ok_or_else(|| api.keys.refuse(Trial::Login, key, address, now))?;
    let actor = caller.actor();
    let key = actor.key_id().map_or_else(|| actor.name().to_owned(), ToString::to_string);
    tracing::info!(%address, key, "logged in");
    let me = view(&api, &caller);
    let valid_for = me.session_expires_at.unwrap_or(now).since(now);
    let cookie = SessionCookie::of(api.public_url.as_ref()).set(token, valid_for);
    Ok(unstored((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Json(me)).into_response()))
}

/// Log out
///
/// Removes the cookie from the browser. The server keeps no list of sessions: to end every session of a key, delete
/// the key.
#[utoipa::path(
    delete, path = "/v1/session", operation_id = "delete_session", tag = "session",
    responses((status = 204, description = "The cookie is removed, if there was one"))
)]
pub(crate) async fn delete(State(api): State<Api>, _: Query<()>) -> Response {
    let cookie = SessionCookie::of(api.public_url.as_ref()).clear();
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

fn view(api: &Api, caller: &Caller) -> types::Me {
    types::Me {
        name: caller.actor().key_id().map(|_| caller.actor().name().to_owned()),
        role: caller.role().as_str().to_owned(),
        tenants: caller.tenants().map(|tenants| tenants.iter().cloned().collect()),
        session_expires_at: match caller.credential() {
            Credential::Session { expires_at } => Some(expires_at),
            Credential::Key | Credential::Nothing => None,
        },
        keys_required: api.keys.are_required(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
