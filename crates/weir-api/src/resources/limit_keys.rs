//! The limit keys of a destination: which wait, what each may send, and the pause of single ones.

mod changes;

use std::{cmp::Reverse, sync::Arc};

use axum::{
    Json,
    extract::{FromRequestParts, Path, State},
    response::IntoResponse,
};
use http::request::Parts;
use weir_api_types as types;
use weir_core::{
    Destination, DestinationId, LimitKey, RateLimits, Timestamp,
    destination::Settings,
    limit_key::{FlowLimits, MAX_OVERRIDES},
};
use weir_store::{KEYS_LOOKED_AT, KeyBacklog, MINUTE};

use super::{
    activity::Author,
    destinations::{self, Requested, change, etag_header, key_limits::limits_view},
    shares::share_of,
};
use crate::{
    auth::Caller,
    figures::{KeyFigures, millis},
    problem::{ApiResult, Changed, Problem, Refused},
    readers::{
        body::PathId,
        if_match::IfMatch,
        query::{Query, parameters},
        texts::{DestinationIdText, LimitKeyText, SearchText, Text, text},
    },
    state::{Api, ApiState},
};

/// How many keys are shown without `limit`.
const SHOWN: u32 = 50;
/// Of how many keys, beside those with overrides, the order by use looks up the sends: one look-up for each.
const COMPARED_BY_USE: usize = 1_000;

/// By what the keys are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOrder {
    Backlog,
    Use,
}

text! {
    /// `backlog`: the longest backlog first. `use`: the most sends of the last minute first, among the thousand keys with
    /// the longest backlogs and those with overrides.
    #[schema(as = LimitKeyOrder, value_type = String, pattern = "^(backlog|use)$", example = "backlog")]
    pub(crate) struct KeyOrderText(KeyOrder);
    parse = |text| match text {
        "backlog" => Ok(KeyOrder::Backlog),
        "use" => Ok(KeyOrder::Use),
        _ => Err("must be `backlog` or `use`".to_owned()),
    };
}

parameters! {
    /// Which keys, and in which order.
    pub(crate) struct KeyParameters {
        /// `backlog` (the default) or `use`
        sort: Option<KeyOrderText>,
        /// Only keys that contain this text
        q: Option<SearchText>,
        /// How many; 50 by default
        #[param(minimum = 1, maximum = 1_000)]
        limit: Option<u32>,
    }
}

/// List the limit keys of a destination
///
/// The keys with a backlog, as far as the 20,000 deliveries that are due first show them, and those with an override.
/// `share_per_s` is the rate at which a key may be sent at present. The keys that wait share the rate of the destination by
/// their weights; what one key cannot use goes to the others. Without `key_limits` the list is empty, or has the keys that
/// still wait since the destination had them.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/keys", operation_id = "list_limit_keys", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), KeyParameters),
    responses((status = 200, description = "The keys", body = types::LimitKeyList))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Query(asked): Query<KeyParameters>,
) -> ApiResult<Json<types::LimitKeyList>> {
    let destination = destinations::find(&api, &caller, id).await?;
    // All keys that wait have a part in the rate, also those that are not shown.
    let backlogs = api.store.key_backlogs(id, None, KEYS_LOOKED_AT).await?;
    let now = api.clock.now();
    let of_group = share_of(&api, &destination).await?.map(|share| share.most_per_s);
    let mut keys = KeyFigures::all(&destination, of_group, backlogs.keys, now);
    if let Some(SearchText(part)) = &asked.q {
        keys.retain(|key| key.key.as_str().contains(part));
    }
    let order = asked.sort.map_or(KeyOrder::Backlog, |sort| sort.0);
    let limit = asked.limit.unwrap_or(SHOWN) as usize;
    if order == KeyOrder::Backlog {
        keys.truncate(limit);
    } else {
        let mut of_backlog = 0;
        keys.retain(|key| {
            of_backlog += usize::from(!key.is_overridden);
            key.is_overridden || of_backlog <= COMPARED_BY_USE
        });
    }
    let flows: Vec<DestinationId> = keys.iter().map(|key| key.key.flow_id(id)).collect();
    let sends = api.store.flow_sends(&flows, now.before(MINUTE)).await?;
    let mut keys: Vec<(u64, KeyFigures)> = sends.into_iter().zip(keys).collect();
    if order == KeyOrder::Use {
        keys.sort_by_key(|(sends, _)| Reverse(*sends));
        keys.truncate(limit);
    }
    let data = keys.into_iter().map(|(sends, key)| view(key, sends, now)).collect();
    Ok(Json(types::LimitKeyList { as_of: now, data, is_partial: backlogs.is_partial }))
}

fn view(key: KeyFigures, sends: u64, now: Timestamp) -> types::LimitKeyRow {
    let drain_eta = key.drain_eta_s();
    let KeyFigures { key, waiting, oldest_at, limits, is_overridden, share, binding } = key;
    types::LimitKeyRow {
        key: key.to_string(),
        waiting,
        oldest_age_s: oldest_at.map(|at| millis(now.since(at).as_secs_f64())),
        achieved_per_s: millis(sends as f64 / MINUTE.as_secs_f64()),
        configured_per_s: limits.rate_limits.per_second().map(millis),
        share_per_s: share.map(millis),
        binding: binding.map(|binding| binding.as_str().to_owned()),
        drain_eta_s: drain_eta.map(millis),
        rate_limits: limits_view(&limits.rate_limits),
        max_in_flight: limits.max_in_flight,
        weight: limits.weight,
        paused: limits.paused,
        is_overridden,
    }
}

/// The backlog of one key, with the figures that the list of keys has of it.
pub(crate) async fn backlog(api: &ApiState, destination: &Destination, key: LimitKey) -> ApiResult<types::Backlog> {
    check_keyed(destination)?;
    let (id, flow) = (destination.id, key.flow_id(destination.id));
    let counts = api.store.key_counts(id, &key).await?;
    // All keys that wait have a part in the rate.
    let mut backlogs = api.store.key_backlogs(id, None, KEYS_LOOKED_AT).await?;
    let now = api.clock.now();
    backlogs.keys.retain(|backlog| backlog.key != key);
    if let Some(oldest_at) = counts.oldest_at {
        backlogs.keys.push(KeyBacklog { key: key.clone(), waiting: counts.waiting(), oldest_at });
    }
    let sends = api.store.flow_sends(&[flow], now.before(MINUTE)).await?.first().copied().unwrap_or(0);
    let arrivals = api.store.recent_arrivals(flow, now, MINUTE).await?.count as f64 / MINUTE.as_secs_f64();
    let of_group = share_of(api, destination).await?.map(|share| share.most_per_s);
    let found =
        KeyFigures::all(destination, of_group, backlogs.keys, now).into_iter().find(|figures| figures.key == key);
    let limits = || destination.settings.key_limits.as_deref().map_or(FlowLimits::NONE, |limits| limits.of(&key));
    let row = found.unwrap_or_else(|| KeyFigures::idle(key.clone(), limits()));
    let share = row.share;
    let row = view(row, sends, now);
    Ok(types::Backlog {
        pending: counts.pending,
        retrying: counts.retrying,
        delivering: counts.delivering,
        oldest_age_s: row.oldest_age_s,
        configured_per_s: row.configured_per_s,
        effective_per_s: row.share_per_s,
        achieved_per_s: row.achieved_per_s,
        arrivals_per_s: millis(arrivals),
        drain_eta_s: row.drain_eta_s,
        drains: if counts.waiting() == 0 {
            Some(true)
        } else {
            share.filter(|share| *share > 0.0).map(|share| arrivals < share)
        },
        limit_key: Some(row.key),
        binding: row.binding,
        is_partial: Some(backlogs.is_partial || counts.is_partial()),
    })
}

/// The flow of one key, and its limits since `from`, for the audit of its sends.
pub(crate) async fn evidence(
    api: &ApiState,
    destination: &Destination,
    key: &LimitKey,
    from: Timestamp,
) -> ApiResult<(DestinationId, Vec<(Timestamp, RateLimits)>)> {
    check_keyed(destination)?;
    Ok((key.flow_id(destination.id), changes::limits_since(api, destination, key, from).await?))
}

/// Refuses a `key` at a destination that never had limit keys.
pub(crate) fn check_keyed(destination: &Destination) -> ApiResult<()> {
    if destination.settings.key_limits.is_some() || destination.keyed_at.is_some() {
        return Ok(());
    }
    Err(Problem::invalid_field("/key", "needs a destination with limit keys: set its `key_limits` first"))
}

/// Who pauses or resumes which key of which destination.
pub(crate) struct EditKey {
    api: Api,
    id: DestinationId,
    key: LimitKey,
    caller: Caller,
    author: Author,
    if_match: IfMatch,
}

impl FromRequestParts<Api> for EditKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let Path((id, key)) = Path::<(String, String)>::from_request_parts(parts, api)
            .await
            .map_err(|_| Problem::not_found("the path is not valid UTF-8"))?;
        let DestinationIdText(id) =
            DestinationIdText::parse(&id).map_err(|error| Problem::not_found(format!("the id in the path {error}")))?;
        let LimitKeyText(key) = LimitKeyText::parse(&key)
            .map_err(|error| Problem::not_found(format!("the limit key in the path {error}")))?;
        let author = Author::from_request_parts(parts, api).await?;
        let Ok(if_match) = IfMatch::from_request_parts(parts, api).await;
        Query::<()>::from_request_parts(parts, api).await?;
        Ok(Self { api: api.clone(), id, key, caller, author, if_match })
    }
}

impl EditKey {
    async fn set_paused(&self, paused: bool) -> ApiResult<Arc<Destination>> {
        let Self { api, id, key, caller, author, if_match } = self;
        let ends = destinations::Ends::Nothing;
        let requested = Requested { id: *id, if_match, caller, author, ends };
        change(api, requested, |current| with_pause(&current.settings, key, paused)).await
    }

    async fn answer(&self, destination: &Destination) -> ApiResult<impl IntoResponse + use<>> {
        Ok((etag_header(destination), Json(destinations::shown(&self.api, destination).await?)))
    }
}

/// The settings with this key paused or resumed.
fn with_pause(settings: &Settings, key: &LimitKey, paused: bool) -> ApiResult<Settings> {
    let Some(limits) = &settings.key_limits else {
        return Err(Problem::conflict("the destination has no limit keys: set `key_limits` first"));
    };
    let mut limits = (**limits).clone();
    let mut special = limits.overrides.remove(key).unwrap_or_default();
    special.paused = paused;
    if !special.is_none() {
        limits.overrides.insert(key.clone(), special);
    }
    if limits.overrides.len() > MAX_OVERRIDES {
        return Err(Problem::conflict(format!(
            "the destination has overrides for {MAX_OVERRIDES} keys, which is the maximum: remove one that is not needed"
        )));
    }
    Ok(Settings { key_limits: Some(Arc::new(limits)), ..settings.clone() })
}

/// Pause a limit key
///
/// Nothing of this key is sent, from within 100 ms on; its deliveries wait, and those of other keys go on. It sets `paused` in
/// the override of the key: a PATCH may set it as well, also for the key `""` of events without one, which has no path.
/// `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/keys/{key}/pause", operation_id = "pause_limit_key", tag = "destinations",
    params(
        ("id" = DestinationIdText, Path, description = "`dst_…`"),
        ("key" = LimitKeyText, Path, description = "The limit key, percent-encoded"),
    ),
    responses(
        (status = 200, description = "The destination with the override", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn pause(edit: EditKey) -> ApiResult<impl IntoResponse> {
    let destination = edit.set_paused(true).await?;
    edit.answer(&destination).await
}

/// Resume a limit key
///
/// Its deliveries are sent again, within 100 ms and under the usual limits. What else its override has stays. A key that is
/// not paused stays as it is. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/keys/{key}/resume", operation_id = "resume_limit_key", tag = "destinations",
    params(
        ("id" = DestinationIdText, Path, description = "`dst_…`"),
        ("key" = LimitKeyText, Path, description = "The limit key, percent-encoded"),
    ),
    responses(
        (status = 200, description = "The destination", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn resume(edit: EditKey) -> ApiResult<impl IntoResponse> {
    let destination = edit.set_paused(false).await?;
    edit.answer(&destination).await
}
