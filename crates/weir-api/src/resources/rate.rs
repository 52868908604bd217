//! The pace of a destination: as it is, as it changed, and as it would be.

use std::time::Duration;

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    Destination, DestinationId, Timestamp,
    adaptive::{Change, Observation, Stretch, is_load},
};
use weir_store::{SendsRequest, TRAFFIC_BUCKET, pace_change_position};

use super::destinations::{
    self,
    adaptive::{pace_of, rate_view},
};
use crate::{
    auth::Caller,
    figures::millis,
    problem::ApiResult,
    readers::{
        body::PathId,
        page::{self, Listing, PageParameters},
        query::{Query, RangeParameters},
        texts::DestinationIdText,
    },
    state::{Api, ApiState},
};

/// The sends by which a destination without a pace is judged: an hour has the peaks of a day's rhythm, and is kept in
/// stretches of ten seconds.
const OBSERVED: Duration = Duration::from_secs(3_600);
/// How many recorded sends are read to see how a receiver refuses.
const READ: u32 = 1_000;

/// The list of changes of a pace. A cursor is the time of a change.
pub(crate) enum RateChanges {}

impl Listing for RateChanges {
    const TAG: u8 = b'p';
}

/// Show the pace of a destination and its changes
///
/// The present adaptive pace with its reason, and its changes by a tenth or more, which are kept for a week. For a
/// destination with neither a limit nor an adaptive pace, `observed` says what such a pace would be by the sends of the
/// last hour; nothing is changed.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/rate", operation_id = "show_rate", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), RangeParameters, PageParameters<RateChanges>),
    responses((status = 200, description = "The pace, and one page of its changes, newest first", body = types::RateHistory))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Query((range, page)): Query<(RangeParameters, PageParameters<RateChanges>)>,
) -> ApiResult<Json<types::RateHistory>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let (from, to) = range.times();
    let (from, to) = (from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX));
    let changes = api.store.pace_changes(id, from, to, page.request).await?;
    let Json(list) = page::view::<RateChanges, _, _>(changes, pace_change_position, change_view);
    Ok(Json(types::RateHistory {
        adaptive_rate: pace_of(&api, &destination).await?.as_ref().map(rate_view),
        observed: observed(&api, &destination).await?,
        data: list.data,
        next_cursor: list.next_cursor,
    }))
}

fn change_view(change: Change) -> types::RateChange {
    let Change { at, from_per_s, to_per_s, reason, detail } = change;
    let (from_per_s, to_per_s) = (millis(from_per_s), millis(to_per_s));
    types::RateChange { at, from_per_s, to_per_s, reason: reason.to_string(), detail }
}

async fn observed(api: &ApiState, destination: &Destination) -> ApiResult<Option<types::ObservedRate>> {
    let settings = &destination.settings;
    if settings.adaptive.is_some() || !settings.rate_limits.is_unlimited() {
        return Ok(None);
    }
    // Without the stretch that has not ended.
    let to = api.clock.now().floor(TRAFFIC_BUCKET);
    let history = api.store.traffic(destination.id, to.before(OBSERVED), to, TRAFFIC_BUCKET).await?;
    let stretch = |attempted: u64, taken: u64| Stretch { attempted, taken };
    let stretches: Vec<(Timestamp, Stretch)> = history
        .buckets
        .iter()
        .map(|(at, traffic)| (*at, stretch(traffic.delivered + traffic.failed, traffic.delivered)))
        .collect();
    let last_refusing = stretches.iter().rev().find(|(_, stretch)| stretch.is_refusing());
    let by_load = match last_refusing {
        Some((at, _)) => fails_by_load(api, destination.id, *at).await?,
        None => false,
    };
    let found = Observation::of(stretches.iter().map(|(_, stretch)| *stretch), by_load);
    Ok(found.map(|found| types::ObservedRate {
        per_s: found.per_s.map(millis),
        fastest_per_s: found.fastest_per_s.map(millis),
        refusing: found.refusing,
        stretches: found.stretches,
        text: found.sentence(),
    }))
}

/// Whether most failures of a stretch are such as an adaptive pace counts.
async fn fails_by_load(api: &ApiState, id: DestinationId, from: Timestamp) -> ApiResult<bool> {
    let request = SendsRequest { destination_id: id, from, to: from + TRAFFIC_BUCKET, after: None, limit: READ };
    let sends = api.store.sends(request).await?;
    let failures: Vec<_> = sends.iter().filter_map(|send| Some((send.error_kind?, send.status_code))).collect();
    let by_load = failures.iter().filter(|(kind, status)| is_load(*kind, *status)).count();
    // Attempts without a connection are no sends, so a stretch that has only these has no recorded failure.
    Ok(by_load * 2 >= failures.len())
}
