/** Verification of received webhooks that are signed as in Standard Webhooks, Weir's default. */

import { WeirError } from "./errors.js";
import { parse } from "./json.js";

/** The request is not from Weir, or not from now. Answer it with 400 or 401, and use nothing of it. */
export class InvalidWebhook extends WeirError {}

export interface VerifyOptions {
  /** How far the signed time may be from the time of this machine; by default 300 s. */
  toleranceMs?: number;
  /** The time in milliseconds since 1970, for tests. */
  now?: number;
}

/** Headers as `fetch` has them, or as a Node server does. */
export type ReceivedHeaders = Headers | Record<string, string | string[] | undefined>;

const PREFIX = "whsec_";

/**
 * Verifies a received request and returns the JSON of its body. Rejects with `InvalidWebhook`.
 *
 * `body` must be the bytes as they were received: JSON that was parsed and written again differs. `secrets` is the secret
 * of the destination, or several: while a secret is rotated, the new one and the previous one. A request is valid if one
 * of its signatures is made with one of them, so it does not matter which side rotates first.
 *
 * A request that was recorded and is sent again later is refused; one that is sent again at once is not, so store the
 * `webhook-id` and skip repeated ones.
 */
export async function verifyWebhook(
  headers: ReceivedHeaders,
  body: Uint8Array | string,
  secrets: string | readonly string[],
  options: VerifyOptions = {},
): Promise<unknown> {
  const keys = (typeof secrets === "string" ? [secrets] : secrets).map(keyOf);
  if (keys.length === 0) throw new TypeError("no secret was given");
  const [id, timestamp, signatures] = ["id", "timestamp", "signature"].map((name) => header(headers, `webhook-${name}`)) as
    [string, string, string];
  if (!/^\d{1,15}$/.test(timestamp)) throw new InvalidWebhook("the header webhook-timestamp is not a number of seconds");
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(head.length + bytes.length);
  signed.set(head);
  signed.set(bytes, head.length);

  const { subtle } = await webCrypto();
  const received = signatures.split(/\s+/).filter((text) => text.startsWith("v1,")).map((text) => base64(text.slice(3)));
  let isValid = false;
  for (const key of keys) {
    const imported = await subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const signature of received) {
      // `verify` takes the same time for each wrong signature.
      if (signature !== null && (await subtle.verify("HMAC", imported, signature, signed))) isValid = true;
    }
  }
  if (!isValid) throw new InvalidWebhook("no signature of the request is made with one of the secrets");
  // After the signature: the time of a forged request says nothing.
  const ageMs = (options.now ?? Date.now()) - Number(timestamp) * 1_000;
  const toleranceMs = options.toleranceMs ?? 300_000;
  if (Math.abs(ageMs) > toleranceMs) {
    const age = Math.round(ageMs / 1_000);
    throw new InvalidWebhook(`the request was signed ${age} s ago; at most ${toleranceMs / 1_000} s are allowed`);
  }
  try {
    return parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new InvalidWebhook(`the body is not JSON: ${String(error)}`, { cause: error });
  }
}

function header(headers: ReceivedHeaders, name: string): string {
  let value: string | string[] | null | undefined;
  if (typeof Headers !== "undefined" && headers instanceof Headers) value = headers.get(name);
  else value = Object.entries(headers).find(([own]) => own.toLowerCase() === name)?.[1];
  const text = (Array.isArray(value) ? value.join(" ") : (value ?? "")).trim();
  if (text === "") throw new InvalidWebhook(`the header ${name} is missing`);
  return text;
}

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  if (!secret.startsWith(PREFIX)) {
    throw new TypeError("a secret begins with whsec_; other styles of signatures are not verified here");
  }
  const key = base64(secret.slice(PREFIX.length));
  if (key === null || key.length === 0) throw new TypeError("the secret is not base64 after whsec_");
  return key;
}

/** The bytes of a base64 text, padded or not. */
function base64(text: string): Uint8Array<ArrayBuffer> | null {
  try {
    return Uint8Array.from(atob(text.replace(/=+$/, "")), (letter) => letter.charCodeAt(0));
  } catch {
    return null;
  }
}

/** Node 18 has no global `crypto`. */
async function webCrypto(): Promise<Crypto> {
  if (globalThis.crypto !== undefined) return globalThis.crypto;
  // Not a literal, so that bundlers for browsers do not look for the module.
  const name: string = "node:crypto";
  return ((await import(name)) as { webcrypto: Crypto }).webcrypto;
}
