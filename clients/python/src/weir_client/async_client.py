"""The client: one group of methods for each resource of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, overload

from .async_slots import AsyncLimit
from .async_transport import AsyncTransport
from .types import (
    AcceptedEvent,
    ActiveAlert,
    Activity,
    Alerts,
    ApiKey,
    Audit,
    Backlog,
    CreatedApiKey,
    CreatedDestination,
    DataFilter,
    Delivery,
    DeliveryDetail,
    DeliveryGroups,
    DeliveryState,
    Destination,
    DestinationChanges,
    DestinationHealth,
    DestinationHistory,
    DestinationReplacement,
    DiscardFilter,
    Event,
    EventDetail,
    EventType,
    EventTypeSettings,
    FilterTried,
    HeldDestination,
    HeldLimitGroup,
    LimitGroup,
    LimitGroupChanges,
    LimitGroupHistory,
    LimitGroupOverview,
    LimitGroupReplacement,
    LimitGroupRow,
    LimitKeyList,
    ListCount,
    Me,
    NewDestination,
    NewEvent,
    NewKey,
    NewLimitGroup,
    OverriddenDestination,
    OverriddenLimitGroup,
    OverviewHistory,
    OverviewRow,
    Preview,
    PurgeFilter,
    RateHistory,
    RateLimit,
    Replay,
    ReplayFilter,
    Reservation,
    ReservedSlot,
    Secret,
    Shedding,
    SheddingLimits,
    Signature,
    Simulation,
    Status,
    Verified,
)
from .values import (
    AcceptedEvents,
    BatchResults,
    Time,
    given,
    lasting,
    limiting,
    new_key,
    once,
    results_of,
    time_text,
)

Row = TypeVar("Row")

PAGE = 200


class AsyncPages(Generic[Row]):
    """The rows of a list, newest first. Pages are read while it is iterated."""

    def __init__(
        self,
        transport: AsyncTransport,
        method: str,
        route: str,
        query: dict[str, Any],
        parts: dict[str, str] | None = None,
    ) -> None:
        self._transport = transport
        self._method = method
        self._route = route
        self._query = query
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[Row]:
        cursor: str | None = None
        while True:
            rows, cursor = await self.page(limit=PAGE, cursor=cursor)
            for row in rows:
                yield row
            if cursor is None:
                return

    async def page(self, *, limit: int = 50, cursor: str | None = None) -> tuple[list[Row], str | None]:
        """One page, and the cursor of the next one; None after the last page."""
        query = {**self._query, "limit": limit, "cursor": cursor}
        page = (await self._transport.send(self._method, self._route, self._parts, query=query)).json()
        return page["data"], page["next_cursor"]


class _Resource:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def _call(self, method: str, route: str, parts: dict[str, str] | None = None, **rest: Any) -> Any:
        answer = await self._transport.send(method, route, parts, **rest)
        return answer.json() if answer.content else None

    def _pages(self, method: str, route: str, query: dict[str, Any]) -> AsyncPages[Any]:
        return AsyncPages(self._transport, method, route, query)


class AsyncWeir(_Resource):
    """A client of one server. Use it in an `async with` block, or close it; it may be used by several tasks.

    `timeout` counts for each attempt. `retries` is the number of attempts after the first one.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        key: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
    ) -> None:
        super().__init__(AsyncTransport(url, key, timeout, retries))
        self.events = Events(self._transport)
        self.destinations = Destinations(self._transport)
        self.deliveries = Deliveries(self._transport)
        self.replays = Replays(self._transport)
        self.keys = Keys(self._transport)
        self.alerts = AlertThresholds(self._transport)
        self.shedding = LoadShedding(self._transport)
        self.event_types = EventTypes(self._transport)
        self.limit_groups = LimitGroups(self._transport)
        self.activity = ActivityLog(self._transport)

    def limit(self, group: str, *, tenant: str = "default") -> AsyncLimit:
        """A limit group, by id or name, from which this program takes slots for its own calls.

        The tenant `*`: a group whose members may be of any tenant.
        """
        return AsyncLimit(self._transport, group, tenant)

    async def me(self) -> Me:
        """The rights of the key."""
        return cast(Me, await self._call("GET", "/v1/me"))

    def overview(
        self,
        *,
        tenant: str | None = None,
        state: Literal["active", "waiting", "never_drains", "paused", "held", "breaker"] | None = None,
        q: str | None = None,
        ids: Sequence[str] | None = None,
        sort: Literal[
            "trouble", "name", "backlog", "oldest_age", "utilisation", "arrivals", "sends", "drain_eta"
        ]
        | None = None,
        reverse: bool | None = None,
        recent: bool | None = None,
    ) -> AsyncPages[OverviewRow]:
        """Every destination with its backlog, rates and the reason why it is not faster.

        `ids` names the only destinations to show; with `recent` each row has the figures of the last half hour.
        """
        query = {
            "tenant": tenant,
            "state": state,
            "q": q,
            "ids": None if ids is None else ",".join(ids),
            "sort": sort,
            "reverse": reverse,
            "recent": recent,
        }
        return self._pages("GET", "/v1/overview", query)

    async def overview_history(self, *, tenant: str | None = None) -> OverviewHistory:
        """What arrived, was sent, failed and waited at all destinations in the last half hour, by minute."""
        return cast(OverviewHistory, await self._call("GET", "/v1/overview/history", query={"tenant": tenant}))

    async def verify(
        self,
        headers: dict[str, str],
        body: str,
        *,
        destination: str | None = None,
        secret: str | None = None,
        signature: Signature | None = None,
        url: str | None = None,
        tolerance_s: int | None = None,
    ) -> Verified:
        """Whether a received request is signed with this secret, or with one of the destination.

        The server does it, and says what is wrong. A receiver verifies by itself, with `verify_webhook`.
        """
        fields = {"destination": destination, "secret": secret, "signature": signature, "url": url}
        request = {"headers": headers, "body": body, **given({**fields, "tolerance_s": tolerance_s})}
        return cast(Verified, await self._call("POST", "/v1/verify", body=request))

    async def status(self) -> Status:
        """The processes, the store and the queue."""
        return cast(Status, await self._call("GET", "/v1/status"))

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncWeir:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Events(_Resource):
    async def post(
        self,
        type: str,
        data: Any,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        destinations: Sequence[str] | None = None,
        deliver_at: Time | None = None,
        ttl_s: int | None = None,
        coalesce_key: str | None = None,
        ordering_key: str | None = None,
        limit_key: str | None = None,
        cost: int | None = None,
    ) -> AcceptedEvent:
        """Posts an event. Without an `idempotency_key` one is made, so that retries store it once."""
        event = {
            "tenant": tenant,
            "idempotency_key": idempotency_key or new_key(),
            "destinations": None if destinations is None else [*destinations],
            "deliver_at": time_text(deliver_at),
            "ttl_s": ttl_s,
            "coalesce_key": coalesce_key,
            "ordering_key": ordering_key,
            "limit_key": limit_key,
            "cost": cost,
        }
        body = {"type": type, "data": data, **given(event)}
        return cast(AcceptedEvent, await self._call("POST", "/v1/events", body=body, repeatable=True))

    @overload
    async def post_batch(self, events: Iterable[NewEvent], *, partial: Literal[False] = False) -> AcceptedEvents: ...

    @overload
    async def post_batch(self, events: Iterable[NewEvent], *, partial: Literal[True]) -> BatchResults: ...

    async def post_batch(self, events: Iterable[NewEvent], *, partial: bool = False) -> Any:
        """Posts up to 1000 events. Each stands alone: the others are stored if one is refused.

        Raises `BatchRefused` if an event was refused. With `partial` it returns the results of all events instead: in
        the place of a refused one is its error. Raises `InvalidRequest` if no event was valid.
        """
        keyed: list[dict[str, Any]] = [{"idempotency_key": new_key(), **event} for event in events]
        answer = await self._call("POST", "/v1/events/batch", body={"events": keyed}, repeatable=True)
        return results_of(answer["events"], partial=partial)

    def list(
        self,
        *,
        type: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        from_: Time | None = None,
        to: Time | None = None,
        include_data: bool = False,
        order: Literal["newest", "oldest"] | None = None,
    ) -> AsyncPages[Event]:
        query = {
            "type": type,
            "tenant": tenant,
            "idempotency_key": idempotency_key,
            "from": time_text(from_),
            "to": time_text(to),
            "include": "data" if include_data else None,
            "order": order,
        }
        return self._pages("GET", "/v1/events", query)

    async def get(self, id: str) -> EventDetail:
        return cast(EventDetail, await self._call("GET", "/v1/events/{id}", {"id": id}))


class Destinations(_Resource):
    async def create(self, destination: NewDestination) -> CreatedDestination:
        """Creates a destination. The answer has its secret."""
        return cast(CreatedDestination, await self._call("POST", "/v1/destinations", body=destination, **once()))

    def list(
        self,
        *,
        tenant: str | None = None,
        name: str | None = None,
        url: str | None = None,
        state: Literal["active", "paused", "held", "breaker"] | None = None,
        q: str | None = None,
        event_type: str | None = None,
    ) -> AsyncPages[Destination]:
        """`name` and `url` are the whole name or URL; `q` is a part of either, in upper or lower case.

        `event_type` is a type that the destinations take.
        """
        query = {"tenant": tenant, "name": name, "url": url, "state": state, "q": q, "event_type": event_type}
        return self._pages("GET", "/v1/destinations", query)

    async def get(self, id: str) -> Destination:
        return (await self.get_version(id))[0]

    async def get_version(self, id: str) -> tuple[Destination, str]:
        """The destination and its version, for `if_match`."""
        answer = await self._transport.send("GET", "/v1/destinations/{id}", {"id": id})
        return answer.json(), answer.headers["etag"]

    async def edit(self, id: str, changes: DestinationChanges, *, if_match: str | None = None) -> Destination:
        """Changes the given fields. With `if_match`, only if the destination still has that version."""
        headers = given({"if-match": if_match})
        return cast(
            Destination,
            await self._call("PATCH", "/v1/destinations/{id}", {"id": id}, body=changes, headers=headers),
        )

    async def put(
        self,
        tenant: str,
        name: str,
        settings: DestinationReplacement | DestinationChanges,
        *,
        if_match: str | None = None,
        only_create: bool = False,
    ) -> Destination:
        """Creates the destination with this name, or replaces all its settings. An omitted one gets its default."""
        headers = given({"if-match": if_match, "if-none-match": "*" if only_create else None})
        parts = {"tenant": tenant, "name": name}
        return cast(
            Destination,
            await self._call("PUT", "/v1/destinations/by-name/{tenant}/{name}", parts, body=settings, headers=headers),
        )

    async def delete(self, id: str, *, if_match: str | None = None) -> None:
        """Deletes the destination and cancels what waits for it. The history stays."""
        await self._call("DELETE", "/v1/destinations/{id}", {"id": id}, headers=given({"if-match": if_match}))

    async def backlog(self, id: str, *, key: str | None = None) -> Backlog:
        """What waits, and how fast it is sent; with `key` of this limit key alone."""
        query = {"key": key}
        return cast(Backlog, await self._call("GET", "/v1/destinations/{id}/backlog", {"id": id}, query=query))

    async def history(
        self,
        id: str,
        *,
        from_: Time | None = None,
        to: Time | None = None,
        step: Literal["10s", "1m", "1h"] | None = None,
    ) -> DestinationHistory:
        """What happened in each bucket of a range; by default the last 15 minutes in steps of 10 s."""
        query = {"from": time_text(from_), "to": time_text(to), "step": step}
        return cast(DestinationHistory, await self._call("GET", "/v1/destinations/{id}/history", {"id": id}, query=query))

    async def rate(
        self,
        id: str,
        *,
        from_: Time | None = None,
        to: Time | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RateHistory:
        """The adaptive pace with its reason, and one page of its changes, newest first."""
        query = {"from": time_text(from_), "to": time_text(to), "limit": limit, "cursor": cursor}
        return cast(RateHistory, await self._call("GET", "/v1/destinations/{id}/rate", {"id": id}, query=query))

    async def health(self, id: str, *, window: Literal["1h", "24h", "7d"] | None = None) -> DestinationHealth:
        """How the attempts of the last time went; by default of the last hour."""
        query = {"window": window}
        return cast(DestinationHealth, await self._call("GET", "/v1/destinations/{id}/health", {"id": id}, query=query))

    async def audit(
        self, id: str, *, key: str | None = None, from_: Time | None = None, to: Time | None = None
    ) -> Audit:
        """The audit of the recorded send starts, by default of the last day; with `key` of this limit key alone."""
        query = {"key": key, "from": time_text(from_), "to": time_text(to)}
        return cast(Audit, await self._call("GET", "/v1/destinations/{id}/audit", {"id": id}, query=query))

    async def overview(self, id: str) -> OverviewRow:
        """Backlog, rates and the reason why it is not faster."""
        return cast(OverviewRow, await self._call("GET", "/v1/destinations/{id}/overview", {"id": id}))

    async def preview(
        self,
        id: str,
        *,
        rate_limits: Sequence[RateLimit] | None = None,
        min_interval_ms: int | None = None,
        max_in_flight: int | None = None,
    ) -> Preview:
        """What other limits would do to the backlog. Nothing is changed."""
        limits = None if rate_limits is None else [*rate_limits]
        body = given({"rate_limits": limits, "min_interval_ms": min_interval_ms, "max_in_flight": max_in_flight})
        answer = await self._call("POST", "/v1/destinations/{id}/preview", {"id": id}, body=body, repeatable=True)
        return cast(Preview, answer)

    async def simulate(
        self,
        id: str,
        *,
        rate_limits: Sequence[RateLimit] | None = None,
        min_interval_ms: int | None = None,
        max_in_flight: int | None = None,
        from_: Time | None = None,
        to: Time | None = None,
        scale: float | None = None,
        failures: str | None = None,
        latency_p99_ms: int | None = None,
    ) -> Simulation:
        """What other limits would have done with the recorded deliveries. Nothing is changed."""
        body = given(
            {
                "rate_limits": None if rate_limits is None else [*rate_limits],
                "min_interval_ms": min_interval_ms,
                "max_in_flight": max_in_flight,
                "from": time_text(from_),
                "to": time_text(to),
                "scale": scale,
                "failures": failures,
                "target": None if latency_p99_ms is None else {"latency_p99_ms": latency_p99_ms},
            }
        )
        answer = await self._call("POST", "/v1/destinations/{id}/simulate", {"id": id}, body=body, repeatable=True)
        return cast(Simulation, answer)

    async def try_filter(self, id: str, data: Any, *, filter: DataFilter | None = None) -> FilterTried:
        """Whether an event with this `data` would pass the filter, or that of the destination. Nothing is changed."""
        body = {"data": data, **given({"filter": filter})}
        answer = await self._call("POST", "/v1/destinations/{id}/filter/try", {"id": id}, body=body, repeatable=True)
        return cast(FilterTried, answer)

    async def release(self, id: str) -> Destination:
        """Ends the wait that the receiver has asked for."""
        answer = await self._call("POST", "/v1/destinations/{id}/release", {"id": id}, repeatable=True)
        return cast(Destination, answer)

    async def override(
        self,
        id: str,
        reason: str,
        *,
        for_s: int | None = None,
        until: Time | None = None,
        rate_limits: Sequence[RateLimit] | None = None,
        max_in_flight: int | None = None,
        if_match: str | None = None,
    ) -> OverriddenDestination:
        """Other limits for a while, in place of those of the settings. They end by themselves."""
        body, headers = limiting(rate_limits, max_in_flight, reason, for_s, until), given({"if-match": if_match})
        answer = await self._call("POST", "/v1/destinations/{id}/override", {"id": id}, body=body, headers=headers)
        return cast(OverriddenDestination, answer)

    async def end_override(self, id: str) -> Destination:
        """Ends an override before its end."""
        return cast(Destination, await self._call("DELETE", "/v1/destinations/{id}/override", {"id": id}))

    async def hold(
        self,
        id: str,
        reason: str,
        *,
        for_s: int | None = None,
        until: Time | None = None,
        if_match: str | None = None,
    ) -> HeldDestination:
        """Sends nothing for a while: a pause that ends by itself."""
        body, headers = lasting(reason, for_s, until), given({"if-match": if_match})
        answer = await self._call("POST", "/v1/destinations/{id}/hold", {"id": id}, body=body, headers=headers)
        return cast(HeldDestination, answer)

    async def end_hold(self, id: str) -> Destination:
        """Ends a hold before its end. A wait that the receiver has asked for stays."""
        return cast(Destination, await self._call("DELETE", "/v1/destinations/{id}/hold", {"id": id}))

    async def limit_keys(
        self,
        id: str,
        *,
        sort: Literal["backlog", "use"] | None = None,
        q: str | None = None,
        limit: int | None = None,
    ) -> LimitKeyList:
        """The limit keys that wait or have an override, with what each may send."""
        query = {"sort": sort, "q": q, "limit": limit}
        return cast(LimitKeyList, await self._call("GET", "/v1/destinations/{id}/keys", {"id": id}, query=query))

    async def pause_key(self, id: str, key: str, *, if_match: str | None = None) -> Destination:
        """Sends nothing of this limit key; its events wait."""
        parts, headers = {"id": id, "key": key}, given({"if-match": if_match})
        answer = await self._call("POST", "/v1/destinations/{id}/keys/{key}/pause", parts, headers=headers)
        return cast(Destination, answer)

    async def resume_key(self, id: str, key: str, *, if_match: str | None = None) -> Destination:
        """Sends a paused limit key again."""
        parts, headers = {"id": id, "key": key}, given({"if-match": if_match})
        answer = await self._call("POST", "/v1/destinations/{id}/keys/{key}/resume", parts, headers=headers)
        return cast(Destination, answer)

    async def test(self, id: str) -> DeliveryDetail:
        """Sends a test event, and returns its delivery."""
        return cast(DeliveryDetail, await self._call("POST", "/v1/destinations/{id}/test", {"id": id}, **once()))

    async def purge(self, id: str, filter: PurgeFilter | None = None) -> int:
        """Cancels waiting deliveries, and returns their number."""
        answer = await self._call("POST", "/v1/destinations/{id}/purge", {"id": id}, body=filter or {})
        return int(answer["cancelled"])

    async def count_purge(self, id: str, filter: PurgeFilter | None = None) -> int:
        """How many deliveries a purge would cancel."""
        query = {"dry_run": True}
        answer = await self._call("POST", "/v1/destinations/{id}/purge", {"id": id}, body=filter or {}, query=query)
        return int(answer["total"])

    async def secret(self, id: str) -> Secret:
        return cast(Secret, await self._call("GET", "/v1/destinations/{id}/secret", {"id": id}))

    async def rotate_secret(
        self,
        id: str,
        *,
        overlap_s: int | None = None,
        secret: str | None = None,
        force: bool | None = None,
    ) -> Secret:
        """Makes a new secret. The previous one signs too for `overlap_s`, by default a day. Meanwhile another rotation
        needs `force`, and ends the overlap."""
        body = given({"overlap_s": overlap_s, "secret": secret, "force": force})
        return cast(
            Secret, await self._call("POST", "/v1/destinations/{id}/rotate-secret", {"id": id}, body=body, **once())
        )


class Deliveries(_Resource):
    def list(
        self,
        *,
        destination: str | None = None,
        event: str | None = None,
        state: DeliveryState | Sequence[DeliveryState] | None = None,
        tenant: str | None = None,
        event_type: str | None = None,
        error: str | None = None,
        limit_key: str | None = None,
        from_: Time | None = None,
        to: Time | None = None,
        order: Literal["newest", "oldest"] | None = None,
    ) -> AsyncPages[Delivery]:
        query = {
            "destination": destination,
            "event": event,
            "state": state,
            "tenant": tenant,
            "event_type": event_type,
            "error": error,
            "limit_key": limit_key,
            "from": time_text(from_),
            "to": time_text(to),
            "order": order,
        }
        return self._pages("GET", "/v1/deliveries", query)

    async def count(
        self,
        *,
        destination: str | None = None,
        event: str | None = None,
        state: DeliveryState | Sequence[DeliveryState] | None = None,
        tenant: str | None = None,
        event_type: str | None = None,
        error: str | None = None,
        limit_key: str | None = None,
        from_: Time | None = None,
        to: Time | None = None,
    ) -> ListCount:
        """How many deliveries match. `capped`: there are more than `value`."""
        query = {
            "destination": destination,
            "event": event,
            "state": state,
            "tenant": tenant,
            "event_type": event_type,
            "error": error,
            "limit_key": limit_key,
            "from": time_text(from_),
            "to": time_text(to),
            "count": True,
            "limit": 1,
        }
        page = await self._call("GET", "/v1/deliveries", query=query)
        return cast(ListCount, page["count"])

    async def groups(
        self,
        *,
        destination: str | None = None,
        state: Literal["dead", "failed", "dead,failed"] | None = None,
        tenant: str | None = None,
        event_type: str | None = None,
        error: str | None = None,
        from_: Time | None = None,
        to: Time | None = None,
    ) -> DeliveryGroups:
        """What failed, by destination, state and error, the largest group first."""
        query = {
            "destination": destination,
            "state": state,
            "tenant": tenant,
            "event_type": event_type,
            "error": error,
            "from": time_text(from_),
            "to": time_text(to),
        }
        return cast(DeliveryGroups, await self._call("GET", "/v1/deliveries/groups", query=query))

    async def get(self, id: str) -> DeliveryDetail:
        """The delivery with its attempts."""
        return cast(DeliveryDetail, await self._call("GET", "/v1/deliveries/{id}", {"id": id}))

    async def retry(self, id: str) -> DeliveryDetail:
        """Sends the delivery again now, within the limits."""
        return cast(DeliveryDetail, await self._call("POST", "/v1/deliveries/{id}/retry", {"id": id}))

    async def cancel(self, id: str) -> DeliveryDetail:
        """Cancels a waiting delivery."""
        return cast(DeliveryDetail, await self._call("POST", "/v1/deliveries/{id}/cancel", {"id": id}))

    async def discard(self, id: str, *, reason: str | None = None) -> DeliveryDetail:
        """Settles a dead letter that nobody will send again."""
        body = given({"reason": reason})
        return cast(DeliveryDetail, await self._call("POST", "/v1/deliveries/{id}/discard", {"id": id}, body=body))

    async def discard_all(self, filter: DiscardFilter | None = None) -> int:
        """Settles the dead letters that match, without a filter all of them. Returns their number."""
        return int((await self._call("POST", "/v1/deliveries/discard", body=filter or {}))["discarded"])

    async def count_discard(self, filter: DiscardFilter | None = None) -> int:
        """How many dead letters `discard_all` would settle."""
        query = {"dry_run": True}
        answer = await self._call("POST", "/v1/deliveries/discard", body=filter or {}, query=query)
        return int(answer["total"])


class Replays(_Resource):
    async def create(
        self, filter: ReplayFilter | None = None, *, from_: Time | None = None, to: Time | None = None
    ) -> Replay:
        """Sends ended deliveries again; without a filter everything that is dead or failed."""
        body = {**(filter or {}), **given({"from": time_text(from_), "to": time_text(to)})}
        return cast(Replay, await self._call("POST", "/v1/replays", body=body, **once()))

    async def count(self, filter: ReplayFilter | None = None, *, from_: Time | None = None, to: Time | None = None) -> int:
        """How many deliveries a replay would send again."""
        body = {**(filter or {}), **given({"from": time_text(from_), "to": time_text(to)})}
        answer = await self._call("POST", "/v1/replays", body=body, query={"dry_run": True}, repeatable=True)
        return int(answer["total"])

    def list(self) -> AsyncPages[Replay]:
        return self._pages("GET", "/v1/replays", {})

    async def get(self, id: str) -> Replay:
        return cast(Replay, await self._call("GET", "/v1/replays/{id}", {"id": id}))

    async def cancel(self, id: str) -> Replay:
        """Cancels the replay. Its unsent deliveries return to their previous state."""
        return cast(Replay, await self._call("POST", "/v1/replays/{id}/cancel", {"id": id}))


class Keys(_Resource):
    async def create(self, key: NewKey) -> CreatedApiKey:
        """Creates an API key. Only this answer has its secret."""
        return cast(CreatedApiKey, await self._call("POST", "/v1/keys", body=key, **once()))

    def list(self) -> AsyncPages[ApiKey]:
        return self._pages("GET", "/v1/keys", {})

    async def delete(self, id: str) -> None:
        await self._call("DELETE", "/v1/keys/{id}", {"id": id})


class AlertThresholds(_Resource):
    async def get(self) -> Alerts:
        return cast(Alerts, await self._call("GET", "/v1/alerts"))

    async def set(self, thresholds: Alerts) -> Alerts:
        """Sets the thresholds of all destinations. An omitted one gets its default."""
        return cast(Alerts, await self._call("PUT", "/v1/alerts", body=thresholds, repeatable=True))

    def active(self, *, tenant: str | None = None, type: str | None = None) -> AsyncPages[ActiveAlert]:
        """What is wrong now, the worst first."""
        return self._pages("GET", "/v1/alerts/active", {"tenant": tenant, "type": type})



class LoadShedding(_Resource):
    async def get(self) -> Shedding:
        """The limits, and what the process that answers refuses now."""
        return cast(Shedding, await self._call("GET", "/v1/shedding"))

    async def set(self, limits: SheddingLimits) -> Shedding:
        """Replaces all limits. What is omitted or null is automatic."""
        return cast(Shedding, await self._call("PUT", "/v1/shedding", body=limits, repeatable=True))


class EventTypes(_Resource):
    def list(self, *, q: str | None = None) -> AsyncPages[EventType]:
        """The catalogue, in the order of the names. `q` is a part of the name, in upper or lower case."""
        return self._pages("GET", "/v1/event-types", {"q": q})

    async def get(self, name: str) -> EventType:
        return (await self.get_version(name))[0]

    async def get_version(self, name: str) -> tuple[EventType, str]:
        """The type and its version, for `if_match`."""
        answer = await self._transport.send("GET", "/v1/event-types/{name}", {"name": name})
        return answer.json(), answer.headers["etag"]

    async def put(
        self, name: str, settings: EventTypeSettings, *, if_match: str | None = None, only_create: bool = False
    ) -> EventType:
        """Adds a type, or replaces its description, example and schema."""
        headers = given({"if-match": if_match, "if-none-match": "*" if only_create else None})
        return cast(
            EventType,
            await self._call("PUT", "/v1/event-types/{name}", {"name": name}, body=settings, headers=headers),
        )

    async def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Deletes a type. A strict server refuses its events within a second."""
        await self._call("DELETE", "/v1/event-types/{name}", {"name": name}, headers=given({"if-match": if_match}))


class LimitGroups(_Resource):
    async def create(self, group: NewLimitGroup) -> LimitGroup:
        """Creates a budget that several destinations share: they join it by their `limit_group`."""
        return cast(LimitGroup, await self._call("POST", "/v1/limit-groups", body=group, **once()))

    def list(self) -> AsyncPages[LimitGroupRow]:
        """The groups with their use and their backlog."""
        return self._pages("GET", "/v1/limit-groups", {})

    async def get(self, id: str) -> LimitGroup:
        return (await self.get_version(id))[0]

    async def get_version(self, id: str) -> tuple[LimitGroup, str]:
        """The group and its version, for `if_match`."""
        answer = await self._transport.send("GET", "/v1/limit-groups/{id}", {"id": id})
        return answer.json(), answer.headers["etag"]

    async def edit(self, id: str, changes: LimitGroupChanges, *, if_match: str | None = None) -> LimitGroup:
        """Changes the given fields. With `if_match`, only if the group still has that version."""
        headers = given({"if-match": if_match})
        return cast(
            LimitGroup, await self._call("PATCH", "/v1/limit-groups/{id}", {"id": id}, body=changes, headers=headers)
        )

    async def put(
        self,
        tenant: str,
        name: str,
        settings: LimitGroupReplacement,
        *,
        if_match: str | None = None,
        only_create: bool = False,
    ) -> LimitGroup:
        """Creates the group with this name, or replaces its limits. The tenant `*`: its members may be of any tenant."""
        headers = given({"if-match": if_match, "if-none-match": "*" if only_create else None})
        parts = {"tenant": tenant, "name": name}
        return cast(
            LimitGroup,
            await self._call("PUT", "/v1/limit-groups/by-name/{tenant}/{name}", parts, body=settings, headers=headers),
        )

    async def override(
        self,
        id: str,
        reason: str,
        *,
        for_s: int | None = None,
        until: Time | None = None,
        rate_limits: Sequence[RateLimit] | None = None,
        max_in_flight: int | None = None,
        if_match: str | None = None,
    ) -> OverriddenLimitGroup:
        """Other limits of all members together for a while, in place of those of the settings. They end by themselves."""
        body, headers = limiting(rate_limits, max_in_flight, reason, for_s, until), given({"if-match": if_match})
        answer = await self._call("POST", "/v1/limit-groups/{id}/override", {"id": id}, body=body, headers=headers)
        return cast(OverriddenLimitGroup, answer)

    async def end_override(self, id: str) -> LimitGroup:
        """Ends an override before its end."""
        return cast(LimitGroup, await self._call("DELETE", "/v1/limit-groups/{id}/override", {"id": id}))

    async def hold(
        self,
        id: str,
        reason: str,
        *,
        for_s: int | None = None,
        until: Time | None = None,
        if_match: str | None = None,
    ) -> HeldLimitGroup:
        """Sends nothing to any member for a while: a pause that ends by itself."""
        body, headers = lasting(reason, for_s, until), given({"if-match": if_match})
        answer = await self._call("POST", "/v1/limit-groups/{id}/hold", {"id": id}, body=body, headers=headers)
        return cast(HeldLimitGroup, answer)

    async def end_hold(self, id: str) -> LimitGroup:
        """Ends a hold before its end."""
        return cast(LimitGroup, await self._call("DELETE", "/v1/limit-groups/{id}/hold", {"id": id}))

    async def delete(self, id: str, *, if_match: str | None = None) -> None:
        """Deletes the group, which must have no members."""
        await self._call("DELETE", "/v1/limit-groups/{id}", {"id": id}, headers=given({"if-match": if_match}))

    async def reserve(
        self, id: str, *, cost: int | None = None, wait_ms: int | None = None, width_ms: int | None = None
    ) -> ReservedSlot:
        """Reserves a slot for a call of your own, which must start in it. `Weir.limit` also waits for its start.

        Without a slot in time it raises `Unavailable`, with `next_at`. `wait_ms` must be shorter than the `timeout`.
        """
        body = given({"cost": cost, "wait_ms": wait_ms, "width_ms": width_ms})
        answer = await self._transport.send(
            "POST", "/v1/limit-groups/{id}/reservations", {"id": id}, body=body, retries=0
        )
        return cast(ReservedSlot, answer.json())

    async def reserve_by_name(
        self,
        tenant: str,
        name: str,
        *,
        cost: int | None = None,
        wait_ms: int | None = None,
        width_ms: int | None = None,
    ) -> ReservedSlot:
        """The same by the name of the group, for keys that may not list groups."""
        body = given({"cost": cost, "wait_ms": wait_ms, "width_ms": width_ms})
        parts = {"tenant": tenant, "name": name}
        answer = await self._transport.send(
            "POST", "/v1/limit-groups/by-name/{tenant}/{name}/reservations", parts, body=body, retries=0
        )
        return cast(ReservedSlot, answer.json())

    def reservations(self, id: str, *, from_: Time | None = None, to: Time | None = None) -> AsyncPages[Reservation]:
        """The slots that callers outside Weir have reserved, those that end last first."""
        query = {"from": time_text(from_), "to": time_text(to)}
        return AsyncPages(self._transport, "GET", "/v1/limit-groups/{id}/reservations", query, {"id": id})

    async def give_back(self, id: str, rid: str) -> None:
        """Gives a slot back before it starts."""
        await self._call("DELETE", "/v1/limit-groups/{id}/reservations/{rid}", {"id": id, "rid": rid})

    async def overview(self, id: str) -> LimitGroupOverview:
        """The group and its members: the share of each, and why it is not sent faster."""
        return cast(LimitGroupOverview, await self._call("GET", "/v1/limit-groups/{id}/overview", {"id": id}))

    async def preview(self, id: str, *, rate_limits: Sequence[RateLimit] | None = None) -> Preview:
        """What other limits would do to the backlogs of all members. Nothing is changed."""
        body = given({"rate_limits": None if rate_limits is None else [*rate_limits]})
        answer = await self._call("POST", "/v1/limit-groups/{id}/preview", {"id": id}, body=body, repeatable=True)
        return cast(Preview, answer)

    async def audit(self, id: str, *, from_: Time | None = None, to: Time | None = None) -> Audit:
        """The audit of the recorded send starts of all members; by default of the last day."""
        query = {"from": time_text(from_), "to": time_text(to)}
        return cast(Audit, await self._call("GET", "/v1/limit-groups/{id}/audit", {"id": id}, query=query))

    async def history(
        self,
        id: str,
        *,
        from_: Time | None = None,
        to: Time | None = None,
        step: Literal["10s", "1m", "1h"] | None = None,
    ) -> LimitGroupHistory:
        """What all members together got and sent in each bucket of a range; by default the last 15 minutes."""
        query = {"from": time_text(from_), "to": time_text(to), "step": step}
        return cast(
            LimitGroupHistory, await self._call("GET", "/v1/limit-groups/{id}/history", {"id": id}, query=query)
        )


class ActivityLog(_Resource):
    def list(
        self,
        *,
        destination: str | None = None,
        actor: str | None = None,
        from_: Time | None = None,
        to: Time | None = None,
    ) -> AsyncPages[Activity]:
        """Who changed what. `actor` is a name, or the id of a key."""
        query = {"destination": destination, "actor": actor, "from": time_text(from_), "to": time_text(to)}
        return self._pages("GET", "/v1/activity", query)
