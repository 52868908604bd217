//! Purges: waiting deliveries of a destination cancelled in bulk.

use axum::{Json, extract::State};
use serde_json::json;
use weir_api_types as types;
use weir_core::{DeliveryState, DestinationId, LimitKey, Timestamp, activity::Action};
use weir_queue::Wake;
use weir_store::Purge;

use super::{activity::Author, destinations::find, dry_run::DryRun};
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{
        body::{Body, PathId},
        fields::object,
        query::Query,
        texts::{DestinationIdText, EventPatternText, LimitKeyText, TimeText, WaitingStateText},
    },
    state::Api,
};

object! {
    /// The deliveries to cancel; by default all waiting deliveries.
    pub(crate) struct PurgeRequest {
        /// `pending`, `retrying` or both.
        #[schema(min_items = 1, default = json!(["pending", "retrying"]))]
        states: Option<Vec<WaitingStateText>>,
        /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
        event_type: Option<EventPatternText>,
        /// Only deliveries with this limit key; `""`: of events without a key.
        limit_key: Option<LimitKeyText>,
        /// Only events created before this instant (RFC 3339).
        before: Option<TimeText>,
    }
}

impl PurgeRequest {
    fn purge(self, destination_id: DestinationId, now: Timestamp) -> Purge {
        let includes = |state| {
            self.states.as_ref().is_none_or(|states| states.iter().any(|WaitingStateText(other)| *other == state))
        };
        Purge {
            destination_id,
            limit_key: self.limit_key.map(|key| key.0),
            pending: includes(DeliveryState::Pending),
            retrying: includes(DeliveryState::Retrying),
            event_type: self.event_type.map(|pattern| pattern.0),
            before: self.before.map_or(now, |before| before.0.min(now)),
            now,
        }
    }
}

/// Cancel the waiting deliveries of a destination
///
/// By default (with the body `{}`) it cancels every `pending` and `retrying` delivery; `states`, `event_type`, `limit_key`
/// and `before` are filters. Deliveries in state `delivering` and deliveries that arrive after the request are not
/// affected. The destination may be paused or active. A long backlog is cancelled in many small steps, while other
/// deliveries and events continue; the answer gives the total. If the answer does not arrive, repeat the request to
/// cancel the rest. `dry_run=true` only counts.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/purge", operation_id = "purge_destination", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), DryRun),
    request_body = PurgeRequest,
    responses((status = 200, description = "The number of cancelled deliveries, or of those that would be cancelled (`dry_run`)", body = types::PurgeAnswer))
)]
pub(crate) async fn purge(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    Query(dry_run): Query<DryRun>,
    Body(request): Body<PurgeRequest>,
) -> ApiResult<Json<types::PurgeAnswer>> {
    let destination = find(&api, &caller, id).await?;
    let now = api.clock.now();
    let purge = request.purge(id, now);
    if dry_run.only_counts() {
        return Ok(Json(types::PurgeAnswer::Counted(types::Count { total: api.store.count_purge(&purge).await? })));
    }
    let states = [(purge.pending, DeliveryState::Pending), (purge.retrying, DeliveryState::Retrying)];
    let states: Vec<&str> = states.into_iter().filter(|(taken, _)| *taken).map(|(_, state)| state.as_str()).collect();
    let event_type = purge.event_type.as_ref().map(ToString::to_string);
    let limit_key = purge.limit_key.as_ref().map(LimitKey::as_str);
    let after = json!({"states": states, "event_type": event_type, "limit_key": limit_key, "before": purge.before});
    let activity = author.does(Action::DestinationPurged, now).of_destination(&destination).changing(None, Some(after));
    let cancelled = api.store.purge(&purge, activity).await?;
    if cancelled > 0 && !destination.settings.paused {
        // A concurrent run may have claimed fewer deliveries because of the purge and concluded that the backlog is
        // empty.
        api.wake(&[Wake { destination_id: purge.flow_id().unwrap_or(id), due: now }]).await;
    }
    tracing::info!(destination = %id, cancelled, "purged the waiting deliveries of a destination");
    Ok(Json(types::PurgeAnswer::Purged(types::Purged { cancelled })))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_core::pattern::EventPattern;

    use super::*;
    use crate::readers::fields;

    #[test]
    fn an_empty_body_selects_all_waiting_deliveries() {
        let (id, now) = (DestinationId::from_bytes([1; 16]), Timestamp::from_secs(1_800_000_000));
        let purge = |body| {
            let Purge { pending, retrying, event_type, before, .. } =
                fields::read::<PurgeRequest>(body).unwrap().purge(id, now);
            (pending, retrying, event_type, before)
        };
        let all = (true, true, None, now);
        assert_eq!(purge(json!({})), all);
        assert_eq!(purge(json!({"states": null, "event_type": null, "before": null})), all);
        let video = Some(EventPattern::Prefix("video.".to_owned()));
        assert_eq!(
            purge(json!({"states": ["retrying"], "event_type": "video.*", "before": "2026-11-21T07:30:00Z"})),
            (false, true, video, Timestamp::from_secs(1_795_246_200))
        );
    }
}
