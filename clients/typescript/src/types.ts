/**
 * The JSON of the API. A server may add fields, which are kept.
 *
 * `schema.ts` is made from the API's document by `cargo xtask client-types`; this file gives its parts the names under
 * which users import them.
 */

import type { components, operations } from "./schema.js";

type Schemas = components["schemas"];

/** What a list may be asked for. Pages are read by the client. */
type Filter<Name extends keyof operations> = operations[Name] extends { parameters: { query?: infer Query } }
  ? Omit<NonNullable<Query>, "limit" | "cursor">
  : never;

export type Period = Schemas["Period"];
export type Role = Schemas["Role"];
export type DeliveryState = Schemas["DeliveryState"];
export type BreakerState = Schemas["BreakerState"];

/** At most `limit` sends in every window of one `period`. */
export type RateLimit = Schemas["RateLimitRequest"];
export type Retry = Schemas["RetryRequest"];
export type Breaker = Schemas["BreakerRequest"];
export type Signature = Schemas["SignatureRequest"];
export type SignatureFormat = Schemas["SignatureFormat"];
export type Body = Schemas["BodyRequest"];
export type Alerts = Schemas["Alerts"];
/** A type of the catalogue. */
export type EventType = Schemas["EventType"];
export type EventTypeSettings = Schemas["EventTypeRequest"];
export type EventTypeFilter = Filter<"list_event_types">;
/** A budget that several destinations share. */
export type LimitGroup = Schemas["LimitGroup"];
export type LimitGroupRow = Schemas["LimitGroupRow"];
export type LimitGroupMember = Schemas["LimitGroupMember"];
export type LimitGroupHistory = Schemas["LimitGroupHistory"];
export type LimitGroupOverview = Schemas["LimitGroupOverview"];
/** The limit keys of a destination, with what waits of each and what it may send. */
export type LimitKeyList = Schemas["LimitKeyList"];
export type LimitKeyRow = Schemas["LimitKeyRow"];
export type LimitKeyQuery = Filter<"list_limit_keys"> & { limit?: number };
export type NewLimitGroup = Schemas["LimitGroupRequest"];
/** What an edit may set. Null restores the default of a field. */
export type LimitGroupChanges = Schemas["LimitGroupPatch"];
export type LimitGroupReplacement = Schemas["LimitGroupReplacement"];
export type Reservation = Schemas["Reservation"];
export type ReservationRequest = Schemas["ReservationRequest"];
export type ReservedSlot = Schemas["ReservedSlot"];
export type LimitGroupPreviewRequest = Schemas["LimitGroupPreviewRequest"];
export type Shedding = Schemas["Shedding"];
/** What is omitted or null is automatic. */
export type SheddingLimits = Schemas["SheddingRequest"];

export type NewDestination = Schemas["DestinationRequest"];
/** What an edit may set. Null restores the default of a field. */
export type DestinationChanges = Schemas["DestinationPatch"];
export type DestinationReplacement = Schemas["DestinationReplacement"];
export type Destination = Schemas["Destination"];
export type CreatedDestination = Schemas["CreatedDestination"];
export type DestinationFilter = Filter<"list_destinations">;
export type Secret = Schemas["Secret"];
export type Backlog = Schemas["Backlog"];
export type DestinationHistory = Schemas["History"];
export type HistoryBucket = Schemas["HistoryBucket"];
export type HistoryQuery = Filter<"show_history">;
export type RateHistory = Schemas["RateHistory"];
export type RateChange = Schemas["RateChange"];
export type RateQuery = Filter<"show_rate"> & { limit?: number; cursor?: string };
export type MaxWindow = Schemas["MaxWindow"];
export type LimitChange = Schemas["LimitChange"];
export type DestinationHealth = Schemas["DestinationHealth"];
export type HealthLatency = Schemas["HealthLatency"];
export type HealthAttempts = Schemas["HealthAttempts"];
export type HealthQuery = Filter<"show_destination_health">;
/** Conditions on the `data` of an event. */
export type DataFilter = Schemas["DataFilter"];
export type FilterCondition = Schemas["FilterCondition"];
export type FilterTried = Schemas["FilterTried"];
export type HeldDestination = Schemas["HeldDestination"];
export type HeldLimitGroup = Schemas["HeldLimitGroup"];
export type Hold = Schemas["Hold"];
export type HoldRequest = Schemas["HoldRequest"];
export type OverriddenDestination = Schemas["OverriddenDestination"];
export type OverriddenLimitGroup = Schemas["OverriddenLimitGroup"];
export type Override = Schemas["Override"];
export type OverrideRequest = Schemas["LimitsOverrideRequest"];
export type Preview = Schemas["Preview"];
export type PreviewRequest = Schemas["PreviewRequest"];
export type Simulation = Schemas["Simulation"];
export type SimulateRequest = Schemas["SimulateRequest"];
export type Estimate = Schemas["Forecast"];
export type PurgeFilter = Schemas["PurgeRequest"];
export type DiscardFilter = Schemas["DiscardRequest"];
export type SecretRotation = Schemas["RotateSecretRequest"];

/** `data` is any JSON; integers beyond 2^53 are `bigint`. The client makes an `idempotency_key` if there is none. */
export type NewEvent = Schemas["EventRequest"];
export type AcceptedEvent = Schemas["AcceptedEvent"];
export type ActiveAlert = Schemas["ActiveAlert"];
export type AlertData = Schemas["AlertData"];
/** `data` is any JSON; integers beyond 2^53 are `bigint`. */
export type Event = Schemas["Event"];
export type EventDetail = Schemas["EventDetail"];
export type EventFilter = Filter<"list_events">;

export type WaitsFor = Schemas["WaitsFor"];
export type Delivery = Schemas["Delivery"];
export type DeliveryDetail = Omit<Schemas["DeliveryDetail"], "attempts"> & { attempts: Attempt[] };
export type DeliveryFilter = Omit<Filter<"list_deliveries">, "state" | "count"> & {
  state?: DeliveryState | DeliveryState[];
};
/** `response_headers` are names and values. */
export type Attempt = Omit<Schemas["Attempt"], "response_headers"> & { response_headers: [string, string][] };
export type DeliveryGroup = Schemas["DeliveryGroup"];
export type DeliveryGroups = Schemas["DeliveryGroups"];
/** How many rows a list has. `capped`: there are more than `value`. */
export type ListCount = Schemas["ListCount"];
export type GroupFilter = Filter<"group_deliveries">;

/** A request as it was received, and the secret or the destination to verify it with. */
export type ReceivedRequest = Schemas["VerifyRequest"];
export type Verified = Schemas["Verified"];

/** From an instant to another one, RFC 3339. */
export type Range = Omit<Filter<"show_audit">, "key">;

/** The deliveries to send again; without filters everything that is dead or failed. */
export type ReplayFilter = Schemas["ReplayRequest"];
export type Replay = Schemas["Replay"];

export type Activity = Schemas["Activity"];
export type ActivitySubject = Schemas["ActivitySubject"];
export type ActivityFilter = Filter<"list_activity">;

export type NewKey = Schemas["KeyRequest"];
export type ApiKey = Schemas["ApiKey"];
export type CreatedApiKey = Schemas["CreatedApiKey"];
export type Me = Schemas["Me"];

export type Window = Schemas["Window"];
export type LimitAudit = Schemas["LimitAudit"];
export type MinIntervalAudit = Schemas["MinIntervalAudit"];
export type Percentiles = Schemas["Latency"];
export type UnknownSend = Schemas["UnknownSend"];
export type Audit = Schemas["Audit"];

export type Binding = Schemas["BindingLimit"];
export type OverviewDestination = Schemas["BriefDestination"];
export type OverviewRow = Schemas["OverviewRow"];
export type OverviewHistory = Schemas["OverviewHistory"];
export type OverviewFilter = Filter<"show_overview">;
export type RefusedWithinLimit = Schemas["RefusedWithinLimit"];

export type Backend = Schemas["Backend"];
export type Process = Schemas["Process"];
export type QueueDepths = Schemas["QueueDepths"];
export type Status = Schemas["InstallationStatus"];
