/** The JSON of the API. A server may add fields, which are kept. */

export type Period = "second" | "minute" | "hour" | "day";
export type Role = "ingest" | "read" | "operate" | "admin";
export type DeliveryState =
  | "pending"
  | "delivering"
  | "retrying"
  | "delivered"
  | "failed"
  | "dead"
  | "cancelled"
  | "superseded"
  | "expired";

/**
 * At most `limit` sends in every window of one `period`. `burst` is 1 by default, `margin_ms` is 0. With a margin the
 * sends fit into a period that is longer by it.
 */
export interface RateLimit {
  limit: number;
  period: Period;
  burst?: number;
  margin_ms?: number;
}

export interface Retry {
  max_attempts?: number;
  max_age_s?: number;
  base_ms?: number;
  cap_ms?: number;
  schedule_ms?: number[] | null;
}

export interface Breaker {
  failure_ratio?: number;
  min_attempts?: number;
  consecutive?: number;
  open_ms?: number;
  open_max_ms?: number;
  pause_after_s?: number | null;
}

/** A style of Standard Webhooks, of a well-known sender, or `custom` with a format of its own. */
export interface Signature {
  style?:
    | "standard"
    | "timestamped"
    | "prefixed"
    | "stripe"
    | "github"
    | "slack"
    | "zoom"
    | "shopify"
    | "zendesk"
    | "square"
    | "razorpay"
    | "linear"
    | "lemon-squeezy"
    | "pagerduty"
    | "paddle"
    | "discord"
    | "svix"
    | "twitch"
    | "custom";
  header?: string | null;
  timestamp_header?: string | null;
  id_header?: string | null;
  signed?: string | null;
  value?: string | null;
  separator?: string | null;
  encoding?: "hex" | "base64" | null;
  algorithm?: "hmac-sha256" | "hmac-sha512" | "ed25519" | null;
  key?: "text" | "decoded" | null;
  timestamp_format?: "unix" | "unix_ms" | "rfc3339" | null;
}

/** What a signature style means. */
export interface SignatureFormat {
  signed: string;
  value: string;
  separator: string | null;
  encoding: "hex" | "base64";
  algorithm: "hmac-sha256" | "hmac-sha512" | "ed25519";
  key: "text" | "decoded";
  timestamp_format: "unix" | "unix_ms" | "rfc3339";
  header: string;
  timestamp_header: string | null;
  id_header: string | null;
}

/** What the body of a request is. */
export interface Body {
  format?: "envelope" | "data" | "cloudevents" | "cloudevents-binary";
  content_type?: string | null;
  source?: string | null;
}

/** Thresholds; null disables one. */
export interface Alerts {
  backlog_depth?: number | null;
  oldest_age_s?: number | null;
  drain_beyond_ttl?: boolean;
  dead_letters?: number | null;
}

/** What an edit may set. Null restores the default of a field. */
export interface DestinationChanges {
  url?: string;
  name?: string | null;
  event_types?: string[] | null;
  rate_limits?: RateLimit[] | null;
  min_interval_ms?: number | null;
  max_in_flight?: number | null;
  timeout_ms?: number | null;
  retry?: Retry | null;
  refusals_count?: boolean;
  breaker?: Breaker | null;
  alerts?: Alerts | null;
  ordered?: boolean;
  skip_after_attempts?: number | null;
  headers?: Record<string, string | null> | null;
  secret?: string | null;
  signature?: Signature | null;
  body?: Body | null;
  paused?: boolean;
}

export interface NewDestination extends DestinationChanges {
  url: string;
  tenant?: string;
}

export interface Destination {
  id: string;
  url: string;
  name: string;
  tenant: string;
  event_types: string[];
  rate_limits: Required<RateLimit>[];
  /** The least time between the starts of two sends; null: none. */
  min_interval_ms: number | null;
  max_in_flight: number;
  timeout_ms: number;
  retry: Retry;
  refusals_count: boolean;
  breaker: Breaker | null;
  alerts: Alerts;
  ordered: boolean;
  skip_after_attempts: number | null;
  headers: Record<string, string>;
  signature: Signature;
  body: Body;
  paused: boolean;
  paused_reason: string | null;
  held_until: string | null;
  held_reason: string | null;
  breaker_state: "closed" | "open" | "half_open";
  breaker_reason: string | null;
  next_probe_at: string | null;
  previous_secret_valid_until: string | null;
  signature_format: SignatureFormat;
  public_key: string | null;
  public_key_hex: string | null;
  created_at: string;
  updated_at: string;
}

export interface CreatedDestination extends Destination {
  secret: string;
}

export interface Secret {
  secret: string;
  public_key: string | null;
  public_key_hex: string | null;
  previous_valid_until: string | null;
}

export interface Backlog {
  pending: number;
  retrying: number;
  delivering: number;
  oldest_age_s: number | null;
  configured_per_s: number | null;
  effective_per_s: number | null;
  achieved_per_s: number;
  arrivals_per_s: number;
  drain_eta_s: number | null;
  drains: boolean | null;
}

/** A bucket. `max_window` has the fullest window of each limit, and the most sends that the limits allow in it. */
export interface HistoryBucket {
  at: string;
  sends: number;
  delivered: number;
  failed: number;
  arrivals: number;
  backlog: number;
  max_window: { period: Period; sends: number; limit: number }[];
}

export interface DestinationHistory {
  step: "10s" | "1m" | "1h";
  from: string;
  to: string;
  data: HistoryBucket[];
  windows_left_out: Period[];
  limit_changes: { at: string; rate_limits: Required<RateLimit>[]; min_interval_ms: number | null }[];
}

export interface DestinationHealth {
  window: "1h" | "24h" | "7d";
  success_ratio: number | null;
  latency_ms: { p50: number | null; p95: number | null; p99: number | null };
  attempts: { number: number; deliveries: number }[];
  attempts_made: number;
  delivered: number;
  failed: number;
  dead: number;
  last_success_at: string | null;
  refused_within_limit: RefusedWithinLimit | null;
}

/** Times are RFC 3339. */
export interface NewEvent {
  type: string;
  /** Integers beyond 2^53 are `bigint`. */
  data: unknown;
  tenant?: string;
  /** Made by the client if absent, so that retries store the event once. */
  idempotency_key?: string;
  destinations?: string[];
  deliver_at?: string;
  ttl_s?: number;
  coalesce_key?: string;
  ordering_key?: string;
}

export interface AcceptedEvent {
  id: string;
  type: string;
  tenant: string;
  created_at: string;
  deliver_at?: string;
  expires_at?: string;
  deliveries: number;
  duplicate: boolean;
}

export interface Event {
  id: string;
  type: string;
  tenant: string;
  created_at: string;
  idempotency_key: string | null;
  deliver_at?: string;
  expires_at?: string;
  coalesce_key?: string;
  ordering_key?: string;
  /** Integers beyond 2^53 are `bigint`. */
  data?: unknown;
}

export interface EventDetail extends Event {
  deliveries: Delivery[];
}

/** What keeps a due delivery from being sent; `until` is null for a pause. */
export interface WaitsFor {
  reason: "pause" | "hold" | "breaker";
  until: string | null;
  detail: string | null;
}

export interface Delivery {
  id: string;
  event_id: string;
  event_type: string;
  destination_id: string;
  state: DeliveryState;
  attempt_count: number;
  next_attempt_at: string | null;
  waits_for: WaitsFor | null;
  expires_at: string | null;
  created_at: string;
  updated_at: string;
  last_error: string | null;
  last_error_kind: string | null;
  last_status_code: number | null;
}

export interface Attempt {
  id: string;
  number: number;
  sent_at: string | null;
  status_code: number | null;
  duration_ms: number;
  error: string | null;
  error_kind: string | null;
  outcome: "delivered" | "retryable" | "rejected" | "unknown";
  response_body: string | null;
  signed_at: string | null;
  response_headers: [string, string][];
  remote_address: string | null;
  connect_ms: number | null;
  tls_ms: number | null;
}

/** Deliveries of one destination that failed in the same way; `error` is the filter that finds them. */
export interface DeliveryGroup {
  destination_id: string;
  destination_name: string;
  state: "dead" | "failed";
  error: string | null;
  status_code: number | null;
  last_error: string | null;
  deliveries: number;
  newest_at: string;
  oldest_at: string;
  example_id: string;
}

export interface DeliveryGroups {
  data: DeliveryGroup[];
  scanned: number;
  capped: boolean;
}

/** A request as it was received, and the secret or the destination to verify it with. */
export interface ReceivedRequest {
  destination?: string;
  secret?: string;
  signature?: Signature;
  url?: string;
  headers: Record<string, string>;
  body: string;
  tolerance_s?: number;
}

export interface Verified {
  valid: boolean;
  reason: string | null;
  signed_at: string | null;
  age_s: number | null;
}

export interface DeliveryDetail extends Delivery {
  attempts: Attempt[];
}

/** From an instant to another one, RFC 3339. */
export interface Range {
  from?: string;
  to?: string;
}

export interface HistoryQuery extends Range {
  step?: "10s" | "1m" | "1h";
}

export interface EventFilter extends Range {
  type?: string;
  tenant?: string;
  /** The list has the data of events only with this. */
  include?: "data";
}

export interface DeliveryFilter extends Range {
  destination?: string;
  event?: string;
  state?: DeliveryState | DeliveryState[];
  tenant?: string;
  event_type?: string;
  error?: string;
  order?: "newest" | "oldest";
}

export interface GroupFilter extends Range {
  destination?: string;
  state?: "dead" | "failed" | "dead,failed";
  tenant?: string;
  event_type?: string;
  error?: string;
}

/** The deliveries to send again; without filters everything that is dead or failed. */
export interface ReplayFilter extends Range {
  states?: ("dead" | "failed" | "cancelled" | "delivered")[];
  destination?: string;
  tenant?: string;
  event_type?: string;
  error?: string;
}

export interface Replay {
  id: string;
  state: "running" | "completed" | "cancelled";
  states: string[];
  destination: string | null;
  tenant: string | null;
  event_type: string | null;
  error: string | null;
  from: string | null;
  to: string | null;
  total: number;
  delivered: number;
  failed: number;
  cancelled: number;
  remaining: number;
  eta_s: number | null;
  waits_for: WaitsFor | null;
  created_at: string;
  ended_at: string | null;
}

export interface ActivityFilter extends Range {
  destination?: string;
  /** A name, or the id of a key. */
  actor?: string;
}

/** What somebody did. */
export interface Activity {
  id: string;
  at: string;
  actor: string;
  actor_kind: "key" | "setting" | "anonymous" | "system";
  actor_key_id: string | null;
  action: string;
  tenant: string | null;
  subject: { type: "destination" | "delivery" | "replay" | "key"; id: string; name: string | null } | null;
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
  request_id: string | null;
}

/** The waiting deliveries to cancel; without filters all of them. */
export interface PurgeFilter {
  states?: ("pending" | "retrying")[];
  event_type?: string;
  before?: string;
}

export interface NewKey {
  name: string;
  role: Role;
  tenants?: string[] | null;
  expires_at?: string | null;
}

export interface ApiKey {
  id: string;
  name: string;
  role: Role;
  tenants: string[] | null;
  created_at: string;
  expires_at: string | null;
  created_by: string | null;
  created_by_key_id: string | null;
  last_used_at: string | null;
}

export interface CreatedApiKey extends ApiKey {
  secret: string;
}

export interface Window {
  start: string;
  sends: number;
}

export interface LimitAudit extends Required<RateLimit> {
  worst_calendar_window: Window | null;
  worst_sliding_window: Window | null;
  violations: number;
  possible_violations: number;
  utilisation: number | null;
}

export interface Audit {
  sends: number;
  rate_limits: LimitAudit[];
  min_intervals: {
    min_interval_ms: number;
    least_gap_ms: number | null;
    violations: number;
    possible_violations: number;
  }[];
  unknown_sends: { delivery_id: string; number: number; latest_at: string }[];
  delivery_latency_ms: { p50: number | null; p95: number | null; p99: number | null; max: number | null };
}

/** Who sends the requests. `tenants` is null for all tenants. */
export interface Me {
  name: string | null;
  role: Role;
  tenants: string[] | null;
  session_expires_at: string | null;
  keys_required: boolean;
  version: string;
}

export interface Binding {
  limit: number;
  period: Period;
}

export interface OverviewRow {
  destination: Pick<
    Destination,
    | "id"
    | "name"
    | "url"
    | "tenant"
    | "rate_limits"
    | "min_interval_ms"
    | "max_in_flight"
    | "ordered"
    | "paused"
    | "paused_reason"
    | "breaker_state"
    | "breaker_reason"
    | "next_probe_at"
    | "held_until"
    | "held_reason"
  >;
  pending: number;
  retrying: number;
  delivering: number;
  /** Dead and failed deliveries that were not sent again. */
  undelivered: number;
  backlog: number;
  oldest_age_s: number | null;
  configured_per_s: number | null;
  effective_per_s: number | null;
  achieved_per_s: number;
  arrivals_per_s: number;
  utilisation: number | null;
  binding: Binding | "min_interval" | null;
  drain_eta_s: number | null;
  drains: boolean | null;
  /** Why it is not faster; null: nothing waits. */
  reason: "limit" | "slow" | "held" | "breaker" | "paused" | "ordered" | "refused_within_limit" | null;
  refused_within_limit: RefusedWithinLimit | null;
}

/** The receiver refuses sends that keep the limits; `setting` of `value` helps. */
export interface RefusedWithinLimit {
  cause: "jitter" | "spacing" | "lower_limit";
  sends: number;
  refused: number;
  setting: "margin_ms" | "min_interval_ms" | "limit";
  value: number;
  period: Period | null;
  text: string;
}

export interface Estimate {
  effective_per_s: number | null;
  binding: Binding | "max_in_flight" | "min_interval" | null;
  /** What both take from the rate; null: nothing else bounds it. */
  margins_cost_per_s: number | null;
  min_interval_costs_per_s: number | null;
  drain_eta_s: number | null;
  drains: boolean | null;
  would_expire: boolean;
  first_expiry_at: string | null;
}

export interface Preview extends Estimate {
  /** The same with the current limits. */
  now: Estimate;
}

/** A store or a queue. */
export interface Backend {
  kind: string;
  is_reachable: boolean;
  answered_in_ms: number | null;
}

export interface Process {
  id: number;
  role: string | null;
  version: string | null;
  started_at: string | null;
}

export interface Status {
  as_of: string;
  version: string;
  store: Backend;
  queue: Backend;
  queue_depths: Record<string, unknown> | null;
  processes: Process[] | null;
}
