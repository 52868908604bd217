// The client against a running Weir. WEIR_URL and WEIR_API_KEY name it; RECEIVER is the URL of a receiver, and
// WEIR_CLIENT the compiled module.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

const { WEIR_URL: url, WEIR_API_KEY: key, RECEIVER: receiver, WEIR_CLIENT: module } = process.env;
const {
  BatchRefused, Conflict, ConnectionFailed, InvalidRequest, NotFound, PreconditionFailed, Unauthorized, Unavailable, Weir,
} = await import(module);

const weir = new Weir({ url, key });

/** The public methods of a client, by the names under which users know them, such as `events.post`. */
function methods(client) {
  const own = (object, path) =>
    Object.getOwnPropertyNames(Object.getPrototypeOf(object))
      .filter((name) => name !== "constructor")
      .map((name) => ({ object, name, path: `${path}${name}` }));
  const groups = Object.entries(client).filter(([, value]) => value instanceof Object.getPrototypeOf(Weir));
  return [...own(client, ""), ...groups.flatMap(([name, group]) => own(group, `${name}.`))];
}

/** The methods that a test has called and that have succeeded. */
const called = new Set();
for (const { object, name, path } of methods(weir)) {
  const method = object[name];
  object[name] = (...values) => {
    const answer = method.apply(object, values);
    // A list is read later; the other answers are promises.
    if (answer instanceof Promise) answer.then(() => called.add(path), () => {});
    else called.add(path);
    return answer;
  };
}

async function all(pages) {
  const rows = [];
  for await (const row of pages) rows.push(row);
  return rows;
}

async function sent(id) {
  for (;;) {
    const { pending, delivering, retrying } = await weir.destinations.backlog(id);
    if (pending + delivering + retrying === 0) return;
  }
}

test("a destination is created, edited and deleted", async () => {
  const limits = [{ limit: 10, period: "second" }];
  const { id, secret } = await weir.destinations.create({ url: receiver, tenant: "edits", rate_limits: limits });
  assert.equal((await weir.destinations.secret(id)).secret, secret);
  const { destination, version } = await weir.destinations.getVersion(id);
  assert.deepEqual(destination.rate_limits, [{ limit: 10, period: "second", burst: 1, margin_ms: 0 }]);
  assert.equal((await weir.destinations.edit(id, { paused: true }, { ifMatch: version })).paused, true);
  await assert.rejects(weir.destinations.edit(id, { paused: false }, { ifMatch: version }), PreconditionFailed);
  assert.equal((await weir.destinations.release(id)).held_until, null);
  assert.notEqual((await weir.destinations.rotateSecret(id)).secret, secret);
  const higher = [{ limit: 50, period: "second" }];
  const raised = await weir.destinations.override(id, { rate_limits: higher, for_s: 60, reason: "launch day" });
  assert.deepEqual([raised.override.reason, raised.replaced], ["launch day", null]);
  assert.equal((await weir.destinations.endOverride(id)).override, null);
  const held = await weir.destinations.hold(id, { for_s: 60, reason: "their maintenance" });
  assert.deepEqual([held.hold.until, held.replaced], [held.held_until, null]);
  assert.equal((await weir.destinations.endHold(id)).held_until, null);
  const filter = { tenant: "edits", url: receiver, state: "paused", q: "/CLIENT" };
  assert.deepEqual((await all(weir.destinations.list(filter))).map((one) => one.id), [id]);
  await weir.destinations.delete(id);
  await assert.rejects(weir.destinations.get(id), NotFound);
  const named = await weir.destinations.put("named", "a/b", { url: receiver }, { onlyCreate: true });
  const again = await weir.destinations.put("named", "a/b", { url: receiver, paused: true });
  assert.deepEqual([again.id, again.name, again.paused], [named.id, "a/b", true]);
});

test("events are delivered, audited and replayed", async () => {
  const { id } = await weir.destinations.create({ url: receiver, tenant: "sent" });
  const event = { type: "video.created", data: { id: 7 }, tenant: "sent", idempotency_key: "typescript-7" };
  const first = await weir.events.post(event);
  assert.deepEqual([first.deliveries, first.duplicate], [1, false]);
  const again = await weir.events.post(event);
  assert.deepEqual([again.id, again.duplicate], [first.id, true]);
  await assert.rejects(weir.events.post({ ...event, data: { id: 8 } }), InvalidRequest);
  const found = await all(weir.events.list({ tenant: "sent", idempotency_key: "typescript-7", order: "oldest" }));
  assert.deepEqual(found.map((one) => one.id), [first.id]);
  assert.deepEqual((await weir.events.get(first.id)).data, { id: 7 });

  const delivery = await weir.destinations.test(id);
  await sent(id);
  assert.equal((await weir.deliveries.get(delivery.id)).attempts[0].status_code, 204);
  assert.equal((await all(weir.deliveries.list({ destination: id, state: "delivered" }))).length, 2);
  assert.equal((await weir.destinations.audit(id, { from: new Date(Date.now() - 3_600_000).toISOString() })).sends, 2);
  assert.equal(await weir.replays.count({ states: ["delivered"], destination: id }), 2);
  const replay = await weir.replays.create({ states: ["delivered"], destination: id });
  assert.equal((await weir.replays.get(replay.id)).total, 2);
  assert.ok((await all(weir.replays.list())).some((one) => one.id === replay.id));
  await sent(id);
});

test("integers of 64 bits keep their digits in both directions", async () => {
  const { id } = await weir.destinations.create({ url: receiver, tenant: "integers", paused: true });
  const data = {
    id: 9_007_199_254_740_993n, least: -9_223_372_036_854_775_808n, most: 18_446_744_073_709_551_615n,
    "9007199254740993": [1n, 2, 0.5, 1e300], text: 'say "9007199254740993"\\', nothing: null,
  };
  const accepted = await weir.events.post({ type: "video.created", data, tenant: "integers" });
  const expected = { ...data, "9007199254740993": [1, 2, 0.5, 1e300] };
  assert.deepEqual((await weir.events.get(accepted.id)).data, expected);
  // As the destination gets them.
  const answer = await fetch(`${url}/v1/events/${accepted.id}`, { headers: { authorization: `Bearer ${key}` } });
  const text = await answer.text();
  assert.match(text, /"id":9007199254740993,"least":-9223372036854775808,"most":18446744073709551615/);
  const [read] = await all(weir.events.list({ tenant: "integers", include: "data" }));
  assert.deepEqual(read.data, expected);
  const [first] = await weir.events.postBatch([{ type: "video.created", data, tenant: "integers" }]);
  assert.deepEqual((await weir.events.get(first.id)).data, expected);
  await weir.destinations.delete(id);
});

test("an event has a cost of a limit in points", async () => {
  const rate_limits = [{ limit: 100, period: "minute", unit: "cost" }];
  const settings = { url: "http://127.0.0.1:9/", tenant: "points", rate_limits, paused: true };
  assert.equal((await weir.destinations.create(settings)).rate_limits[0].unit, "cost");
  const event = await weir.events.post({ type: "a", data: 1, tenant: "points", cost: 60 });
  assert.equal((await weir.events.get(event.id)).deliveries[0].cost, 60);
  await assert.rejects(weir.events.post({ type: "a", data: 1, tenant: "points", cost: 101 }), InvalidRequest);
});

test("a limit key has a rate of its own, is listed and paused", async () => {
  const key_limits = { key: "/customer", rate_limits: [{ limit: 5, period: "second" }] };
  const { id } = await weir.destinations.create({ url: receiver, tenant: "limit-keys", key_limits, paused: true });
  await weir.events.post({ type: "a", data: { customer: "cus_1" }, tenant: "limit-keys" });
  await weir.events.post({ type: "a", data: {}, tenant: "limit-keys", limit_key: "a/b" });
  const shown = await weir.destinations.limitKeys(id, { sort: "use", limit: 10 });
  assert.deepEqual(shown.data.map((row) => row.key).sort(), ["a/b", "cus_1"]);
  assert.equal((await weir.destinations.limitKeys(id, { q: "cus" })).data[0].waiting, 1);
  const ofKey = await weir.destinations.backlog(id, { key: "a/b" });
  assert.deepEqual([ofKey.pending, ofKey.limit_key], [1, "a/b"]);
  assert.equal((await weir.destinations.audit(id, { key: "a/b" })).sends, 0);
  assert.equal((await weir.destinations.pauseKey(id, "a/b")).key_limits.overrides["a/b"].paused, true);
  assert.deepEqual((await weir.destinations.resumeKey(id, "a/b")).key_limits.overrides, {});
  const found = await all(weir.deliveries.list({ destination: id, limit_key: "a/b" }));
  assert.deepEqual(found.map((one) => one.limit_key), ["a/b"]);
  assert.equal(await weir.destinations.purge(id, { limit_key: "cus_1" }), 1);
});

test("a limit group and its members", async () => {
  const name = `ts ${Date.now()}`;
  const group = await weir.limitGroups.create({ name, rate_limits: [{ limit: 10, period: "second" }] });
  const member = await weir.destinations.create({ url: receiver, limit_group: group.id, weight: 2, paused: true });
  const shown = await weir.limitGroups.overview(group.id);
  assert.deepEqual(shown.data.map((one) => [one.id, one.weight]), [[member.id, 2]]);
  assert.ok((await all(weir.limitGroups.list())).some((one) => one.id === group.id));
  const { version } = await weir.limitGroups.getVersion(group.id);
  assert.equal((await weir.limitGroups.get(group.id)).name, name);
  const preview = await weir.limitGroups.preview(group.id, { rate_limits: [{ limit: 20, period: "second" }] });
  assert.ok(preview.effective_per_s > preview.now.effective_per_s);
  assert.equal((await weir.limitGroups.edit(group.id, { max_in_flight: 5 }, { ifMatch: version })).max_in_flight, 5);
  assert.equal((await weir.limitGroups.audit(group.id)).sends, 0);
  assert.equal((await weir.limitGroups.history(group.id, { step: "1m" })).step, "1m");
  const begun = await weir.limitGroups.override(group.id, { max_in_flight: 9, for_s: 600, reason: "launch day" });
  assert.equal(begun.override.reason, "launch day");
  assert.equal((await weir.limitGroups.endOverride(group.id)).override, null);
  assert.ok((await weir.limitGroups.hold(group.id, { for_s: 600, reason: "their maintenance" })).hold);
  assert.equal((await weir.limitGroups.endHold(group.id)).hold, null);
  const reserved = await weir.limitGroups.reserve(group.id, { wait_ms: 5_000 });
  await weir.limitGroups.reserveByName("default", name, { wait_ms: 5_000 });
  assert.equal(await weir.limit(name).slot(() => 7, { widthMs: 2_500 }), 7);
  assert.ok((await all(weir.limitGroups.reservations(group.id))).some((one) => one.id === reserved.id));
  // A slot begins soon after it is given: on a busy machine it has begun before it is given back.
  for (let given = true; given; ) {
    const slot = await weir.limitGroups.reserve(group.id, { wait_ms: 5_000 });
    given = await weir.limitGroups.giveBack(group.id, slot.id).then(() => false, (error) => error instanceof Conflict);
  }
  await assert.rejects(weir.limitGroups.delete(group.id));
  await weir.destinations.delete(member.id);
  await weir.limitGroups.delete(group.id);
  const put = await weir.limitGroups.put("default", name, { max_in_flight: 3 }, { onlyCreate: true });
  await weir.limitGroups.delete(put.id);
});

test("what waits is retried, cancelled and purged", async () => {
  const tenant = "waits";
  const { id } = await weir.destinations.create({ url: receiver, tenant, paused: true });
  const batch = [{ type: "a", data: 1, tenant }, { type: "b b" }, { type: "a", data: 2, tenant }];
  const failed = await weir.events.postBatch(batch).catch((error) => error);
  assert.ok(failed instanceof BatchRefused && failed.message.startsWith("1 of 3 events were refused: event 1: 422: /"));
  assert.equal(failed.results[0].type, "a");
  const refused = failed.refused.get(1);
  assert.ok(refused instanceof InvalidRequest && refused.errors.some((error) => error.pointer === "/data"));
  const results = await weir.events.postBatch([{ type: "b b" }, { type: "c", data: 1 }], { partial: true });
  assert.deepEqual(results.map((result) => result instanceof InvalidRequest), [true, false]);
  const count = await weir.deliveries.count({ destination: id, state: ["pending"] });
  assert.deepEqual(count, { value: 2, capped: false });
  const [first, second] = await all(weir.deliveries.list({ destination: id }));
  assert.equal((await weir.deliveries.retry(first.id)).state, "pending");
  assert.equal((await weir.deliveries.cancel(first.id)).state, "cancelled");
  await assert.rejects(weir.deliveries.cancel(first.id), Conflict);
  assert.equal(await weir.destinations.countPurge(id, { event_type: "a" }), 1);
  assert.equal(await weir.destinations.purge(id), 1);
  assert.equal((await weir.deliveries.get(second.id)).state, "cancelled");
});

test("dead letters are what is wrong until they are discarded", async () => {
  const tenant = "letters-ts";
  // Nothing listens there.
  const { id } = await weir.destinations.create({ url: "http://127.0.0.1:1/", tenant, retry: { max_attempts: 1 } });
  for (const data of [1, 2, 3]) await weir.events.post({ type: "a", data, tenant });
  await sent(id);
  const wrong = await all(weir.alerts.active({ tenant, type: "weir.delivery.dead" }));
  assert.deepEqual(wrong.map((alert) => alert.destination_id), [id]);
  const [letter] = await all(weir.deliveries.list({ destination: id, state: "dead" }));
  assert.equal((await weir.deliveries.discard(letter.id, { reason: "a test" })).state, "cancelled");
  assert.equal(await weir.deliveries.countDiscard({ destination: id }), 2);
  assert.equal(await weir.deliveries.discardAll({ destination: id }), 2);
  assert.deepEqual(await all(weir.alerts.active({ tenant })), []);
  const { data } = await weir.overviewHistory({ tenant });
  assert.equal(data.reduce((sum, minute) => sum + minute.arrivals, 0), 3);
});

test("a destination shows its state, its past and its future", async () => {
  const tenant = "shown";
  const rate_limits = [{ limit: 100, period: "second" }];
  const { id, secret } = await weir.destinations.create({ url: receiver, tenant, name: "shown", rate_limits });
  assert.equal((await weir.destinations.get(id)).name, "shown");
  await weir.events.post({ type: "shown", data: 1, tenant });
  await sent(id);
  const { data, step } = await weir.destinations.history(id, { step: "10s" });
  assert.equal(step, "10s");
  assert.equal(data.reduce((sends, bucket) => sends + bucket.sends, 0), 1);
  const health = await weir.destinations.health(id, { window: "24h" });
  assert.deepEqual([health.window, health.delivered, health.success_ratio], ["24h", 1, 1]);
  const row = await weir.destinations.overview(id);
  assert.deepEqual([row.destination.id, row.backlog, row.reason], [id, 0, null]);
  assert.deepEqual((await all(weir.overview({ tenant }))).map((one) => one.destination.name), ["shown"]);
  const tried = await weir.destinations.tryFilter(id, { amount: 120 }, { "/amount": { gte: 100 } });
  assert.equal(tried.matches, true);
  const preview = await weir.destinations.preview(id, { rate_limits: [{ limit: 60, period: "minute" }] });
  assert.deepEqual([preview.binding, preview.would_expire], [{ limit: 60, period: "minute" }, false]);
  assert.deepEqual(preview.now.binding, { limit: 100, period: "second" });
  const rate = await weir.destinations.rate(id);
  assert.deepEqual([rate.adaptive_rate, rate.data], [null, []]);
  const limits = { rate_limits: [{ limit: 60, period: "minute" }], target: { latency_p99_ms: 5_000 } };
  const past = await weir.destinations.simulate(id, limits);
  assert.deepEqual([past.verdict, past.truncated, past.series.length], ["drains", false, 120]);

  const headers = { "webhook-id": "evt_1", "webhook-timestamp": "1", "webhook-signature": "v1,x" };
  const verified = await weir.verify({ headers, body: "{}", secret });
  assert.equal(verified.valid, false);
  assert.ok(verified.reason);

  const status = await weir.status();
  assert.ok(status.store.is_reachable && status.queue.is_reachable && status.processes.length > 0);
  const { role, tenants, version } = await weir.me();
  assert.deepEqual([role, tenants, version], ["admin", null, status.version]);
});

test("failures are grouped, and a replay is cancelled", async () => {
  const tenant = "failures";
  // Nothing listens there.
  const nowhere = new URL("/", receiver);
  nowhere.port = "1";
  const settings = { url: nowhere.href, tenant, name: "nowhere", retry: { max_attempts: 1 }, breaker: null };
  const { id } = await weir.destinations.create(settings);
  await weir.events.postBatch([1, 2].map((data) => ({ type: "lost", data, tenant })));
  await sent(id);
  const { data: groups, capped } = await weir.deliveries.groups({ tenant });
  assert.deepEqual(groups.map((group) => [group.destination_name, group.deliveries]), [["nowhere", 2]]);
  assert.equal(capped, false);
  await weir.destinations.edit(id, { paused: true });
  const replay = await weir.replays.create({ destination: id });
  assert.equal((await weir.replays.cancel(replay.id)).state, "cancelled");
});

test("a list spans pages", async () => {
  const numbers = Array.from({ length: 450 }, (_, n) => n);
  await weir.events.postBatch(numbers.map((data) => ({ type: "many", data, tenant: "pages" })));
  const pages = weir.events.list({ tenant: "pages", include: "data" });
  assert.deepEqual((await all(pages)).map((event) => event.data).sort((a, b) => a - b), numbers);
  const page = await pages.page(3);
  assert.ok(page.data.length === 3 && page.next_cursor !== null);
});

test("keys and alert thresholds", async () => {
  const created = await weir.keys.create({ name: "typescript", role: "read", tenants: ["sent"] });
  const reader = new Weir({ url, key: created.secret });
  await all(reader.events.list());
  const { role, tenants } = await reader.me();
  assert.deepEqual([role, tenants], ["read", ["sent"]]);
  await weir.keys.delete(created.id);
  assert.ok(!(await all(weir.keys.list())).some((one) => one.id === created.id));
  assert.equal((await weir.alerts.set({ backlog_depth: 7 })).backlog_depth, 7);
  assert.equal((await weir.alerts.get()).backlog_depth, 7);
  assert.equal((await weir.shedding.set({ target_ms: 300 })).target_ms, 300);
  assert.equal((await weir.shedding.get()).target_ms, 300);
  const { data } = await weir.activity.list().page();
  assert.ok(data.some(({ action, after }) => action === "alerts.changed" && after.backlog_depth === 7));
});

test("the catalogue of event types", async () => {
  const types = weir.eventTypes;
  const schema = { type: "object" };
  const added = await types.put("ts.created", { description: "A test.", schema }, { onlyCreate: true });
  assert.deepEqual(added.schema, schema);
  await assert.rejects(types.put("ts.created", {}, { onlyCreate: true }), PreconditionFailed);
  const { eventType, version } = await types.getVersion("ts.created");
  assert.deepEqual([eventType, await types.get("ts.created")], [added, added]);
  assert.deepEqual((await types.put("ts.created", { example: { id: 7 } }, { ifMatch: version })).example, { id: 7 });
  assert.deepEqual((await all(types.list({ q: "TS." }))).map((one) => one.name), ["ts.created"]);
  const refused = await types.put("ts.created", { schema: { requred: [] } }).catch((error) => error);
  assert.equal(refused.errors[0].pointer, "/schema/requred");
  await types.delete("ts.created");
  assert.deepEqual(await all(types.list({ q: "ts." })), []);
});

test("refusals name the fields", async () => {
  const refused = await weir.destinations.create({ url: "ftp://x", max_in_flight: 0 }).catch((error) => error);
  assert.ok(refused instanceof InvalidRequest && refused.name === "InvalidRequest");
  assert.deepEqual(refused.errors.map((error) => error.pointer).sort(), ["/max_in_flight", "/url"]);
  await assert.rejects(new Weir({ url, key: "wrong" }).alerts.get(), Unauthorized);
});

// After all tests against the running Weir, which Node runs in the order of this file.
test("every public method has been called", () => {
  assert.deepEqual(methods(weir).map(({ path }) => path).filter((path) => !called.has(path)), []);
});

/** A server that answers as it is told, and a client of it. `null` closes the connection instead. */
async function answering(t, answers) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    requests.push({ key: request.headers["idempotency-key"], body });
    const answer = answers.shift();
    if (answer === null) return request.socket.destroy();
    response.writeHead(answer.status, answer.headers).end("{}");
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  t.after(() => server.close());
  const waits = [];
  const sleep = async (ms) => void waits.push(ms);
  const client = new Weir({ url: `http://127.0.0.1:${server.address().port}`, retries: 3, timeoutMs: 5_000, sleep });
  return { client, requests, waits };
}

test("a busy server is asked again after the pause that it names", async (t) => {
  const answers = [{ status: 503, headers: { "retry-after": "2" } }, { status: 429 }, { status: 200 }];
  const { client, requests, waits } = await answering(t, answers);
  await client.alerts.get();
  assert.equal(requests.length, 3);
  assert.ok(waits[0] >= 2_000 && waits[0] <= 2_250 && waits[1] <= 500, String(waits));
});

test("retries end", async (t) => {
  const answers = Array.from({ length: 4 }, () => ({ status: 503 }));
  const { client, requests } = await answering(t, answers);
  await assert.rejects(client.alerts.get(), Unavailable);
  answers.push({ status: 429, headers: { "retry-after": "3600" } });
  await assert.rejects(client.alerts.get(), Unavailable);
  assert.equal(requests.length, 5);
});

test("the last refusal is told when the connection fails after it", async (t) => {
  const headers = { "retry-after": "1", "x-request-id": "r-1" };
  const { client } = await answering(t, [{ status: 503, headers }, null]);
  const failed = await client.destinations.edit("dst_1", { paused: true }).catch((error) => error);
  assert.ok(failed instanceof ConnectionFailed && failed.message.includes("; before that, 503: "));
  const { status, retryAfterMs, requestId } = failed.lastRefusal;
  assert.deepEqual([status, retryAfterMs, requestId], [503, 1_000, "r-1"]);
});

test("an event whose answer is lost is posted again with the same key", async (t) => {
  const { client, requests } = await answering(t, [null, { status: 202 }, null, { status: 201 }]);
  await client.events.post({ type: "a", data: 1 });
  assert.ok(requests[0].body.includes("idempotency_key"));
  assert.deepEqual(requests[0], requests[1]);
  await client.destinations.create({ url: "https://example.com" });
  assert.ok(requests[2].key);
  assert.deepEqual(requests[2], requests[3]);
});

test("a change whose answer is lost is not repeated, and a refused connection is", async (t) => {
  const { client, requests } = await answering(t, [null]);
  await assert.rejects(client.destinations.edit("dst_1", { paused: true }), ConnectionFailed);
  assert.equal(requests.length, 1);
  const waits = [];
  const server = createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address();
  await once(server.close(), "close");
  const nowhere = new Weir({ url: `http://127.0.0.1:${port}`, retries: 2, sleep: async (ms) => void waits.push(ms) });
  await assert.rejects(nowhere.destinations.edit("dst_1", { paused: true }), ConnectionFailed);
  assert.equal(waits.length, 2);
});
