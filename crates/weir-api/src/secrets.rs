//! The secret of a destination: show and rotate. During the overlap of a rotation both secrets sign.

use std::time::Duration;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;
use weir_core::{DestinationId, Timestamp, destination::Settings, signing::Signing};

use crate::{
    destinations::{change, find, unstored},
    extract::{self, PathId},
    problem::ApiResult,
    query::Query,
    settings,
    state::Api,
};

/// Show a destination's secret
#[utoipa::path(
    get, path = "/v1/destinations/{id}/secret", operation_id = "show_secret", tag = "destinations",
    params(("id" = crate::openapi::DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The secret", body = SecretView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    query: Query,
) -> ApiResult<Response> {
    query.close()?;
    let destination = find(&api, id).await?;
    Ok(shown(&destination.settings.signing, api.clock.now()))
}

/// Rotate a destination's secret
///
/// Until the overlap ends, requests carry two signatures, first the one by the new secret. So receivers can change to
/// the new secret one by one without refusing a request. A second rotation within an overlap ends the first: only the
/// secret before the last rotation is kept. Without a body the defaults apply.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/rotate-secret", operation_id = "rotate_secret", tag = "destinations",
    params(("id" = crate::openapi::DestinationIdText, Path, description = "`dst_…`")),
    request_body = Option<crate::openapi::RotateSecretRequest>,
    responses(
        (status = 200, description = "The new secret, and until when the previous secret also signs", body = SecretView),
        (status = 409, response = inline(crate::openapi::Refused)),
    )
)]
pub(crate) async fn rotate(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    query: Query,
    request: Request,
) -> ApiResult<Response> {
    query.close()?;
    let rotation = settings::rotation(extract::json_or_nothing(&api, request).await?.unwrap_or_else(|| json!({})))?;
    let now = api.clock.now();
    let previous_until = (rotation.overlap_s > 0).then(|| now + Duration::from_secs(rotation.overlap_s.into()));
    let destination = change(&api, id, |current| {
        let signing = &current.settings.signing;
        let signing = signing.rotated(rotation.successor(signing)?, previous_until);
        Ok(Settings { signing, ..current.settings.clone() })
    })
    .await?;
    Ok(shown(&destination.settings.signing, now))
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
