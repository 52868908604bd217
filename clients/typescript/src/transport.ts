/**
 * Requests with retries.
 *
 * A request is repeated after 429 and 503, which change nothing, and after a failed connection. After a request whose
 * answer was lost it is repeated only if that cannot take effect twice: reads, and writes with an idempotency key.
 */

import { type ApiError, ConnectionFailed, type Problem, refusal } from "./errors.js";
import { parse, stringify } from "./json.js";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** The values of the parameters of a route, such as `{ id: "evt_…" }` of `/v1/events/{id}`. */
export type Parts = Record<string, string>;

export interface RequestOptions {
  query?: object;
  body?: unknown;
  headers?: Record<string, string>;
  /** In place of those of the client. */
  retries?: number;
  timeoutMs?: number;
  /** The request may be repeated although it may have taken effect. */
  repeatable?: boolean;
}

export interface Answer {
  body: unknown;
  headers: Headers;
}

export interface Connection {
  url: string;
  key: string | undefined;
  timeoutMs: number;
  retries: number;
  fetch: typeof fetch;
  sleep: (ms: number) => Promise<void>;
}

/** Delays double from the first to the longest one, each shortened by chance so that clients do not return together. */
const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 8_000;
/** A server that asks for a longer pause than this gets no retry: the caller decides. */
const LONGEST_RETRY_AFTER_MS = 60_000;
/** With these errors the request cannot have taken effect. */
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

/** Sends requests to one server. */
export class Transport {
  constructor(private readonly connection: Connection) {}

  /** Sends a request and returns a successful answer. */
  async send(method: Method, route: string, parts: Parts = {}, options: RequestOptions = {}): Promise<Answer> {
    const url = this.url(route, parts, options.query);
    const headers: Record<string, string> = { accept: "application/json", ...options.headers };
    if (this.connection.key !== undefined) headers["authorization"] = `Bearer ${this.connection.key}`;
    // A redirected POST would become a GET.
    const request: RequestInit = { method, headers, redirect: "manual" };
    if (options.body !== undefined) {
      headers["content-type"] = "application/json";
      request.body = stringify(options.body);
    }
    let lastRefusal: ApiError | null = null;
    for (let attempt = 0; ; attempt++) {
      const isLast = attempt >= (options.retries ?? this.connection.retries);
      let pause = 0;
      try {
        const response = await this.once(url, request, options.timeoutMs ?? this.connection.timeoutMs);
        if (response.ok) return response;
        const { status, headers } = response;
        const retryAfter = retryAfterMs(headers);
        lastRefusal = refusal(status, problem(response.body), headers.get("x-request-id"), retryAfter);
        pause = retryAfter ?? 0;
        if ((status !== 429 && status !== 503) || isLast || pause > LONGEST_RETRY_AFTER_MS) throw lastRefusal;
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        const mayRepeat = options.repeatable === true || method === "GET" || !error.mayBeSent;
        if (isLast || !mayRepeat) {
          throw new ConnectionFailed(`${method} ${url}: ${String(error.cause)}`, { cause: error.cause }, lastRefusal);
        }
      }
      // Without chance, all clients would return together after a pause that the server asks for.
      const longest = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** attempt);
      await this.connection.sleep(pause + Math.random() * longest);
    }
  }

  private async once(url: string, request: RequestInit, timeoutMs: number) {
    try {
      const signal = AbortSignal.timeout(timeoutMs);
      const response = await this.connection.fetch(url, { ...request, signal });
      const text = await response.text();
      return { ok: response.ok, status: response.status, headers: response.headers, body: parsed(text) };
    } catch (error) {
      throw new NoAnswer(error);
    }
  }

  private url(route: string, parts: Parts, query: object = {}): string {
    const path = route.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(parts[name] ?? ""));
    const url = new URL(this.connection.url.replace(/\/+$/, "") + path);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null) url.searchParams.set(name, String(value));
    }
    return url.href;
  }
}

/** A request without an answer. */
class NoAnswer extends Error {
  readonly mayBeSent: boolean;

  constructor(override readonly cause: unknown) {
    super();
    const inner = cause instanceof Error ? (cause.cause as { code?: unknown } | undefined) : undefined;
    this.mayBeSent = !NOT_SENT.has(String(inner?.code));
  }
}

/** The JSON of an answer; the answer of a proxy may be something else. */
function parsed(text: string): unknown {
  try {
    return text === "" ? undefined : parse(text);
  } catch {
    return undefined;
  }
}

function problem(body: unknown): Problem {
  return typeof body === "object" && body !== null ? body : {};
}

/** `Retry-After` in seconds. Weir sends no dates. */
function retryAfterMs(headers: Headers): number | null {
  const seconds = Number(headers.get("retry-after") ?? Number.NaN);
  return Number.isFinite(seconds) ? Math.max(0, seconds * 1_000) : null;
}
