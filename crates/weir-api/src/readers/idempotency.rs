//! The `Idempotency-Key` header of requests that create something: a repeated request gets the first answer, and
//! nothing is created twice.
//!
//! The first answer is stored in the transaction of the creation, so a crash leaves either both or none. A refused
//! request stores nothing: its key is free. A key belongs to its caller, and is kept for a day. The stored answer has
//! no secrets.

use axum::{
    Json,
    extract::{FromRef, FromRequest, FromRequestParts, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, header, request::Parts};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use utoipa::IntoParams;
use weir_core::{Timestamp, activity::Activity, retention::ANSWERS_KEPT};
use weir_store::{Creation, KeyedAnswer};

use super::{
    body::{Body, BodyBudget},
    fields::{self, Read},
    texts::check_idempotency_key,
};
use crate::{
    auth::Caller,
    problem::{self, ApiResult, Problem},
    state::ApiState,
};

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Marks an answer that was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The idempotency key of a request.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header, which `Idempotency` reads")]
pub(crate) struct IdempotencyParameters {
    /// 1 to 255 printable ASCII characters. A repeated request with the same key and body gets the first answer again,
    /// with the header `idempotency-replayed: true`; the same key with another body is refused. Kept for a day.
    #[param(rename = "Idempotency-Key", value_type = String, required = false, pattern = "^[!-~]([ -~]{0,253}[!-~])?$")]
    key: Option<String>,
}

/// The idempotency key of a request, if it has one.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency {
    /// The digest of the caller and its key.
    key: Option<[u8; 32]>,
    /// The digest of the request.
    request: [u8; 32],
}

/// A body, and the idempotency key of its request.
pub(crate) struct Keyed<T> {
    pub(crate) body: T,
    pub(crate) idempotency: Idempotency,
}

impl<T: Read, S: Send + Sync> FromRequest<S> for Keyed<T>
where
    BodyBudget: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let operation = operation(&parts);
        let idempotency = Idempotency::from_request_parts(&mut parts, state).await?;
        let request = Request::from_parts(parts, body);
        // An empty body counts as `null` where the body may be absent.
        let body = if T::absent().is_some() {
            Body::<Option<Value>>::from_request(request, state).await?.0.unwrap_or(Value::Null)
        } else {
            Body::<Value>::from_request(request, state).await?.0
        };
        let request = digest(&[operation.as_bytes(), body.to_string().as_bytes()]);
        Ok(Self { body: fields::read(body)?, idempotency: Idempotency { request, ..idempotency } })
    }
}

/// For a request without a body.
impl<S: Send + Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let request = digest(&[operation(parts).as_bytes()]);
        let mut given = parts.headers.get_all(HEADER).iter();
        let Some(key) = given.next().cloned() else { return Ok(Self { key: None, request }) };
        let fits = key.to_str().is_ok_and(|key| check_idempotency_key(key).is_ok());
        if !fits || given.next().is_some() {
            let detail = "must be a single header of 1 to 255 printable ASCII characters";
            return Err(Problem::invalid_field("/idempotency-key", detail));
        }
        let caller = Caller::from_request_parts(parts, state).await?;
        let actor = caller.actor();
        // Keys may have any name, so the id of a stored key tells the callers apart.
        let key_id = actor.key_id().map(ToString::to_string).unwrap_or_default();
        let key = Some(digest(&[key_id.as_bytes(), actor.name().as_bytes(), key.as_bytes()]));
        Ok(Self { key, request })
    }
}

fn operation(parts: &Parts) -> String {
    format!("{} {}", parts.method, parts.uri.path())
}

fn digest(texts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    digest.finalize().into()
}

impl Idempotency {
    /// The first answer to this request, if it is a repeated one.
    pub(crate) async fn first_answer(&self, api: &ApiState) -> ApiResult<Option<FirstAnswer>> {
        let Some(key) = self.key else { return Ok(None) };
        let kept_from = api.clock.now().before(ANSWERS_KEPT);
        let stored = api.store.keyed_answer(key, kept_from).await?;
        stored.map(|stored| self.read(stored)).transpose()
    }

    /// A stored answer to the request with this key, which must be the same request.
    pub(crate) fn read(&self, stored: KeyedAnswer) -> ApiResult<FirstAnswer> {
        if stored.request != self.request {
            let detail =
                "belongs to another request: use a new key for each request, or repeat the first one unchanged";
            return Err(Problem::invalid_field("/idempotency-key", detail));
        }
        serde_json::from_str(&stored.answer)
            .map_err(|error| problem::internal("a stored answer cannot be read", &error))
    }

    /// What is stored in the transaction of the creation.
    pub(crate) fn creation(&self, activity: Activity, answer: &FirstAnswer, now: Timestamp) -> ApiResult<Creation> {
        let Some(key) = self.key else { return Ok(activity.into()) };
        let text = serde_json::to_string(answer)
            .map_err(|error| problem::internal("an answer cannot be serialised", &error))?;
        let answer = KeyedAnswer { key, request: self.request, answer: text, at: now };
        Ok(Creation { activity, answer: Some(answer) })
    }
}

/// The first answer to a request, without secrets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FirstAnswer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) location: Option<String>,
    pub(crate) etag: Option<String>,
    /// The SHA-256 of a secret that the answer showed, by which it is known whether it is still the same.
    pub(crate) secret_digest: Option<[u8; 32]>,
}

impl FirstAnswer {
    pub(crate) fn new(status: StatusCode, body: &impl Serialize) -> ApiResult<Self> {
        let body =
            serde_json::to_value(body).map_err(|error| problem::internal("an answer cannot be serialised", &error))?;
        Ok(Self { status: status.as_u16(), body, location: None, etag: None, secret_digest: None })
    }
}

/// The answer to a repeated request.
impl IntoResponse for FirstAnswer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        let response = (status, Json(self.body)).into_response();
        let named = [(header::LOCATION, self.location), (header::ETAG, self.etag)];
        let mut response = replayed(response);
        for (name, value) in named {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// Marks the answer to a repeated request.
pub(crate) fn replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// The digest of a secret, for [`FirstAnswer::secret_digest`].
pub(crate) fn secret_digest(secret: &str) -> [u8; 32] {
    digest(&[secret.as_bytes()])
}
