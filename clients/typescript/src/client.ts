/** The client: one group of methods for each resource of the API. */

import { Limit } from "./slots.js";
import { ApiError, BatchRefused, type Problem, refusal } from "./errors.js";
import { type Answer, type Method, type Parts, type RequestOptions, Transport } from "./transport.js";
import type {
  AcceptedEvent,
  Activity,
  ActivityFilter,
  ActiveAlert,
  Alerts,
  ApiKey,
  Audit,
  Backlog,
  CreatedApiKey,
  CreatedDestination,
  DataFilter,
  Delivery,
  DeliveryDetail,
  DeliveryFilter,
  DeliveryGroups,
  DiscardFilter,
  Destination,
  DestinationChanges,
  DestinationFilter,
  DestinationHealth,
  DestinationHistory,
  DestinationReplacement,
  Event,
  EventDetail,
  EventFilter,
  EventType,
  EventTypeFilter,
  EventTypeSettings,
  FilterTried,
  GroupFilter,
  HealthQuery,
  HeldDestination,
  HeldLimitGroup,
  HistoryQuery,
  HoldRequest,
  LimitGroup,
  LimitGroupChanges,
  LimitGroupHistory,
  LimitGroupOverview,
  LimitGroupPreviewRequest,
  LimitGroupReplacement,
  LimitGroupRow,
  LimitKeyList,
  LimitKeyQuery,
  ListCount,
  Me,
  NewDestination,
  NewEvent,
  NewKey,
  NewLimitGroup,
  OverriddenDestination,
  OverriddenLimitGroup,
  OverrideRequest,
  OverviewFilter,
  OverviewHistory,
  OverviewRow,
  Preview,
  PreviewRequest,
  PurgeFilter,
  Range,
  RateHistory,
  RateQuery,
  ReceivedRequest,
  Replay,
  ReplayFilter,
  Reservation,
  ReservationRequest,
  ReservedSlot,
  Secret,
  SecretRotation,
  Shedding,
  SheddingLimits,
  SimulateRequest,
  Simulation,
  Status,
  Verified,
} from "./types.js";

export interface Options {
  /** The server; by default `http://127.0.0.1:8080`. */
  url?: string;
  /** An API key. */
  key?: string;
  /** Time limit of each attempt; by default 30 s. */
  timeoutMs?: number;
  /** Attempts after the first one; by default 4. */
  retries?: number;
  /** For tests. */
  fetch?: typeof fetch;
  sleep?: (ms: number) => Promise<void>;
}

/** The answers of a batch, in the order of its events. */
export type BatchResult = AcceptedEvent | ApiError;

const PAGE = 200;

/** The rows of a list, newest first. Pages are read while it is iterated: `for await (const row of pages)`. */
export class Pages<Row> implements AsyncIterable<Row> {
  constructor(
    private readonly read: (query: object) => Promise<unknown>,
    private readonly query: object,
  ) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<Row> {
    let cursor: string | null | undefined;
    do {
      const page: { data: Row[]; next_cursor: string | null } = await this.page(PAGE, cursor ?? undefined);
      yield* page.data;
      cursor = page.next_cursor;
    } while (cursor !== null);
  }

  /** One page, and the cursor of the next one; null after the last page. */
  async page(limit = 50, cursor?: string): Promise<{ data: Row[]; next_cursor: string | null }> {
    return (await this.read({ ...this.query, limit, cursor })) as { data: Row[]; next_cursor: string | null };
  }
}

class Resource {
  constructor(protected readonly transport: Transport) {}

  protected send(method: Method, route: string, parts?: Parts, options?: RequestOptions): Promise<Answer> {
    return this.transport.send(method, route, parts, options);
  }

  protected async call<T>(method: Method, route: string, parts?: Parts, options?: RequestOptions): Promise<T> {
    return (await this.send(method, route, parts, options)).body as T;
  }

  protected pages<Row>(method: Method, route: string, query: object): Pages<Row> {
    return new Pages((paged) => this.call(method, route, {}, { query: paged }), query);
  }
}

/** A client of one server. */
export class Weir extends Resource {
  readonly events: Events;
  readonly destinations: Destinations;
  readonly deliveries: Deliveries;
  readonly replays: Replays;
  readonly keys: Keys;
  readonly alerts: AlertThresholds;
  readonly shedding: LoadShedding;
  readonly eventTypes: EventTypes;
  readonly limitGroups: LimitGroups;
  readonly activity: ActivityLog;
  private readonly sleep: (ms: number) => Promise<void>;

  constructor(options: Options = {}) {
    const sleep = options.sleep ?? ((ms: number) => new Promise<void>((done) => setTimeout(done, ms)));
    const transport = new Transport({
      url: options.url ?? "http://127.0.0.1:8080",
      key: options.key,
      timeoutMs: options.timeoutMs ?? 30_000,
      retries: options.retries ?? 4,
      fetch: options.fetch ?? globalThis.fetch,
      sleep,
    });
    super(transport);
    this.sleep = sleep;
    this.events = new Events(transport);
    this.destinations = new Destinations(transport);
    this.deliveries = new Deliveries(transport);
    this.replays = new Replays(transport);
    this.keys = new Keys(transport);
    this.alerts = new AlertThresholds(transport);
    this.shedding = new LoadShedding(transport);
    this.eventTypes = new EventTypes(transport);
    this.limitGroups = new LimitGroups(transport);
    this.activity = new ActivityLog(transport);
  }

  /**
   * A limit group, by id or name, from which this program takes slots for its own calls. The tenant `*`: a group whose
   * members may be of any tenant.
   */
  limit(group: string, options: { tenant?: string } = {}): Limit {
    return new Limit(this.transport, this.sleep, group, options.tenant ?? "default");
  }

  /** Every destination with its backlog, rates and the reason why it is not faster. */
  overview(filter: OverviewFilter = {}): Pages<OverviewRow> {
    return this.pages("GET", "/v1/overview", filter);
  }

  /** What arrived, was sent, failed and waited at all destinations in the last half hour, by minute. */
  overviewHistory(filter: { tenant?: string } = {}): Promise<OverviewHistory> {
    return this.call("GET", "/v1/overview/history", {}, { query: filter });
  }

  /** The processes, the store and the queue. */
  status(): Promise<Status> {
    return this.call("GET", "/v1/status");
  }

  /** The rights of the key. */
  me(): Promise<Me> {
    return this.call("GET", "/v1/me");
  }

  /** Whether a received request is signed with the secret, or with one of the destination. */
  verify(request: ReceivedRequest): Promise<Verified> {
    return this.call("POST", "/v1/verify", {}, { body: request, repeatable: true });
  }
}

class Events extends Resource {
  /** Posts an event. Without an `idempotency_key` one is made, so that retries store it once. */
  post(event: NewEvent): Promise<AcceptedEvent> {
    return this.call("POST", "/v1/events", {}, { body: keyed(event), repeatable: true });
  }

  /**
   * Posts up to 1000 events. Each stands alone: the others are stored if one is refused.
   *
   * Rejects with `BatchRefused` if an event was refused. With `partial` the answer has the results of all events instead:
   * in the place of a refused one is its error. Rejects with `InvalidRequest` if no event was valid.
   */
  postBatch(events: NewEvent[], options?: { partial?: false }): Promise<AcceptedEvent[]>;
  postBatch(events: NewEvent[], options: { partial: boolean }): Promise<BatchResult[]>;
  async postBatch(events: NewEvent[], options: { partial?: boolean } = {}): Promise<BatchResult[]> {
    const request = { body: { events: events.map(keyed) }, repeatable: true };
    const answer = await this.call<{ events: (AcceptedEvent | { error: Problem })[] }>(
      "POST", "/v1/events/batch", {}, request,
    );
    const results = answer.events.map((item) =>
      "error" in item ? refusal(item.error.status ?? 422, item.error) : item,
    );
    const refused = new Map<number, ApiError>();
    results.forEach((result, index) => {
      if (result instanceof ApiError) refused.set(index, result);
    });
    if (refused.size > 0 && options.partial !== true) throw new BatchRefused(results, refused);
    return results;
  }

  list(filter: EventFilter = {}): Pages<Event> {
    return this.pages("GET", "/v1/events", filter);
  }

  get(id: string): Promise<EventDetail> {
    return this.call("GET", "/v1/events/{id}", { id });
  }
}

class Destinations extends Resource {
  /** Creates a destination. The answer has its secret. */
  create(destination: NewDestination): Promise<CreatedDestination> {
    return this.call("POST", "/v1/destinations", {}, once(destination));
  }

  list(filter: DestinationFilter = {}): Pages<Destination> {
    return this.pages("GET", "/v1/destinations", filter);
  }

  async get(id: string): Promise<Destination> {
    return (await this.getVersion(id)).destination;
  }

  /** The destination and its version, for `ifMatch`. */
  async getVersion(id: string): Promise<{ destination: Destination; version: string }> {
    const answer = await this.send("GET", "/v1/destinations/{id}", { id });
    return { destination: answer.body as Destination, version: answer.headers.get("etag") ?? "" };
  }

  /** Changes the given fields. With `ifMatch`, only if the destination still has that version. */
  edit(id: string, changes: DestinationChanges, options: { ifMatch?: string } = {}): Promise<Destination> {
    return this.call("PATCH", "/v1/destinations/{id}", { id }, { body: changes, headers: ifMatch(options) });
  }

  /** Creates the destination with this name, or replaces all its settings. An omitted one gets its default. */
  put(
    tenant: string,
    name: string,
    settings: DestinationReplacement | DestinationChanges,
    options: { ifMatch?: string; onlyCreate?: boolean } = {},
  ): Promise<Destination> {
    const headers = { ...ifMatch(options), ...(options.onlyCreate ? { "if-none-match": "*" } : {}) };
    const parts = { tenant, name };
    return this.call("PUT", "/v1/destinations/by-name/{tenant}/{name}", parts, { body: settings, headers });
  }

  /** Deletes the destination and cancels what waits for it. The history stays. */
  async delete(id: string, options: { ifMatch?: string } = {}): Promise<void> {
    await this.send("DELETE", "/v1/destinations/{id}", { id }, { headers: ifMatch(options) });
  }

  /** What waits, and how fast it is sent; with `key` of this limit key alone. */
  backlog(id: string, query: { key?: string } = {}): Promise<Backlog> {
    return this.call("GET", "/v1/destinations/{id}/backlog", { id }, { query: { ...query } });
  }

  /** What happened in each bucket of a range; by default the last 15 minutes in steps of 10 s. */
  history(id: string, query: HistoryQuery = {}): Promise<DestinationHistory> {
    return this.call("GET", "/v1/destinations/{id}/history", { id }, { query });
  }

  /** The adaptive pace with its reason, and one page of its changes, newest first. */
  rate(id: string, query: RateQuery = {}): Promise<RateHistory> {
    return this.call("GET", "/v1/destinations/{id}/rate", { id }, { query });
  }

  /** How the attempts of the last time went; by default of the last hour. */
  health(id: string, query: HealthQuery = {}): Promise<DestinationHealth> {
    return this.call("GET", "/v1/destinations/{id}/health", { id }, { query });
  }

  /** The audit of the recorded send starts, by default of the last day; with `key` of this limit key alone. */
  audit(id: string, query: Range & { key?: string } = {}): Promise<Audit> {
    return this.call("GET", "/v1/destinations/{id}/audit", { id }, { query });
  }

  /** Backlog, rates and the reason why it is not faster. */
  overview(id: string): Promise<OverviewRow> {
    return this.call("GET", "/v1/destinations/{id}/overview", { id });
  }

  /** What other limits would do to the backlog. Nothing is changed. */
  preview(id: string, limits: PreviewRequest = {}): Promise<Preview> {
    return this.call("POST", "/v1/destinations/{id}/preview", { id }, { body: limits, repeatable: true });
  }

  /** What other limits would have done with the recorded deliveries. Nothing is changed. */
  simulate(id: string, tried: SimulateRequest = {}): Promise<Simulation> {
    return this.call("POST", "/v1/destinations/{id}/simulate", { id }, { body: tried, repeatable: true });
  }

  /** Whether an event with this `data` would pass the filter, or that of the destination. Nothing is changed. */
  tryFilter(id: string, data: unknown, filter?: DataFilter): Promise<FilterTried> {
    const body = filter === undefined ? { data } : { data, filter };
    return this.call("POST", "/v1/destinations/{id}/filter/try", { id }, { body, repeatable: true });
  }

  /** Ends the wait that the receiver has asked for. */
  release(id: string): Promise<Destination> {
    return this.call("POST", "/v1/destinations/{id}/release", { id }, { repeatable: true });
  }

  /** Other limits for a while, in place of those of the settings. They end by themselves. */
  override(id: string, override: OverrideRequest, options: { ifMatch?: string } = {}): Promise<OverriddenDestination> {
    const request = { body: override, headers: ifMatch(options) };
    return this.call("POST", "/v1/destinations/{id}/override", { id }, request);
  }

  /** Ends an override before its end. */
  endOverride(id: string): Promise<Destination> {
    return this.call("DELETE", "/v1/destinations/{id}/override", { id });
  }

  /** Sends nothing for a while: a pause that ends by itself. */
  hold(id: string, hold: HoldRequest, options: { ifMatch?: string } = {}): Promise<HeldDestination> {
    return this.call("POST", "/v1/destinations/{id}/hold", { id }, { body: hold, headers: ifMatch(options) });
  }

  /** Ends a hold before its end. A wait that the receiver has asked for stays. */
  endHold(id: string): Promise<Destination> {
    return this.call("DELETE", "/v1/destinations/{id}/hold", { id });
  }

  /** The limit keys that wait or have an override, with what each may send. */
  limitKeys(id: string, query: LimitKeyQuery = {}): Promise<LimitKeyList> {
    return this.call("GET", "/v1/destinations/{id}/keys", { id }, { query: { ...query } });
  }

  /** Sends nothing of this limit key; its events wait. */
  pauseKey(id: string, key: string, options: { ifMatch?: string } = {}): Promise<Destination> {
    return this.call("POST", "/v1/destinations/{id}/keys/{key}/pause", { id, key }, { headers: ifMatch(options) });
  }

  /** Sends a paused limit key again. */
  resumeKey(id: string, key: string, options: { ifMatch?: string } = {}): Promise<Destination> {
    return this.call("POST", "/v1/destinations/{id}/keys/{key}/resume", { id, key }, { headers: ifMatch(options) });
  }

  /** Sends a test event, and returns its delivery. */
  test(id: string): Promise<DeliveryDetail> {
    return this.call("POST", "/v1/destinations/{id}/test", { id }, once());
  }

  /** Cancels waiting deliveries, and returns their number. */
  async purge(id: string, filter: PurgeFilter = {}): Promise<number> {
    const options = { body: filter };
    return (await this.call<{ cancelled: number }>("POST", "/v1/destinations/{id}/purge", { id }, options)).cancelled;
  }

  /** How many deliveries a purge would cancel. */
  async countPurge(id: string, filter: PurgeFilter = {}): Promise<number> {
    const options = { body: filter, query: { dry_run: true }, repeatable: true };
    return (await this.call<{ total: number }>("POST", "/v1/destinations/{id}/purge", { id }, options)).total;
  }

  secret(id: string): Promise<Secret> {
    return this.call("GET", "/v1/destinations/{id}/secret", { id });
  }

  /**
   * Makes a new secret. The previous one signs too for `overlap_s`, by default a day. Meanwhile another rotation needs
   * `force`, and ends the overlap.
   */
  rotateSecret(id: string, rotation: SecretRotation = {}): Promise<Secret> {
    return this.call("POST", "/v1/destinations/{id}/rotate-secret", { id }, once(rotation));
  }
}

class Deliveries extends Resource {
  list(filter: DeliveryFilter = {}): Pages<Delivery> {
    return this.pages("GET", "/v1/deliveries", filter);
  }

  /** How many deliveries match. */
  async count(filter: Omit<DeliveryFilter, "order"> = {}): Promise<ListCount> {
    const query = { ...filter, count: true, limit: 1 };
    return (await this.call<{ count: ListCount }>("GET", "/v1/deliveries", {}, { query })).count;
  }

  /** What failed, by destination, state and error, the largest group first. */
  groups(filter: GroupFilter = {}): Promise<DeliveryGroups> {
    return this.call("GET", "/v1/deliveries/groups", {}, { query: { ...filter } });
  }

  /** The delivery with its attempts. */
  get(id: string): Promise<DeliveryDetail> {
    return this.call("GET", "/v1/deliveries/{id}", { id });
  }

  /** Sends the delivery again now, within the limits. */
  retry(id: string): Promise<DeliveryDetail> {
    return this.call("POST", "/v1/deliveries/{id}/retry", { id });
  }

  /** Cancels a waiting delivery. */
  cancel(id: string): Promise<DeliveryDetail> {
    return this.call("POST", "/v1/deliveries/{id}/cancel", { id });
  }

  /** Settles a dead letter that nobody will send again. */
  discard(id: string, options: { reason?: string } = {}): Promise<DeliveryDetail> {
    return this.call("POST", "/v1/deliveries/{id}/discard", { id }, { body: options });
  }

  /** Settles the dead letters that match, without a filter all of them. Answers their number. */
  async discardAll(filter: DiscardFilter = {}): Promise<number> {
    const options = { body: filter };
    return (await this.call<{ discarded: number }>("POST", "/v1/deliveries/discard", {}, options)).discarded;
  }

  /** How many dead letters `discardAll` would settle. */
  async countDiscard(filter: DiscardFilter = {}): Promise<number> {
    const options = { body: filter, query: { dry_run: true }, repeatable: true };
    return (await this.call<{ total: number }>("POST", "/v1/deliveries/discard", {}, options)).total;
  }
}

class Replays extends Resource {
  /** Sends ended deliveries again; without a filter everything that is dead or failed. */
  create(filter: ReplayFilter = {}): Promise<Replay> {
    return this.call("POST", "/v1/replays", {}, once(filter));
  }

  /** How many deliveries a replay would send again. */
  async count(filter: ReplayFilter = {}): Promise<number> {
    const options = { body: filter, query: { dry_run: true }, repeatable: true };
    return (await this.call<{ total: number }>("POST", "/v1/replays", {}, options)).total;
  }

  list(): Pages<Replay> {
    return this.pages("GET", "/v1/replays", {});
  }

  get(id: string): Promise<Replay> {
    return this.call("GET", "/v1/replays/{id}", { id });
  }

  /** Cancels the replay. Its unsent deliveries return to their previous state. */
  cancel(id: string): Promise<Replay> {
    return this.call("POST", "/v1/replays/{id}/cancel", { id });
  }
}

class Keys extends Resource {
  /** Creates an API key. Only this answer has its secret. */
  create(key: NewKey): Promise<CreatedApiKey> {
    return this.call("POST", "/v1/keys", {}, once(key));
  }

  list(): Pages<ApiKey> {
    return this.pages("GET", "/v1/keys", {});
  }

  async delete(id: string): Promise<void> {
    await this.send("DELETE", "/v1/keys/{id}", { id });
  }
}

class AlertThresholds extends Resource {
  get(): Promise<Alerts> {
    return this.call("GET", "/v1/alerts");
  }

  /** Sets the thresholds of all destinations. An omitted one gets its default. */
  set(thresholds: Alerts): Promise<Alerts> {
    return this.call("PUT", "/v1/alerts", {}, { body: thresholds, repeatable: true });
  }

  /** What is wrong now, the worst first. */
  active(filter: { tenant?: string; type?: string } = {}): Pages<ActiveAlert> {
    return this.pages("GET", "/v1/alerts/active", filter);
  }
}

class LoadShedding extends Resource {
  /** The limits, and what the process that answers refuses now. */
  get(): Promise<Shedding> {
    return this.call("GET", "/v1/shedding");
  }

  /** Replaces all limits. What is omitted or null is automatic. */
  set(limits: SheddingLimits): Promise<Shedding> {
    return this.call("PUT", "/v1/shedding", {}, { body: limits, repeatable: true });
  }
}

class EventTypes extends Resource {
  /** The catalogue, in the order of the names. `q` is a part of the name, in upper or lower case. */
  list(filter: EventTypeFilter = {}): Pages<EventType> {
    return this.pages("GET", "/v1/event-types", filter);
  }

  async get(name: string): Promise<EventType> {
    return (await this.getVersion(name)).eventType;
  }

  /** The type and its version, for `ifMatch`. */
  async getVersion(name: string): Promise<{ eventType: EventType; version: string }> {
    const answer = await this.send("GET", "/v1/event-types/{name}", { name });
    return { eventType: answer.body as EventType, version: answer.headers.get("etag") ?? "" };
  }

  /** Adds a type, or replaces its description, example and schema. */
  put(
    name: string,
    settings: EventTypeSettings,
    options: { ifMatch?: string; onlyCreate?: boolean } = {},
  ): Promise<EventType> {
    const headers = { ...ifMatch(options), ...(options.onlyCreate ? { "if-none-match": "*" } : {}) };
    return this.call("PUT", "/v1/event-types/{name}", { name }, { body: settings, headers });
  }

  /** Deletes a type. A strict server refuses its events within a second. */
  async delete(name: string, options: { ifMatch?: string } = {}): Promise<void> {
    await this.send("DELETE", "/v1/event-types/{name}", { name }, { headers: ifMatch(options) });
  }
}

class LimitGroups extends Resource {
  /** Creates a budget that several destinations share: they join it by their `limit_group`. */
  create(group: NewLimitGroup): Promise<LimitGroup> {
    return this.call("POST", "/v1/limit-groups", {}, once(group));
  }

  /** The groups with their use and their backlog. */
  list(): Pages<LimitGroupRow> {
    return this.pages("GET", "/v1/limit-groups", {});
  }

  async get(id: string): Promise<LimitGroup> {
    return (await this.getVersion(id)).group;
  }

  /** The group and its version, for `ifMatch`. */
  async getVersion(id: string): Promise<{ group: LimitGroup; version: string }> {
    const answer = await this.send("GET", "/v1/limit-groups/{id}", { id });
    return { group: answer.body as LimitGroup, version: answer.headers.get("etag") ?? "" };
  }

  /** Changes the given fields. With `ifMatch`, only if the group still has that version. */
  edit(id: string, changes: LimitGroupChanges, options: { ifMatch?: string } = {}): Promise<LimitGroup> {
    return this.call("PATCH", "/v1/limit-groups/{id}", { id }, { body: changes, headers: ifMatch(options) });
  }

  /** Creates the group with this name, or replaces its limits. The tenant `*`: its members may be of any tenant. */
  put(
    tenant: string,
    name: string,
    settings: LimitGroupReplacement,
    options: { ifMatch?: string; onlyCreate?: boolean } = {},
  ): Promise<LimitGroup> {
    const headers = { ...ifMatch(options), ...(options.onlyCreate ? { "if-none-match": "*" } : {}) };
    return this.call("PUT", "/v1/limit-groups/by-name/{tenant}/{name}", { tenant, name }, { body: settings, headers });
  }

  /** Deletes the group, which must have no members. */
  async delete(id: string, options: { ifMatch?: string } = {}): Promise<void> {
    await this.send("DELETE", "/v1/limit-groups/{id}", { id }, { headers: ifMatch(options) });
  }

  /**
   * Reserves a slot for a call of your own, which must start in it. `Weir.limit` also waits for its start. Without a slot
   * in time it throws `Unavailable`, with `nextAt`. `wait_ms` must be shorter than `timeoutMs`.
   */
  reserve(id: string, wanted: ReservationRequest = {}): Promise<ReservedSlot> {
    return this.call("POST", "/v1/limit-groups/{id}/reservations", { id }, { body: wanted, retries: 0 });
  }

  /** The same by the name of the group, for keys that may not list groups. */
  reserveByName(tenant: string, name: string, wanted: ReservationRequest = {}): Promise<ReservedSlot> {
    const request = { body: wanted, retries: 0 };
    return this.call("POST", "/v1/limit-groups/by-name/{tenant}/{name}/reservations", { tenant, name }, request);
  }

  /** The slots that callers outside Weir have reserved, those that end last first. */
  reservations(id: string, range: Range = {}): Pages<Reservation> {
    return new Pages((query) => this.call("GET", "/v1/limit-groups/{id}/reservations", { id }, { query }), range);
  }

  /** Gives a slot back before it starts. */
  async giveBack(id: string, rid: string): Promise<void> {
    await this.send("DELETE", "/v1/limit-groups/{id}/reservations/{rid}", { id, rid });
  }

  /** Other limits of all members together for a while, in place of those of the settings. They end by themselves. */
  override(id: string, override: OverrideRequest, options: { ifMatch?: string } = {}): Promise<OverriddenLimitGroup> {
    const request = { body: override, headers: ifMatch(options) };
    return this.call("POST", "/v1/limit-groups/{id}/override", { id }, request);
  }

  /** Ends an override before its end. */
  endOverride(id: string): Promise<LimitGroup> {
    return this.call("DELETE", "/v1/limit-groups/{id}/override", { id });
  }

  /** Sends nothing to any member for a while: a pause that ends by itself. */
  hold(id: string, hold: HoldRequest, options: { ifMatch?: string } = {}): Promise<HeldLimitGroup> {
    return this.call("POST", "/v1/limit-groups/{id}/hold", { id }, { body: hold, headers: ifMatch(options) });
  }

  /** Ends a hold before its end. */
  endHold(id: string): Promise<LimitGroup> {
    return this.call("DELETE", "/v1/limit-groups/{id}/hold", { id });
  }

  /** The group and its members: the share of each, and why it is not sent faster. */
  overview(id: string): Promise<LimitGroupOverview> {
    return this.call("GET", "/v1/limit-groups/{id}/overview", { id });
  }

  /** What other limits would do to the backlogs of all members. Nothing is changed. */
  preview(id: string, limits: LimitGroupPreviewRequest = {}): Promise<Preview> {
    return this.call("POST", "/v1/limit-groups/{id}/preview", { id }, { body: limits, repeatable: true });
  }

  /** The audit of the recorded send starts of all members; by default of the last day. */
  audit(id: string, range: Range = {}): Promise<Audit> {
    return this.call("GET", "/v1/limit-groups/{id}/audit", { id }, { query: range });
  }

  /** What all members together got and sent in each bucket of a range; by default the last 15 minutes. */
  history(id: string, query: HistoryQuery = {}): Promise<LimitGroupHistory> {
    return this.call("GET", "/v1/limit-groups/{id}/history", { id }, { query });
  }
}

class ActivityLog extends Resource {
  /** Who changed what. */
  list(filter: ActivityFilter = {}): Pages<Activity> {
    return this.pages("GET", "/v1/activity", filter);
  }
}

/** Node 18 has no global `crypto`. The key need not be secret. */
function newKey(): string {
  const digit = () => Math.floor(Math.random() * 16).toString(16);
  return globalThis.crypto?.randomUUID?.() ?? Array.from({ length: 32 }, digit).join("");
}

function keyed(event: NewEvent): NewEvent {
  return { idempotency_key: newKey(), ...event };
}

/** For a request that creates something: with its key, a repetition gets the first answer again. */
function once(body?: unknown): RequestOptions {
  return { body, headers: { "idempotency-key": newKey() }, repeatable: true };
}

function ifMatch(options: { ifMatch?: string }): Record<string, string> {
  return options.ifMatch === undefined ? {} : { "if-match": options.ifMatch };
}
