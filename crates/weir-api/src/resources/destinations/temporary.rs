//! What holds for a while in place of the settings of a destination: an override of its limits, and a hold. Both end by
//! themselves.

use axum::{Json, extract::State, response::IntoResponse};
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    RateLimits, Timestamp,
    temporary::{Hold, LASTS, Override, Temporary},
};

use super::{
    edits::{Ends, Requested, change_temporary},
    etag_header,
    rates::{Limits, RateLimitRequest},
    view,
};
use crate::{
    auth::Caller,
    errors::Errors,
    problem::{ApiResult, Changed, Problem},
    readers::{
        body::{Body, PathId},
        fields::object,
        if_match::IfMatch,
        query::Query,
        texts::{DestinationIdText, ReasonText, TimeText},
    },
    resources::activity::Author,
    state::Api,
};

object! {
    /// Limits for a while: one of `rate_limits` and `max_in_flight` at least, and either `for_s` or `until`.
    pub(crate) struct LimitsOverrideRequest {
        /// In place of the limits of the destination; `[]`: none. Its `min_interval_ms` stays.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Limits>,
        /// In place of that of the destination.
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
        /// For how many seconds: at most 30 days.
        #[schema(minimum = 1, maximum = 2_592_000)]
        for_s: Option<u32>,
        /// Until when: at least a second and at most 30 days from now.
        until: Option<TimeText>,
        reason: ReasonText,
    }
    check = Self::check;
}

object! {
    /// A pause with an end: give either `for_s` or `until`.
    pub(crate) struct HoldRequest {
        /// For how many seconds: at most 30 days.
        #[schema(minimum = 1, maximum = 2_592_000)]
        for_s: Option<u32>,
        /// Until when: at least a second and at most 30 days from now.
        until: Option<TimeText>,
        reason: ReasonText,
    }
    check = Self::check;
}

fn given(field: &str) -> Value {
    json!({"properties": {(field): {"type": ["array", "integer", "string"]}}, "required": [field]})
}

/// One of the two names of the end.
fn one_end() -> Value {
    json!({"oneOf": [given("for_s"), given("until")]})
}

fn check_end(for_s: Option<u32>, until: Option<&TimeText>, at: &str, errors: &mut Errors) {
    let is_wrong = |name: &str| errors.has(&format!("{at}/{name}"));
    if for_s.is_some() == until.is_some() && !is_wrong("for_s") && !is_wrong("until") {
        errors.add(format!("{at}/for_s"), "give either `for_s` or `until`");
    }
}

/// The end, to the millisecond, as it is shown.
fn end(for_s: Option<u32>, until: Option<TimeText>, now: Timestamp) -> ApiResult<Timestamp> {
    let until = match (for_s, until) {
        (_, Some(TimeText(until))) => until,
        (for_s, None) => now + std::time::Duration::from_secs(for_s.unwrap_or_default().into()),
    };
    let until = Timestamp::from_millis(until.as_millis());
    // An end that was a second ahead when the request was made is a little less now.
    let is_ahead = until > now && until <= now + *LASTS.end();
    is_ahead.then_some(until).ok_or_else(|| {
        Problem::invalid_field("/until", "must be at least a second and at most 30 days from now".to_owned())
    })
}

impl LimitsOverrideRequest {
    pub(crate) fn keywords() -> Value {
        let limits = json!({"properties": {"rate_limits": Limits::keywords()}});
        json!({"allOf": [limits, {"anyOf": [given("rate_limits"), given("max_in_flight")]}, one_end()]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        let is_wrong = |name: &str| errors.has(&format!("{at}/{name}"));
        let is_empty = self.rate_limits.is_none() && self.max_in_flight.is_none();
        if is_empty && !is_wrong("rate_limits") && !is_wrong("max_in_flight") {
            errors.add(format!("{at}/rate_limits"), "give `rate_limits`, `max_in_flight` or both");
        }
        check_end(self.for_s, self.until.as_ref(), at, errors);
    }

    fn into_override(self, now: Timestamp) -> ApiResult<Override> {
        Ok(Override {
            limits: self.rate_limits.map(RateLimits::from),
            max_in_flight: self.max_in_flight,
            until: end(self.for_s, self.until, now)?,
            reason: self.reason.0,
        })
    }
}

impl HoldRequest {
    pub(crate) fn keywords() -> Value {
        one_end()
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        check_end(self.for_s, self.until.as_ref(), at, errors);
    }
}

/// Override the limits of a destination for a while
///
/// Until the end, these limits hold in place of those of the settings, which stay as they are and may be edited
/// meanwhile. Begin and end take effect within 100 ms and reset no window; nobody needs to do anything at the end. A
/// destination has one override: another one replaces it, and is named in the answer. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/override", operation_id = "override_limits", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = LimitsOverrideRequest,
    responses(
        (status = 200, description = "The destination with its override", body = types::OverriddenDestination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn override_limits(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    if_match: IfMatch,
    _: Query<()>,
    Body(request): Body<LimitsOverrideRequest>,
) -> ApiResult<impl IntoResponse> {
    let overridden = request.into_override(api.clock.now())?;
    let requested = Requested { id, if_match: &if_match, caller: &caller, author: &author, ends: Ends::Nothing };
    let set = |current: Temporary| Temporary { overridden: Some(overridden.clone()), ..current };
    let (before, destination) = change_temporary(&api, requested, set).await?;
    let shown = types::OverriddenDestination {
        destination: view::view(&destination, api.clock.now(), &api.event_types),
        replaced: before.overridden.as_ref().map(view::override_view),
    };
    Ok((etag_header(&destination), Json(shown)))
}

/// End the override of a destination
///
/// Before its end. The limits of the settings hold within 100 ms. A destination without an override stays as it is.
#[utoipa::path(
    delete, path = "/v1/destinations/{id}/override", operation_id = "end_override", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses(
        (status = 200, description = "The destination, without an override", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn end_override(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    if_match: IfMatch,
    _: Query<()>,
) -> ApiResult<impl IntoResponse> {
    let requested = Requested { id, if_match: &if_match, caller: &caller, author: &author, ends: Ends::Nothing };
    let end = |current| Temporary { overridden: None, ..current };
    let (_, destination) = change_temporary(&api, requested, end).await?;
    Ok((etag_header(&destination), Json(view::view(&destination, api.clock.now(), &api.event_types))))
}

/// Hold a destination for a while
///
/// A pause with an end: no send starts before it, and events wait. It begins within 100 ms, and at its end one send goes
/// first, and one more with each that is answered. A destination has one such hold: another one replaces it, and is named
/// in the answer. Where the receiver has asked for a wait too, the later end counts. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/hold", operation_id = "hold_destination", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = HoldRequest,
    responses(
        (status = 200, description = "The destination with its hold", body = types::HeldDestination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn hold(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    if_match: IfMatch,
    _: Query<()>,
    Body(request): Body<HoldRequest>,
) -> ApiResult<impl IntoResponse> {
    let until = end(request.for_s, request.until, api.clock.now())?;
    let hold = Hold { until, reason: request.reason.0 };
    let requested = Requested { id, if_match: &if_match, caller: &caller, author: &author, ends: Ends::Nothing };
    let set = |current: Temporary| Temporary { hold: Some(hold.clone()), ..current };
    let (before, destination) = change_temporary(&api, requested, set).await?;
    let shown = types::HeldDestination {
        destination: view::view(&destination, api.clock.now(), &api.event_types),
        replaced: before.hold.as_ref().map(view::hold_view),
    };
    Ok((etag_header(&destination), Json(shown)))
}

/// End the hold of a destination
///
/// Before its end, within 100 ms. A wait that the receiver has asked for stays; a release ends both. A destination without a
/// hold stays as it is.
#[utoipa::path(
    delete, path = "/v1/destinations/{id}/hold", operation_id = "end_hold", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses(
        (status = 200, description = "The destination, without the hold", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn end_hold(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    if_match: IfMatch,
    _: Query<()>,
) -> ApiResult<impl IntoResponse> {
    let requested = Requested { id, if_match: &if_match, caller: &caller, author: &author, ends: Ends::Nothing };
    let end = |current| Temporary { hold: None, ..current };
    let (_, destination) = change_temporary(&api, requested, end).await?;
    Ok((etag_header(&destination), Json(view::view(&destination, api.clock.now(), &api.event_types))))
}
