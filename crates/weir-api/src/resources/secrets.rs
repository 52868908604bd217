//! The secret of a destination: show and rotate. During the overlap of a rotation both secrets sign.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{
    Timestamp,
    activity::Action,
    destination::Settings,
    signing::{KeyKind, Secret, SignatureStyle, Signing},
};

use super::{
    activity::Author,
    destinations::{change, find, unstored},
};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, Refused},
    readers::{
        body::{Body, PathId},
        fields::object,
        if_match::IfMatch,
        query::Query,
        texts::{DestinationIdText, SecretText},
    },
    state::Api,
};

/// How long the previous secret also signs by default: long enough to deploy the new secret to every receiver.
const DEFAULT_OVERLAP_S: u32 = 86_400;

object! {
    /// A rotation of the secret.
    pub(crate) struct RotateSecretRequest {
        /// How long the previous secret still signs; 0: not at all.
        #[schema(minimum = 0, maximum = 2_592_000, default = json!(DEFAULT_OVERLAP_S))]
        overlap_s: Option<u32>,
        /// The new secret. If absent, a secret of the same kind is generated.
        secret: Option<SecretText>,
    }
}

/// Show a destination's secret
#[utoipa::path(
    get, path = "/v1/destinations/{id}/secret", operation_id = "show_secret", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The secret", body = SecretView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    _: Query<()>,
) -> ApiResult<Response> {
    let destination = find(&api, &caller, id).await?;
    // Record the activity first, so that no secret is shown without a row in the activity log.
    let activity = author.does(Action::SecretShown, api.clock.now()).of_destination(&destination);
    api.store.record_activity(activity.into()).await?;
    Ok(shown(&destination.settings.signing, api.clock.now()))
}

/// Rotate a destination's secret
///
/// Until the overlap ends, requests carry two signatures, first the one by the new secret. So receivers can change to
/// the new secret one by one without refusing a request. A second rotation within an overlap ends the first: only the
/// secret before the last rotation is kept. Without a body the defaults apply.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/rotate-secret", operation_id = "rotate_secret", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    request_body = Option<RotateSecretRequest>,
    responses(
        (status = 200, description = "The new secret, and until when the previous secret also signs", body = SecretView),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn rotate(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    _: Query<()>,
    Body(request): Body<Option<RotateSecretRequest>>,
) -> ApiResult<Response> {
    let (overlap_s, secret) = request.map_or((None, None), |request| (request.overlap_s, request.secret));
    let (overlap_s, secret) = (overlap_s.unwrap_or(DEFAULT_OVERLAP_S), secret.map(|secret| secret.0));
    let now = api.clock.now();
    let previous_until = (overlap_s > 0).then(|| now + Duration::from_secs(overlap_s.into()));
    let destination = change(&api, &caller, &author, id, &IfMatch::ANY, false, |current| {
        let signing = &current.settings.signing;
        let signing = signing.rotated(successor(signing, secret.as_ref())?, previous_until);
        Ok(Settings { signing, ..current.settings.clone() })
    })
    .await?;
    Ok(shown(&destination.settings.signing, now))
}

/// The secret that replaces the one in `current`. Without a `given` secret, one of the same kind is generated.
fn successor(current: &Signing, given: Option<&Secret>) -> ApiResult<Secret> {
    let Some(given) = given else {
        return Ok(Secret::from_random(current.secret.kind(), rand::random()));
    };
    if *given == current.secret {
        return Err(Problem::invalid_field(
            "/secret",
            "is already the secret of the destination: give another one, or leave it out",
        ));
    }
    if current.style != SignatureStyle::Standard && given.kind() != KeyKind::Shared {
        let style = current.style.as_str();
        return Err(Problem::invalid_field("/secret", format!("must be a `whsec_` secret for the style `{style}`")));
    }
    Ok(given.clone())
}

/// The secret that signs the requests to a destination.
#[derive(Serialize, ToSchema)]
#[schema(as = Secret)]
pub(crate) struct SecretView {
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: String,
    /// The key with which receivers verify, if the secret is a private key (`whsk_…`); null for a shared secret.
    #[schema(example = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=")]
    public_key: Option<String>,
    /// Until when the secret before the last rotation also signs; null if only one secret signs.
    #[schema(value_type = Option<String>, format = DateTime)]
    previous_valid_until: Option<Timestamp>,
}

fn shown(signing: &Signing, now: Timestamp) -> Response {
    let view = SecretView {
        secret: signing.secret.reveal(),
        public_key: signing.secret.public_key().map(|key| key.to_string()),
        previous_valid_until: signing.previous_at(now).map(|previous| previous.valid_until),
    };
    unstored(Json(view).into_response())
}
