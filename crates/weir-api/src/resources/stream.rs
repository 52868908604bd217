//! The live stream: a snapshot of the overview each second and soon after a change, and what changed.
//!
//! A stream ends when the process stops, and when its key or session ends or loses its role. The key is judged again at
//! each snapshot, so a deleted key sees nothing for longer than a second.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use weir_api_types as types;
use weir_core::{
    DestinationId,
    access::Role,
    shed::{Class, Reason},
};

use super::{
    destinations,
    overview::{row_view, totals_view, visible},
};
use crate::{
    auth::{Caller, SessionCookie},
    fair_share::Seat,
    meters,
    overview::{Change, ChangeKind, DestinationChange, Order, Sample, Samples, Totals},
    problem::{ApiResult, Problem},
    readers::{
        query::{Query, parameters},
        texts::{DestinationIdText, TenantText},
    },
    state::Api,
};

/// The most rows of a snapshot: a page of the overview.
const MAX_ROWS: usize = 200;
/// How often a comment is sent when nothing else is: proxies close connections that are silent for a minute.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

parameters! {
    /// What a stream shows.
    pub(crate) struct StreamFilter {
        /// Only this tenant.
        tenant: Option<TenantText>,
        /// Only this destination.
        destination: Option<DestinationIdText>,
    }
}

/// Follow the overview
///
/// Server-sent events. `snapshot`, about once a second and soon after a change through this server: the totals and at most 200 destinations, those in trouble first.
/// `edit`, `breaker` and `replay`: a destination was created, edited or deleted, its breaker changed, a replay began or
/// ended. The first event is a snapshot. The stream ends with its key and when the server stops: connect again. The
/// keys share 100 streams: a key may open another one only while more are free than it has, so one key alone has 50.
#[utoipa::path(
    get, path = "/v1/stream", operation_id = "stream", tag = "destinations",
    params(StreamFilter),
    responses((status = 200, description = "Events without end", body = String, content_type = "text/event-stream"))
)]
pub(crate) async fn follow(
    State(api): State<Api>,
    caller: Caller,
    Query(filter): Query<StreamFilter>,
    request: Request,
) -> ApiResult<Response> {
    let tenant = filter.tenant.map(|tenant| tenant.0);
    let destination = filter.destination.map(|id| id.0);
    if let Some(tenant) = &tenant {
        caller.check_sees(tenant)?;
    }
    if let Some(id) = destination {
        destinations::find(&api, &caller, id).await?;
    }
    let Some((seat, samples)) = api.live.open_stream(caller.sharer()) else {
        meters::no_room(Class::Read, Reason::Client);
        let detail = "this key has as many open streams as its share; close one, or try again";
        return Err(Problem::no_room(Reason::Client, detail));
    };
    let credentials = Credentials::of(&request);
    let viewer = Viewer {
        api: Arc::clone(&api),
        credentials,
        tenant,
        destination,
        samples,
        last_change: None,
        due: VecDeque::new(),
        _seat: seat,
    };
    let events = viewer.events().map(Ok::<_, Infallible>).take_until(api.live.stopped().boxed());
    let keep_alive = KeepAlive::new().interval(COMMENT_EVERY).text("");
    // Without this header nginx would hold the events back.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))];
    Ok((unbuffered, Sse::new(events).keep_alive(keep_alive)).into_response())
}

/// What names the sender of the request, to judge it again.
struct Credentials {
    uri: Uri,
    headers: HeaderMap,
}

impl Credentials {
    fn of(request: &Request) -> Self {
        let mut headers = HeaderMap::new();
        for name in [header::AUTHORIZATION, header::COOKIE] {
            for value in request.headers().get_all(&name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self { uri: request.uri().clone(), headers }
    }

    /// The sender, if the stream may continue.
    fn caller(&self, api: &Api) -> Option<Caller> {
        let cookie = SessionCookie::of(api.public_url.as_ref());
        let caller = api.keys.caller(&self.uri, &self.headers, cookie, api.clock.now()).ok()??;
        caller.check_role(Role::Read).is_ok().then_some(caller)
    }
}

/// One open stream.
struct Viewer {
    api: Api,
    credentials: Credentials,
    tenant: Option<String>,
    destination: Option<DestinationId>,
    samples: Samples,
    /// The number of the last change that the stream has told of, or of the last one before it began.
    last_change: Option<u64>,
    /// Events to send before the next sample.
    due: VecDeque<Event>,
    _seat: Seat,
}

impl Viewer {
    fn events(self) -> impl Stream<Item = Event> {
        stream::unfold(self, |mut viewer| async move {
            while viewer.due.is_empty() {
                viewer.look().await?;
            }
            let event = viewer.due.pop_front()?;
            Some((event, viewer))
        })
    }

    /// Waits for the next sample and adds its events. `None`: the stream ends.
    async fn look(&mut self) -> Option<()> {
        let sample = self.samples.next().await?;
        // After the wait, so that nothing is shown to a key that has ended meanwhile.
        let caller = self.credentials.caller(&self.api)?;
        if let Some(told) = self.last_change.replace(sample.last_change()) {
            let changes = sample.changes_after(told).filter(|change| self.shows(change, &caller));
            let events: Vec<Event> = changes.filter_map(change_event).collect();
            self.due.extend(events);
        }
        self.due.push_back(self.snapshot(&sample, &caller)?);
        Some(())
    }

    fn shows(&self, change: &Change, caller: &Caller) -> bool {
        let is_of_destination = |destination| match change.kind {
            ChangeKind::Destination { id, .. } | ChangeKind::Breaker { id, .. } => id == destination,
            ChangeKind::Replay { .. } => true,
        };
        caller.sees_scope(&change.scope)
            && self.tenant.as_deref().is_none_or(|tenant| change.scope.includes(tenant))
            && self.destination.is_none_or(is_of_destination)
    }

    fn snapshot(&self, sample: &Sample, caller: &Caller) -> Option<Event> {
        // Viewers who see the same share the bytes.
        let key = format!("{:?} {:?} {:?}", caller.tenants(), self.tenant, self.destination);
        let bytes = sample.snapshot(key, || {
            let mut rows = visible(sample, caller, self.tenant.as_deref(), Order::Trouble);
            if let Some(id) = self.destination {
                rows.retain(|row| row.destination.id == id);
            }
            let totals = totals_view(Totals::of(rows.iter().copied(), sample.as_of));
            // The version covers every row, also those that the snapshot does not show.
            let version = sample.version(&rows, sample.has_replay(|scope| caller.sees_scope(scope)));
            let destinations = rows.into_iter().take(MAX_ROWS).map(|row| row_view(row, sample.as_of)).collect();
            let view = types::Snapshot { as_of: sample.as_of, version, totals, destinations };
            serde_json::to_vec(&view).map(Bytes::from).unwrap_or_default()
        });
        Some(Event::default().event("snapshot").data(std::str::from_utf8(&bytes).ok()?))
    }
}

fn change_event(change: &Change) -> Option<Event> {
    let view = |state: &str| types::StreamChange {
        at: change.at,
        destination_id: None,
        replay_id: None,
        state: state.to_owned(),
        reason: None,
    };
    let (name, view) = match &change.kind {
        ChangeKind::Destination { id, change } => {
            let state = match change {
                DestinationChange::Created => "created",
                DestinationChange::Edited => "edited",
                DestinationChange::Deleted => "deleted",
            };
            ("edit", types::StreamChange { destination_id: Some(id.to_string()), ..view(state) })
        }
        ChangeKind::Breaker { id, state, reason } => {
            let (destination_id, reason) = (Some(id.to_string()), reason.clone());
            ("breaker", types::StreamChange { destination_id, reason, ..view(state.as_str()) })
        }
        ChangeKind::Replay { id, is_open } => {
            let state = if *is_open { "running" } else { "ended" };
            ("replay", types::StreamChange { replay_id: Some(id.to_string()), ..view(state) })
        }
    };
    Event::default().event(name).json_data(view).ok()
}
