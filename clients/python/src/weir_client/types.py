"""The JSON of the API. A server may add fields, which are kept."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Period = Literal["second", "minute", "hour", "day"]
Role = Literal["ingest", "read", "operate", "admin"]
DeliveryState = Literal[
    "pending",
    "delivering",
    "retrying",
    "delivered",
    "failed",
    "dead",
    "cancelled",
    "superseded",
    "expired",
]


class _Limit(TypedDict):
    limit: int
    period: Period


class RateLimit(_Limit, total=False):
    """At most `limit` sends in every window of one `period`. `burst` is 1 by default, `margin_ms` is 0.

    With a margin the sends fit into a period that is longer by it.
    """

    burst: int
    margin_ms: int


class Retry(TypedDict, total=False):
    max_attempts: int
    max_age_s: int
    base_ms: int
    cap_ms: int
    schedule_ms: list[int] | None


class Breaker(TypedDict, total=False):
    failure_ratio: float
    min_attempts: int
    consecutive: int
    open_ms: int
    open_max_ms: int
    pause_after_s: int | None


class Signature(TypedDict, total=False):
    """A style of Standard Webhooks, of a well-known sender, or `custom` with a format of its own."""

    style: Literal[
        "standard",
        "timestamped",
        "prefixed",
        "stripe",
        "github",
        "slack",
        "zoom",
        "shopify",
        "zendesk",
        "square",
        "razorpay",
        "linear",
        "lemon-squeezy",
        "pagerduty",
        "paddle",
        "discord",
        "svix",
        "twitch",
        "custom",
    ]
    header: str | None
    timestamp_header: str | None
    id_header: str | None
    signed: str | None
    value: str | None
    separator: str | None
    encoding: Literal["hex", "base64"] | None
    algorithm: Literal["hmac-sha256", "hmac-sha512", "ed25519"] | None
    key: Literal["text", "decoded"] | None
    timestamp_format: Literal["unix", "unix_ms", "rfc3339"] | None


class SignatureFormat(TypedDict):
    """What a signature style means."""

    signed: str
    value: str
    separator: str | None
    encoding: Literal["hex", "base64"]
    algorithm: Literal["hmac-sha256", "hmac-sha512", "ed25519"]
    key: Literal["text", "decoded"]
    timestamp_format: Literal["unix", "unix_ms", "rfc3339"]
    header: str
    timestamp_header: str | None
    id_header: str | None


class Body(TypedDict, total=False):
    """What the body of a request is."""

    format: Literal["envelope", "data", "cloudevents", "cloudevents-binary"]
    content_type: str | None
    source: str | None


class Alerts(TypedDict, total=False):
    """Thresholds; None disables one."""

    backlog_depth: int | None
    oldest_age_s: int | None
    drain_beyond_ttl: bool
    dead_letters: int | None


class DestinationChanges(TypedDict, total=False):
    """What an edit may set. None restores the default of a field."""

    url: str
    name: str | None
    event_types: list[str] | None
    rate_limits: list[RateLimit] | None
    min_interval_ms: int | None
    max_in_flight: int | None
    timeout_ms: int | None
    retry: Retry | None
    refusals_count: bool
    breaker: Breaker | None
    alerts: Alerts | None
    ordered: bool
    skip_after_attempts: int | None
    headers: dict[str, str | None] | None
    secret: str | None
    signature: Signature | None
    body: Body | None
    paused: bool


class NewDestination(DestinationChanges, total=False):
    """A destination to create. Only `url` is required."""

    tenant: str


class Destination(TypedDict):
    id: str
    url: str
    name: str
    tenant: str
    event_types: list[str]
    rate_limits: list[RateLimit]
    # The least time between the starts of two sends. None: none.
    min_interval_ms: int | None
    max_in_flight: int
    timeout_ms: int
    retry: Retry
    refusals_count: bool
    breaker: Breaker | None
    alerts: Alerts
    ordered: bool
    skip_after_attempts: int | None
    headers: dict[str, str]
    signature: Signature
    body: Body
    paused: bool
    paused_reason: str | None
    held_until: str | None
    held_reason: str | None
    breaker_state: Literal["closed", "open", "half_open"]
    breaker_reason: str | None
    next_probe_at: str | None
    previous_secret_valid_until: str | None
    signature_format: SignatureFormat
    public_key: str | None
    public_key_hex: str | None
    created_at: str
    updated_at: str


class CreatedDestination(Destination):
    secret: str


class Secret(TypedDict):
    secret: str
    public_key: str | None
    public_key_hex: str | None
    previous_valid_until: str | None


class Backlog(TypedDict):
    pending: int
    retrying: int
    delivering: int
    oldest_age_s: float | None
    configured_per_s: float | None
    effective_per_s: float | None
    achieved_per_s: float
    arrivals_per_s: float
    drain_eta_s: float | None
    drains: bool | None


class MaxWindow(TypedDict):
    """The fullest window of a period that ends in a bucket, and the most sends that the limits allow in it."""

    period: Period
    sends: int
    limit: int


class HistoryBucket(TypedDict):
    at: str
    sends: int
    delivered: int
    failed: int
    arrivals: int
    backlog: int
    max_window: list[MaxWindow]


class LimitChange(TypedDict):
    at: str
    rate_limits: list[RateLimit]
    min_interval_ms: int | None


class DestinationHistory(TypedDict):
    """`from` is the beginning of the first bucket."""

    step: str
    to: str
    data: list[HistoryBucket]
    windows_left_out: list[Period]
    limit_changes: list[LimitChange]


class HealthLatency(TypedDict):
    p50: float | None
    p95: float | None
    p99: float | None


class HealthAttempts(TypedDict):
    number: int
    deliveries: int


class RefusedWithinLimit(TypedDict):
    """The receiver refuses sends that keep the limits; `setting` of `value` helps."""

    cause: Literal["jitter", "spacing", "lower_limit"]
    sends: int
    refused: int
    setting: Literal["margin_ms", "min_interval_ms", "limit"]
    value: int
    period: str | None
    text: str


class DestinationHealth(TypedDict):
    window: str
    success_ratio: float | None
    latency_ms: HealthLatency
    attempts: list[HealthAttempts]
    attempts_made: int
    delivered: int
    failed: int
    dead: int
    last_success_at: str | None
    refused_within_limit: RefusedWithinLimit | None


class NewEvent(TypedDict, total=False):
    """An event of a batch. `type` and `data` are required."""

    type: str
    data: Any
    tenant: str
    idempotency_key: str
    destinations: list[str]
    deliver_at: str
    ttl_s: int
    coalesce_key: str
    ordering_key: str


class AcceptedEvent(TypedDict):
    id: str
    type: str
    tenant: str
    created_at: str
    deliveries: int
    duplicate: bool


class WaitsFor(TypedDict):
    """What keeps a due delivery from being sent; `until` is None for a pause."""

    reason: Literal["pause", "hold", "breaker"]
    until: str | None
    detail: str | None


class Delivery(TypedDict):
    id: str
    event_id: str
    event_type: str
    destination_id: str
    state: DeliveryState
    attempt_count: int
    next_attempt_at: str | None
    waits_for: WaitsFor | None
    expires_at: str | None
    created_at: str
    updated_at: str
    last_error: str | None
    last_error_kind: str | None
    last_status_code: int | None


class Attempt(TypedDict):
    id: str
    number: int
    sent_at: str | None
    status_code: int | None
    duration_ms: int
    error: str | None
    error_kind: str | None
    outcome: Literal["delivered", "retryable", "rejected", "unknown"]
    response_body: str | None
    signed_at: str | None
    response_headers: list[list[str]]
    remote_address: str | None
    connect_ms: int | None
    tls_ms: int | None


class DeliveryDetail(Delivery):
    attempts: list[Attempt]


class DeliveryGroup(TypedDict):
    """Deliveries of one destination that failed in the same way; `error` is the filter that finds them."""

    destination_id: str
    destination_name: str
    state: Literal["dead", "failed"]
    error: str | None
    status_code: int | None
    last_error: str | None
    deliveries: int
    newest_at: str
    oldest_at: str
    example_id: str


class DeliveryGroups(TypedDict):
    data: list[DeliveryGroup]
    scanned: int
    capped: bool


class Verified(TypedDict):
    valid: bool
    reason: str | None
    signed_at: str | None
    age_s: int | None


class _Event(TypedDict):
    id: str
    type: str
    tenant: str
    created_at: str
    idempotency_key: str | None


class Event(_Event, total=False):
    deliver_at: str
    expires_at: str
    coalesce_key: str
    ordering_key: str
    data: Any


class EventDetail(Event):
    deliveries: list[Delivery]


class ReplayFilter(TypedDict, total=False):
    """The deliveries to send again; without filters everything that is dead or failed."""

    states: list[Literal["dead", "failed", "cancelled", "delivered"]]
    destination: str
    tenant: str
    event_type: str
    error: str


class Replay(TypedDict):
    id: str
    state: Literal["running", "completed", "cancelled"]
    states: list[str]
    destination: str | None
    tenant: str | None
    event_type: str | None
    error: str | None
    total: int
    delivered: int
    failed: int
    cancelled: int
    remaining: int
    eta_s: int | None
    waits_for: WaitsFor | None
    created_at: str
    ended_at: str | None


class ActivitySubject(TypedDict):
    type: Literal["destination", "delivery", "replay", "key"]
    id: str
    name: str | None


class Activity(TypedDict):
    """What somebody did."""

    id: str
    at: str
    actor: str
    actor_kind: Literal["key", "setting", "anonymous", "system"]
    actor_key_id: str | None
    action: str
    tenant: str | None
    subject: ActivitySubject | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None


class PurgeFilter(TypedDict, total=False):
    """The waiting deliveries to cancel; without filters all of them."""

    states: list[Literal["pending", "retrying"]]
    event_type: str
    before: str


class _NewKey(TypedDict):
    name: str
    role: Role


class NewKey(_NewKey, total=False):
    tenants: list[str] | None
    expires_at: str | None


class ApiKey(TypedDict):
    id: str
    name: str
    role: Role
    tenants: list[str] | None
    created_at: str
    expires_at: str | None
    created_by: str | None
    created_by_key_id: str | None
    last_used_at: str | None


class CreatedApiKey(ApiKey):
    secret: str


class Window(TypedDict):
    start: str
    sends: int


class LimitAudit(TypedDict):
    limit: int
    period: Period
    burst: int
    worst_calendar_window: Window | None
    worst_sliding_window: Window | None
    violations: int
    possible_violations: int
    utilisation: float | None


class MinIntervalAudit(TypedDict):
    min_interval_ms: int
    least_gap_ms: float | None
    violations: int
    possible_violations: int


class Percentiles(TypedDict):
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Audit(TypedDict):
    sends: int
    rate_limits: list[LimitAudit]
    min_intervals: list[MinIntervalAudit]
    unknown_sends: list[dict[str, Any]]
    delivery_latency_ms: Percentiles


class Me(TypedDict):
    """Who sends the requests. `tenants` is None for all tenants."""

    name: str | None
    role: Role
    tenants: list[str] | None
    session_expires_at: str | None
    keys_required: bool
    version: str


class Binding(TypedDict):
    """The limit that binds."""

    limit: int
    period: Period


class OverviewDestination(TypedDict):
    id: str
    name: str
    url: str
    tenant: str
    rate_limits: list[RateLimit]
    min_interval_ms: int | None
    max_in_flight: int
    ordered: bool
    paused: bool
    paused_reason: str | None
    breaker_state: Literal["closed", "open", "half_open"]
    breaker_reason: str | None
    next_probe_at: str | None
    held_until: str | None
    held_reason: str | None


class OverviewRow(TypedDict):
    destination: OverviewDestination
    pending: int
    retrying: int
    delivering: int
    # Dead and failed deliveries that were not sent again.
    undelivered: int
    backlog: int
    oldest_age_s: float | None
    configured_per_s: float | None
    effective_per_s: float | None
    achieved_per_s: float
    arrivals_per_s: float
    utilisation: float | None
    binding: Binding | Literal["min_interval"] | None
    drain_eta_s: float | None
    drains: bool | None
    # Why it is not faster: limit, slow, held, breaker, paused, ordered or refused_within_limit. None: nothing waits.
    reason: str | None
    refused_within_limit: RefusedWithinLimit | None


class Estimate(TypedDict):
    effective_per_s: float | None
    binding: Binding | Literal["max_in_flight", "min_interval"] | None
    # What both take from the rate. None: nothing else bounds it.
    margins_cost_per_s: float | None
    min_interval_costs_per_s: float | None
    drain_eta_s: float | None
    drains: bool | None
    would_expire: bool
    first_expiry_at: str | None


class Preview(Estimate):
    # The same with the current limits.
    now: Estimate


class Backend(TypedDict):
    """A store or a queue."""

    kind: str
    is_reachable: bool
    answered_in_ms: float | None


class Process(TypedDict):
    id: int
    role: str | None
    version: str | None
    started_at: str | None


class Status(TypedDict):
    as_of: str
    version: str
    store: Backend
    queue: Backend
    queue_depths: dict[str, Any] | None
    processes: list[Process] | None
