//! Discards: dead letters that nobody will send again are settled, one or many, with the reason in the activity log.

use axum::{Json, extract::State};
use http::StatusCode;
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    DeliveryId, DeliveryState,
    access::TenantScope,
    activity::{Action, Activity},
};
use weir_store::{DISCARDABLE, DeliveryFilter, discard};

use crate::{
    auth::Caller,
    errors::Errors,
    problem::{ApiResult, Problem, Refused},
    readers::{
        body::Body,
        fields::object,
        query::Query,
        texts::{
            AttemptErrorText, DeliveryIdText, DestinationIdText, EventPatternText, ReasonText, TenantText, TimeText,
            text,
        },
    },
    resources::{activity::Author, destinations, dry_run::DryRun, edit::Edit},
    state::{Api, ApiState},
};

text! {
    /// The state of a dead letter.
    #[schema(as = DeadLetterState, value_type = String, pattern = "^(failed|dead)$", example = "dead")]
    pub(crate) struct DeadLetterStateText(DeliveryState);
    parse = |text| DeliveryState::parse(text).filter(|state| DISCARDABLE.contains(state)).ok_or_else(|| {
        "must be `failed` or `dead`: only dead letters can be discarded".to_owned()
    });
    plural = "`failed` and `dead`";
}

object! {
    /// The dead letters to discard; by default all of them.
    pub(crate) struct DiscardRequest {
        /// `failed`, `dead` or both.
        #[schema(min_items = 1, default = json!(["failed", "dead"]))]
        states: Option<Vec<DeadLetterStateText>>,
        /// Only deliveries to this destination, which may be deleted: `dst_…`.
        destination: Option<DestinationIdText>,
        /// Only this tenant.
        tenant: Option<TenantText>,
        /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
        event_type: Option<EventPatternText>,
        /// Only deliveries whose last attempt had this error, as in the list of deliveries: `timeout`, `5xx`, `503`.
        error: Option<AttemptErrorText>,
        /// Only events created at or after this instant (RFC 3339).
        from: Option<TimeText>,
        /// Only events created before this instant (RFC 3339), which must not be before `from`.
        to: Option<TimeText>,
        /// Why, for the activity log.
        reason: Option<ReasonText>,
    }
    check = Self::check;
}

object! {
    /// Why a delivery is discarded.
    pub(crate) struct DiscardReason {
        /// For the activity log.
        reason: Option<ReasonText>,
    }
}

impl DiscardRequest {
    fn check(&self, at: &str, errors: &mut Errors) {
        if let (Some(TimeText(from)), Some(TimeText(to))) = (&self.from, &self.to)
            && from > to
        {
            errors.add(format!("{at}/to"), "must not be before `from`");
        }
    }

    fn states(&self) -> Vec<DeliveryState> {
        let is_named = |state: &DeliveryState| {
            self.states.as_ref().is_none_or(|named| named.iter().any(|DeadLetterStateText(other)| other == state))
        };
        DISCARDABLE.into_iter().filter(is_named).collect()
    }
}

/// Discard dead letters
///
/// Settles dead letters that nobody will send again: they become `cancelled`, so they no longer count as dead letters. Their
/// attempts stay, and a replay of the state `cancelled` can still send them. By default (with the body `{}`) it settles
/// every `dead` and `failed` delivery; the fields are filters. Many are settled in small steps, and the answer gives the
/// total. If the answer does not arrive, repeat the request to settle the rest. The activity log has the filter, the `reason`
/// and the number. `dry_run=true` only counts.
#[utoipa::path(
    post, path = "/v1/deliveries/discard", operation_id = "discard_deliveries", tag = "deliveries",
    params(DryRun),
    request_body = DiscardRequest,
    responses((status = 200, description = "The number of discarded deliveries, or of those that would be discarded (`dry_run`)", body = types::DiscardAnswer))
)]
pub(crate) async fn discard_all(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    Query(dry_run): Query<DryRun>,
    Body(request): Body<DiscardRequest>,
) -> ApiResult<Json<types::DiscardAnswer>> {
    let now = api.clock.now();
    let selection = Selection::of(&api, &caller, request).await?;
    if dry_run.only_counts() {
        let count = api.store.count_discard(&selection.filter).await?;
        let counted = types::DiscardCount { total: count.value, capped: count.capped };
        return Ok(Json(types::DiscardAnswer::Counted(counted)));
    }
    let activity = selection.activity(author.does(Action::DeadLettersDiscarded, now));
    let discarded = discard(&*api.store, selection.filter, now, activity).await?;
    tracing::info!(discarded, "discarded dead letters");
    Ok(Json(types::DiscardAnswer::Discarded(types::Discarded { discarded })))
}

/// Discard a delivery
///
/// Only a dead letter (`dead` or `failed`) can be discarded. It becomes `cancelled`, as by a discard of many.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/discard", operation_id = "discard_delivery", tag = "deliveries",
    params(("id" = DeliveryIdText, Path, description = "`dlv_…`")),
    request_body = Option<DiscardReason>,
    responses(
        (status = 202, description = "Discarded", body = types::DeliveryDetail),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn discard_one(
    Edit { api, id: DeliveryIdText(id), caller, author, .. }: Edit<DeliveryIdText>,
    Body(request): Body<Option<DiscardReason>>,
) -> ApiResult<(StatusCode, Json<types::DeliveryDetail>)> {
    let now = api.clock.now();
    let reason = request.and_then(|request| request.reason).map(|reason| reason.0);
    let activity = super::about(&api, &caller, id, author.does(Action::DeliveryDiscarded, now)).await?;
    let activity = Activity { after: Some(json!({"state": "cancelled", "reason": reason})), ..activity };
    if api.store.discard_deliveries(vec![id], now, &activity, 0).await? == 0 {
        return Err(refusal(&api, &caller, id).await?);
    }
    Ok((StatusCode::ACCEPTED, Json(super::find(&api, &caller, id).await?)))
}

async fn refusal(api: &ApiState, caller: &Caller, id: DeliveryId) -> ApiResult<Problem> {
    let state = super::found(api, caller, id).await?.delivery.state.as_str();
    Ok(Problem::conflict(format!("the delivery is {state} and cannot be discarded: only dead letters can")))
}

/// What a request selects.
struct Selection {
    filter: DeliveryFilter,
    /// The only tenant.
    tenant: Option<String>,
    reason: Option<String>,
}

impl Selection {
    async fn of(api: &ApiState, caller: &Caller, request: DiscardRequest) -> ApiResult<Self> {
        let states = request.states();
        let mut tenants = caller.scope(request.tenant.map(|tenant| tenant.0))?;
        let destination_id = request.destination.map(|id| id.0);
        if let Some(id) = destination_id {
            let found = api.store.destination(id).await?;
            match found {
                Some(found) if caller.sees(&found.settings.tenant) => {
                    if tenants.only().is_none() {
                        tenants = TenantScope::one(found.settings.tenant.clone());
                    }
                }
                // A deleted one may have left dead letters.
                None if caller.sees_all() && api.store.destination_existed(id).await? => {}
                _ => return Err(destinations::missing_in_body(id)),
            }
        }
        let filter = DeliveryFilter {
            destination_id,
            states,
            event_type: request.event_type.map(|pattern| pattern.0),
            error: request.error.map(|error| error.0),
            from: request.from.map(|from| from.0),
            to: request.to.map(|to| to.0),
            tenants: tenants.clone(),
            ..DeliveryFilter::default()
        };
        let tenant = tenants.only().map(str::to_owned);
        Ok(Self { filter, tenant, reason: request.reason.map(|reason| reason.0) })
    }

    /// The activity with what was asked for. It has no counts yet.
    fn activity(&self, activity: Activity) -> Activity {
        let Self { filter, tenant, reason } = self;
        let mut after = json!({
            "states": filter.states.iter().map(|state| state.as_str()).collect::<Vec<_>>(),
            "event_type": filter.event_type.as_ref().map(ToString::to_string),
            "error": filter.error.map(|error| error.to_string()),
            "from": filter.from,
            "to": filter.to,
            "reason": reason,
        });
        // Only what was named.
        if let Value::Object(fields) = &mut after {
            fields.retain(|_, value| !value.is_null());
        }
        let (tenant, destination_id) = (tenant.clone(), filter.destination_id);
        Activity { tenant, destination_id, after: Some(after), ..activity }
    }
}
