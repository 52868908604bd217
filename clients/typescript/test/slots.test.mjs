// Slots of limit groups, against a server that answers as a test says. WEIR_CLIENT names the compiled module.

import assert from "node:assert/strict";
import { test } from "node:test";

const { SlotMissed, Unavailable, Weir } = await import(process.env.WEIR_CLIENT);

function granted(starts_in_ms, ends_in_ms, took_ms = 0) {
  // The clock of the server is hours away: the client must not use it.
  const instants = { starts_at: "2000-01-01T00:00:00.000Z", ends_at: "2000-01-01T00:00:00.250Z" };
  return [201, { id: "rsv_1", limit_group: "lgr_1", cost: 1, ...instants, starts_in_ms, ends_in_ms, took_ms }];
}

const NO_SLOT = [429, { status: 429, detail: "no slot", next_at: "2026-11-21T07:30:04.250Z" }];

/** A client whose requests get these answers, each after `delayMs`. */
function client(answers, { delayMs = 0, ...options } = {}) {
  const seen = [];
  const fetch = async (url, { method, body }) => {
    seen.push({ method, path: new URL(url).pathname, body: body === undefined ? null : JSON.parse(body) });
    await new Promise((done) => setTimeout(done, delayMs));
    const [status, answer] = answers.shift() ?? [204, undefined];
    const headers = status === 429 ? { "retry-after": "0" } : {};
    return new Response(answer === undefined ? null : JSON.stringify(answer), { status, headers });
  };
  return { weir: new Weir({ fetch, ...options }), seen };
}

test("the call begins when its slot starts", async () => {
  const { weir, seen } = client([granted(80, 5_000)]);
  const began = performance.now();
  const answer = await weir.limit("stripe eu").slot((slot) => slot.id, { cost: 3, waitMs: 12_000, widthMs: 100 });
  assert.equal(answer, "rsv_1");
  assert.ok(performance.now() - began >= 80);
  const [{ method, path, body }] = seen;
  assert.deepEqual([method, path], ["POST", "/v1/limit-groups/by-name/default/stripe%20eu/reservations"]);
  assert.deepEqual([body.cost, body.width_ms], [3, 100]);
  assert.ok(body.wait_ms > 11_000 && body.wait_ms <= 12_000);
});

test("a long wait is several requests", async () => {
  const { weir, seen } = client([NO_SLOT, NO_SLOT, granted(0, 5_000)]);
  await weir.limit("lgr_1").slot(() => {}, { waitMs: 60_000 });
  assert.deepEqual(seen.map(({ body }) => body.wait_ms), [20_000, 20_000, 20_000]);
  assert.equal(seen[0].path, "/v1/limit-groups/lgr_1/reservations");
});

test("without a slot in time the call is not made", async () => {
  const { weir } = client([NO_SLOT]);
  const refused = await weir.limit("a").slot(() => assert.fail("there is no slot"), { waitMs: 0 }).catch((error) => error);
  assert.ok(refused instanceof Unavailable, String(refused));
  assert.equal(refused.nextAt, "2026-11-21T07:30:04.250Z");
});

test("a slot that may be over is missed", async () => {
  // The answer may have been 100 ms on its way, so the slot may have ended.
  const { weir } = client([granted(0, 50), granted(0, 90, 95)], { delayMs: 100 });
  await assert.rejects(weir.limit("a").slot(() => assert.fail("the slot is over")), SlotMissed);
  // The same answer, if the server had it for most of that time.
  assert.equal(await weir.limit("a").slot(() => 7), 7);
});

test("a slot whose call does not begin is given back", async () => {
  const stop = () => Promise.reject(new Error("stopped"));
  const { weir, seen } = client([granted(60_000, 61_000)], { sleep: stop });
  await assert.rejects(weir.limit("a").slot(() => assert.fail("it was stopped")), /stopped/);
  assert.deepEqual([seen[1].method, seen[1].path], ["DELETE", "/v1/limit-groups/lgr_1/reservations/rsv_1"]);
});
