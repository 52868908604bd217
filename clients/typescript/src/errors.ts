/** The errors of the client: refusals of the server by kind, and requests without an answer. */

import type { AcceptedEvent } from "./types.js";

/** Every error of this package. */
export class WeirError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No connection, or no answer in time. Whether the request took effect is unknown. */
export class ConnectionFailed extends WeirError {
  constructor(
    message: string,
    options: ErrorOptions,
    /** The last answer before the connection failed, if the server refused an earlier attempt with 429 or 503. */
    readonly lastRefusal: ApiError | null = null,
  ) {
    super(lastRefusal === null ? message : `${message}; before that, ${lastRefusal.message}`, options);
  }
}

/** One error of a request: the JSON pointer of the value, and what is expected. */
export interface FieldError {
  pointer: string;
  detail: string;
}

/** A problem document (RFC 9457). The answer of a proxy may have none of its fields. */
export interface Problem {
  type?: string;
  title?: string;
  status?: number;
  detail?: string;
  errors?: FieldError[];
  next_at?: string;
}

/** A refusal of the server. */
export class ApiError extends WeirError {
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  readonly errors: FieldError[];
  /** When a slot of the limit group is expected (RFC 3339), of a reservation that got none in time. */
  readonly nextAt: string | null;

  constructor(
    readonly status: number,
    problem: Problem,
    /** The `x-request-id` of the answer, by which the log of the server names the request. */
    readonly requestId: string | null,
    /** `Retry-After`, if the answer has it. */
    readonly retryAfterMs: number | null = null,
  ) {
    const errors = problem.errors ?? [];
    const reasons = errors.map((error) => `${error.pointer} ${error.detail}`.trim()).join("; ");
    super(`${status}: ${reasons || problem.detail || problem.title || "no reason given"}`);
    this.type = problem.type ?? "about:blank";
    this.title = problem.title ?? `HTTP status ${status}`;
    this.detail = problem.detail ?? "";
    this.errors = errors;
    this.nextAt = problem.next_at ?? null;
  }
}

/** 400, 413 and 422: the request is wrong. `errors` names the fields. */
export class InvalidRequest extends ApiError {}
/** 401: the API key is missing or not valid. */
export class Unauthorized extends ApiError {}
/** 403: the role of the API key does not allow this. */
export class Forbidden extends ApiError {}
/** 404: there is no such object for this key. */
export class NotFound extends ApiError {}
/** 409: the current state does not allow this. */
export class Conflict extends ApiError {}
/** 412: the object has changed since it was read. */
export class PreconditionFailed extends ApiError {}
/** 429 and 503, after all retries: the server cannot take the request now. */
export class Unavailable extends ApiError {}

/** A reserved slot was over before its call could begin. The call was not made. */
export class SlotMissed extends WeirError {}

/** Events of a batch were refused. The others are stored. */
export class BatchRefused extends WeirError {
  constructor(
    /** The results of all events in their order: an accepted event, or its error. */
    readonly results: (AcceptedEvent | ApiError)[],
    /** The errors of the refused events, by the index in the batch. */
    readonly refused: ReadonlyMap<number, ApiError>,
  ) {
    const first = [...refused].slice(0, 3).map(([index, error]) => `event ${index}: ${error.message}`);
    super(`${refused.size} of ${results.length} events were refused: ${first.join("; ")}`);
  }
}

const KINDS: Record<number, typeof ApiError> = {
  400: InvalidRequest,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  412: PreconditionFailed,
  413: InvalidRequest,
  422: InvalidRequest,
  429: Unavailable,
  503: Unavailable,
};

export function refusal(
  status: number,
  problem: Problem,
  requestId: string | null = null,
  retryAfterMs: number | null = null,
): ApiError {
  return new (KINDS[status] ?? ApiError)(status, problem, requestId, retryAfterMs);
}
