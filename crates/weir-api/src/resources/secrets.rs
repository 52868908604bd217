//! The secret of a destination: show and rotate. During the overlap of a rotation both secrets sign.

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use weir_api_types as types;
use weir_core::{
    Destination, Timestamp,
    activity::Action,
    destination::Settings,
    signing::{Secret, Signing},
};
use weir_store::Created;

use super::{
    activity::Author,
    destinations::{Change, check_readable, commit, etag, etag_header, find, unstored},
    edit::Edit,
};
use crate::{
    problem::{ApiResult, Changed, Problem, Refused},
    readers::{
        fields::object,
        idempotency::{FirstAnswer, IdempotencyParameters, Keyed, secret_digest},
        if_match::{ROUNDS, crowded},
        texts::{DestinationIdText, SecretText},
    },
    state::ApiState,
};

/// How long the previous secret also signs by default: long enough to deploy the new secret to every receiver.
const DEFAULT_OVERLAP_S: u32 = 86_400;

object! {
    /// A rotation of the secret.
    pub(crate) struct RotateSecretRequest {
        /// How long the previous secret still signs; 0: not at all. One day if absent. Where the header of the style
        /// holds one signature (`separator` of `signature_format` is null), the new secret signs alone at once, and
        /// this must be 0 or absent.
        #[schema(minimum = 0, maximum = 2_592_000)]
        overlap_s: Option<u32>,
        /// The new secret. If absent, a secret that fits the style is generated, of the same kind.
        secret: Option<SecretText>,
        /// Whether to rotate although the overlap of the last rotation has not ended: the secret before it, which
        /// receivers may still have, then signs no more.
        force: Option<bool>,
    }
}

/// Show a destination's secret
#[utoipa::path(
    get, path = "/v1/destinations/{id}/secret", operation_id = "show_secret", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The secret", body = types::Secret))
)]
pub(crate) async fn show(
    Edit { api, id: DestinationIdText(id), caller, author, .. }: Edit<DestinationIdText>,
) -> ApiResult<Response> {
    let destination = find(&api, &caller, id).await?;
    check_readable(&destination)?;
    // Record the activity first, so that no secret is shown without a row in the activity log.
    let activity = author.does(Action::SecretShown, api.clock.now()).of_destination(&destination);
    api.store.record_activity(activity.into()).await?;
    Ok(shown(&destination.settings.signing, api.clock.now()))
}

/// Rotate a destination's secret
///
/// Until the overlap ends, requests carry two signatures, first the one by the new secret. So receivers can change to
/// the new secret one by one without refusing a request. Where the header of the style holds one signature, there is no
/// overlap: give such receivers the new secret first, and rotate to it with `secret`. Only one secret before the present one is kept, so a second
/// rotation within the overlap drops the secret that receivers may still have. It is refused unless `force` is true.
/// `If-Match` works as for an edit. Without a body the defaults apply.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/rotate-secret", operation_id = "rotate_secret", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), IdempotencyParameters),
    request_body = Option<RotateSecretRequest>,
    responses(
        (status = 200, description = "The new secret, and until when the previous secret also signs", body = types::Secret,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn rotate(
    Edit { api, id: DestinationIdText(id), caller, author, if_match }: Edit<DestinationIdText>,
    Keyed { body: request, idempotency }: Keyed<Option<RotateSecretRequest>>,
) -> ApiResult<Response> {
    let (overlap_s, secret, force) =
        request.map_or((None, None, None), |request| (request.overlap_s, request.secret, request.force));
    let secret = secret.map(|secret| secret.0);
    for _ in 0..ROUNDS {
        let current = find(&api, &caller, id).await?;
        if let Some(first) = idempotency.first_answer(&api).await? {
            return rotated_before(&api, &author, &current, first).await;
        }
        if_match.check(&etag(&current))?;
        let (signing, now) = (&current.settings.signing, api.clock.now());
        check_overlap(signing, force.unwrap_or(false), now)?;
        let overlap = overlap(signing, overlap_s)?;
        let previous_until = (!overlap.is_zero()).then(|| now + overlap);
        let signing = signing.rotated(successor(signing, secret.as_ref())?, previous_until);
        let change = Change::from(Settings { signing, ..current.settings.clone() });
        let recorded =
            |activity, rotated: &Destination| idempotency.creation(activity, &first_answer(rotated, now)?, now);
        match commit(&api, &caller, &current, change, &author, recorded).await? {
            Created::New(Some(rotated)) => {
                api.announce_edit(&rotated).await;
                return Ok((etag_header(&rotated), shown(&rotated.settings.signing, now)).into_response());
            }
            // Somebody else edited it, or made this very request: the next round sees it. No edit adds a destination.
            Created::New(None) | Created::Before(_) | Created::Full => {}
        }
    }
    Err(crowded("destination"))
}

/// Refuses a rotation that would drop a secret which still signs, as a second click does.
fn check_overlap(current: &Signing, force: bool, now: Timestamp) -> ApiResult<()> {
    let Some(previous) = current.previous_at(now).filter(|_| !force) else { return Ok(()) };
    Err(Problem::conflict(format!(
        "the secret was rotated already, and the one before it signs until {}, for receivers that have not changed yet: \
         wait until then, or set `force` to true to drop it now",
        previous.valid_until
    )))
}

/// How long the previous secret also signs.
fn overlap(current: &Signing, given: Option<u32>) -> ApiResult<Duration> {
    if current.style.takes_several() {
        return Ok(Duration::from_secs(given.unwrap_or(DEFAULT_OVERLAP_S).into()));
    }
    if given.is_some_and(|given| given > 0) {
        let style = current.style.as_str();
        return Err(Problem::conflict(format!(
            "`overlap_s` must be 0 or omitted with the style `{style}`: its header holds one signature, so the new secret \
             signs alone at once"
        )));
    }
    Ok(Duration::ZERO)
}

/// The answer to a rotation, without the secret.
fn first_answer(rotated: &Destination, now: Timestamp) -> ApiResult<FirstAnswer> {
    let mut view = view(&rotated.settings.signing, now);
    let digest = secret_digest(&std::mem::take(&mut view.secret));
    let mut first = FirstAnswer::new(StatusCode::OK, &view)?;
    (first.etag, first.secret_digest) = (Some(etag(rotated)), Some(digest));
    Ok(first)
}

/// The first answer again. It has no secret, so the secret is read from the destination, if it is still the same.
async fn rotated_before(
    api: &ApiState,
    author: &Author,
    current: &Destination,
    mut first: FirstAnswer,
) -> ApiResult<Response> {
    let secret = current.settings.signing.secret.reveal();
    if first.secret_digest != Some(secret_digest(&secret)) {
        let detail = "this idempotency key has rotated the secret, which was replaced again since";
        return Err(Problem::conflict(detail));
    }
    let activity = author.does(Action::SecretShown, api.clock.now()).of_destination(current);
    api.store.record_activity(activity.into()).await?;
    first.body["secret"] = secret.into();
    Ok(unstored(first.into_response()))
}

/// The secret that replaces the one in `current`. Without a `given` secret, one of the same kind is generated.
fn successor(current: &Signing, given: Option<&Secret>) -> ApiResult<Secret> {
    let Some(given) = given else {
        return Ok(current.style.new_secret(Some(&current.secret), rand::random()));
    };
    if *given == current.secret {
        return Err(Problem::invalid_field(
            "/secret",
            "is already the secret of the destination: give another one, or leave it out",
        ));
    }
    if let Some(unfit) = current.style.refusal_of(given) {
        let style = current.style.as_str();
        return Err(Problem::invalid_field("/secret", format!("does not fit the style `{style}`, which {unfit}")));
    }
    Ok(given.clone())
}

fn view(signing: &Signing, now: Timestamp) -> types::Secret {
    types::Secret {
        secret: signing.secret.reveal(),
        public_key: signing.secret.public_key().map(|key| key.to_string()),
        public_key_hex: signing.secret.public_key().map(|key| key.to_hex()),
        previous_valid_until: signing.previous_at(now).map(|previous| previous.valid_until),
    }
}

fn shown(signing: &Signing, now: Timestamp) -> Response {
    unstored(Json(view(signing, now)).into_response())
}
