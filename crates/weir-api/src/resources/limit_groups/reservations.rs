//! Reservations: a caller outside Weir takes a slot of a limit group for a call of its own.
//!
//! The row of a slot is durable before the caller learns of it, so every call that may be made is audited and counts after
//! a loss of the queue. A slot whose caller does not learn of it is given back ([`Granted`]).

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{FromRequestParts, Path, State},
};
use http::{StatusCode, request::Parts};
use weir_api_types as types;
use weir_core::{
    LimitGroup, LimitGroupId, Period, RateLimit, ReservationId, Timestamp,
    destination::ALL_TENANTS,
    reservation::{DEFAULT_WIDTH, Reservation},
    shed::Reason,
};
use weir_queue::{QueueError, ReserveAnswer, ReserveError, WantedSlot};
use weir_store::Cancelled;

use super::find;
use crate::{
    auth::Caller,
    figures::millis,
    problem::{ApiResult, Problem, Refused},
    readers::{
        body::{Body, PathId},
        fields::object,
        page::{self, List, Listing, PageParameters},
        query::{Query, RangeParameters},
        texts::{AnyTenantText, LimitGroupIdText, ReservationIdText, Text as _},
    },
    resources::destinations::PathName,
    shedding::Admission,
    state::{Api, ApiState},
};

/// Where the rows of the last minute are counted.
const RECENT: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(1);

object! {
    /// What slot is wanted. All fields have defaults, so the body may be empty.
    pub(crate) struct ReservationRequest {
        /// How much of each limit with the unit `cost` the call takes.
        #[schema(minimum = 1, maximum = 1_000, default = 1)]
        cost: Option<u32>,
        /// How long the request may wait for its turn, in milliseconds.
        #[schema(minimum = 0, maximum = 30_000, default = 0)]
        wait_ms: Option<u32>,
        /// How long the slot is at least, in milliseconds: the time within which the call must start. A group whose limits are
        /// even gives fewer slots the wider they are.
        #[schema(minimum = 10, maximum = 2_500, default = 250)]
        width_ms: Option<u32>,
    }
}

/// The list of reservations of a limit group.
pub(crate) enum Reservations {}

impl Listing for Reservations {
    const TAG: u8 = b'v';
}

/// Reserve a slot of a limit group
///
/// Start your call in `starts_at..ends_at`: then every sliding window of the group's limits is kept, your calls and the
/// sends of its members together. All callers together have turns like one member with weight 1. With `wait_ms` the
/// request waits for a slot; without one in time the answer is 429 with `Retry-After`, and nothing is taken. Every
/// request takes a slot of its own: repeat one whose answer was lost only if a slot more does not matter. Any key that
/// may see the group and has the role may reserve; groups for all tenants are seen by keys for all tenants only.
#[utoipa::path(
    post, path = "/v1/limit-groups/{id}/reservations", operation_id = "reserve_slot", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")), request_body = Option<ReservationRequest>,
    responses(
        (status = 201, description = "Reserved", body = types::ReservedSlot),
        (status = 429, response = inline(NoSlot)),
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    admission: Option<Extension<Admission>>,
    _: Query<()>,
    Body(request): Body<Option<ReservationRequest>>,
) -> ApiResult<(StatusCode, Json<types::ReservedSlot>)> {
    let began = api.clock.now();
    let group = find(&api, &caller, id).await?;
    reserve(&api, group, request, admission, began).await
}

/// Reserve a slot of a limit group by its name
///
/// As `POST /v1/limit-groups/{id}/reservations`, for keys that may not list groups. The tenant `*` stands for groups
/// whose members may be of any tenant.
#[utoipa::path(
    post, path = "/v1/limit-groups/by-name/{tenant}/{name}/reservations", operation_id = "reserve_slot_by_name",
    tag = "limit groups",
    params(
        ("tenant" = AnyTenantText, Path, description = "The tenant of the group; `*`: any tenant"),
        (
            "name" = String, Path, description = "The name of the group", min_length = 1, max_length = 200,
            pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*[^\\x00-\\x1f\\x7f-\\x9f\\s][^\\x00-\\x1f\\x7f-\\x9f]*$",
        ),
    ),
    request_body = Option<ReservationRequest>,
    responses(
        (status = 201, description = "Reserved", body = types::ReservedSlot),
        (status = 429, response = inline(NoSlot)),
    )
)]
pub(crate) async fn create_by_name(
    State(api): State<Api>,
    caller: Caller,
    PathName { tenant, name }: PathName,
    admission: Option<Extension<Admission>>,
    _: Query<()>,
    Body(request): Body<Option<ReservationRequest>>,
) -> ApiResult<(StatusCode, Json<types::ReservedSlot>)> {
    let began = api.clock.now();
    // Whoever may not see the group does not learn whether it exists.
    let tenant_of_group = Some(tenant.as_str()).filter(|tenant| *tenant != ALL_TENANTS);
    let found = match caller.sees(&tenant) {
        true => api.store.limit_group_named(tenant_of_group, &name).await?,
        false => None,
    };
    let group =
        found.ok_or_else(|| Problem::not_found(format!("the tenant `{tenant}` has no limit group `{name}`")))?;
    reserve(&api, group, request, admission, began).await
}

/// List the reservations of a limit group
///
/// Those that end in the range, those that end last first, with those given back. They are kept as long as attempts, and
/// 25 hours at least.
#[utoipa::path(
    get, path = "/v1/limit-groups/{id}/reservations", operation_id = "list_reservations", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`"), RangeParameters, PageParameters<Reservations>),
    responses((status = 200, description = "One page", body = List<types::Reservation>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    Query((range, page)): Query<(RangeParameters, PageParameters<Reservations>)>,
) -> ApiResult<Json<List<types::Reservation>>> {
    find(&api, &caller, id).await?;
    let (from, to) = range.times();
    let (from, to) = (from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX));
    let (found, now) = (api.store.list_reservations(id, from, to, page.request).await?, api.clock.now());
    Ok(page::view::<Reservations, _, _>(found, |one| *one.id.as_bytes(), |one| view(&one, now)))
}

/// Give a reserved slot back
///
/// Only before `starts_at`; later the answer is 409, because the call may have been made. The slot goes to others if it is
/// the last that the group has given; otherwise it stays unused.
#[utoipa::path(
    delete, path = "/v1/limit-groups/{id}/reservations/{rid}", operation_id = "give_back_slot", tag = "limit groups",
    params(
        ("id" = LimitGroupIdText, Path, description = "`lgr_…`"),
        ("rid" = ReservationIdText, Path, description = "`rsv_…`"),
    ),
    responses(
        (status = 204, description = "Given back, now or before"),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    PathIds(group, id): PathIds,
    _: Query<()>,
) -> ApiResult<StatusCode> {
    find(&api, &caller, group).await?;
    match api.store.cancel_reservation(group, id, api.clock.now()).await? {
        Cancelled::Now(found) => {
            give_back(&api, group, found.cost, found.starts_at).await;
            Ok(StatusCode::NO_CONTENT)
        }
        // Its slot may be another caller's now.
        Cancelled::Before(_) => Ok(StatusCode::NO_CONTENT),
        Cancelled::Started(_) => {
            Err(Problem::conflict("the slot has begun, so the call may have been made: it stays taken"))
        }
        Cancelled::Unknown => Err(Problem::not_found(format!("the limit group has no reservation {id}"))),
    }
}

/// The ids of a group and of one of its reservations.
pub(crate) struct PathIds(LimitGroupId, ReservationId);

impl<S: Send + Sync> FromRequestParts<S> for PathIds {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((group, id)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::not_found("the path is not valid UTF-8"))?;
        let no_id = |error| Problem::not_found(format!("the id in the path {error}"));
        let LimitGroupIdText(group) = LimitGroupIdText::parse(&group).map_err(no_id)?;
        let ReservationIdText(id) = ReservationIdText::parse(&id).map_err(no_id)?;
        Ok(Self(group, id))
    }
}

async fn reserve(
    api: &Api,
    group: Arc<LimitGroup>,
    request: Option<ReservationRequest>,
    admission: Option<Extension<Admission>>,
    began: Timestamp,
) -> ApiResult<(StatusCode, Json<types::ReservedSlot>)> {
    let (cost, wait_ms, width_ms) =
        request.map_or((None, None, None), |given| (given.cost, given.wait_ms, given.width_ms));
    let (cost, wait) = (cost.unwrap_or(1), Duration::from_millis(wait_ms.unwrap_or_default().into()));
    let width = width_ms.map_or(DEFAULT_WIDTH, |width| Duration::from_millis(width.into()));
    if let Some(Extension(admission)) = admission.filter(|_| !wait.is_zero()) {
        admission.end();
    }
    let slot = match api.reserver.reserve(Arc::clone(&group), WantedSlot { cost, width }, wait).await? {
        ReserveAnswer::Granted(slot) => slot,
        ReserveAnswer::Later(next_at) => return Err(Problem::no_slot(next_at, api.clock.now())),
        ReserveAnswer::AboveLimit => return Err(above_limit(&group, cost)),
        ReserveAnswer::TooMany => {
            let detail = "as many callers wait for slots as may wait in this server: ask again after `Retry-After`";
            return Err(Problem::no_room(Reason::Class, detail));
        }
    };
    let now = api.clock.now();
    let reservation = Reservation {
        id: ReservationId::new(now, rand::random()),
        group: group.id,
        cost,
        created_at: now,
        starts_at: slot.start,
        ends_at: slot.end,
        cancelled_at: None,
    };
    let mut granted = Granted { api: Arc::clone(api), reservation, is_known: false };
    if let Err(error) = api.store.add_reservations(std::slice::from_ref(&granted.reservation)).await {
        granted.take_back().await;
        return Err(error.into());
    }
    // A queue that has lost its data meanwhile may have recovered them before the row was there.
    if !api.reserver.has_kept(group.id, slot.start).await.map_err(ReserveError::from)? {
        granted.take_back().await;
        return Err(
            ReserveError::from(QueueError::Refused("it has lost its data, and the slot with them".to_owned())).into()
        );
    }
    granted.is_known = true;
    Ok((StatusCode::CREATED, Json(reserved(&granted.reservation, began, api.clock.now()))))
}

/// A slot of which its caller does not know yet. If it never learns of it, because the store cannot write or the caller has
/// gone, the slot is given back.
struct Granted {
    api: Api,
    reservation: Reservation,
    is_known: bool,
}

impl Granted {
    async fn take_back(&mut self) {
        self.is_known = true;
        take_back(&self.api, &self.reservation).await;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if !self.is_known {
            let (api, reservation) = (Arc::clone(&self.api), self.reservation.clone());
            tokio::spawn(async move { take_back(&api, &reservation).await });
        }
    }
}

/// The row may be there although its commit has failed. As long as that is not known, nobody else may get the slot: two calls
/// would be audited in one slot.
async fn take_back(api: &ApiState, reservation: &Reservation) {
    let &Reservation { id, group, cost, starts_at, .. } = reservation;
    match api.store.cancel_reservation(group, id, api.clock.now()).await {
        Ok(Cancelled::Now(_) | Cancelled::Unknown) => give_back(api, group, cost, starts_at).await,
        Ok(Cancelled::Before(_) | Cancelled::Started(_)) => {}
        Err(error) => tracing::debug!(%error, %group, "a slot that nobody uses stays taken: its row is not known"),
    }
}

/// A slot that is not given back only delays the next one, so an error is no failure of the request.
async fn give_back(api: &ApiState, group: LimitGroupId, cost: u32, start: Timestamp) {
    if let Err(error) = api.reserver.give_back(group, cost, start).await {
        tracing::debug!(%error, %group, "a slot cannot be given back now; it stays unused");
    }
}

fn above_limit(group: &LimitGroup, cost: u32) -> Problem {
    let detail = match group.rate_limits.too_low_for(cost) {
        Some(limit) => format!(
            "is above the limit of {0} per {1} of {2}: split the call, or raise the limit",
            limit.limit, limit.period, group.id
        ),
        None => {
            format!("is above a limit of {} that holds now: split the call, or wait until the override ends", group.id)
        }
    };
    Problem::invalid_field("/cost", detail)
}

/// How many slots have ended in the last minute.
pub(crate) async fn recent(api: &ApiState, id: LimitGroupId) -> ApiResult<types::RecentReservations> {
    let now = api.clock.now();
    // Any limit of a minute has the buckets in which the store counts.
    let Some(of_minute) = RateLimit::new(1, Period::MINUTE) else {
        return Ok(types::RecentReservations { last_minute: 0, per_s: 0.0 });
    };
    let counts = api.store.reserved_counts(id, now.before(RECENT), of_minute).await?;
    let ended = now.as_nanos() / of_minute.bucket().as_nanos() as i64 + 1;
    let last_minute =
        counts.buckets.iter().filter(|(bucket, _)| *bucket <= ended).map(|(_, count)| u64::from(*count)).sum();
    Ok(types::RecentReservations { last_minute, per_s: millis(last_minute as f64 / RECENT.as_secs_f64()) })
}

/// Times are shown in milliseconds, and a call must not start before its slot, so the start is rounded up.
fn shown_start(start: Timestamp) -> Timestamp {
    Timestamp::from_millis((start + (TICK - Duration::from_nanos(1))).as_millis())
}

fn reserved(reservation: &Reservation, began: Timestamp, now: Timestamp) -> types::ReservedSlot {
    let starts_at = shown_start(reservation.starts_at);
    let whole_millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    types::ReservedSlot {
        id: reservation.id.to_string(),
        limit_group: reservation.group.to_string(),
        cost: reservation.cost,
        starts_at,
        ends_at: reservation.ends_at,
        starts_in_ms: whole_millis(starts_at.since(now) + (TICK - Duration::from_nanos(1))),
        ends_in_ms: whole_millis(reservation.ends_at.since(now)),
        took_ms: whole_millis(now.since(began)),
    }
}

fn view(reservation: &Reservation, now: Timestamp) -> types::Reservation {
    let state = match reservation {
        Reservation { cancelled_at: Some(_), .. } => "given_back",
        Reservation { ends_at, .. } if *ends_at > now => "coming",
        _ => "over",
    };
    types::Reservation {
        id: reservation.id.to_string(),
        limit_group: reservation.group.to_string(),
        cost: reservation.cost,
        created_at: reservation.created_at,
        starts_at: shown_start(reservation.starts_at),
        ends_at: reservation.ends_at,
        cancelled_at: reservation.cancelled_at,
        state: state.to_owned(),
    }
}

/// The limit group has no slot within the time that the request waits
#[derive(utoipa::ToResponse)]
#[response(
    description = "No slot within `wait_ms`: nothing was taken. `next_at` and `Retry-After` say when a slot is expected. Or this client has a limit for its requests in flight",
    content_type = "application/problem+json"
)]
#[expect(dead_code, reason = "describes the response; a `Problem` is sent")]
pub(crate) struct NoSlot(types::Problem);
