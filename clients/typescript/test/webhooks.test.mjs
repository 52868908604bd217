// Received webhooks, verified without a server. WEIR_CLIENT is the compiled module.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";

const { InvalidWebhook, verifyWebhook } = await import(process.env.WEIR_CLIENT);

// The example of Standard Webhooks.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const body = '{"test": 2432232314}';
const signedAt = 1_614_265_330;
const signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const other = `whsec_${Buffer.from("another secret of 32 bytes, here").toString("base64")}`;
const headers = { "Webhook-Id": id, "webhook-timestamp": String(signedAt), "webhook-signature": signature };
const now = signedAt * 1_000;

function signed(by) {
  const key = Buffer.from(by.slice("whsec_".length), "base64");
  return `v1,${createHmac("sha256", key).update(`${id}.${signedAt}.${body}`).digest("base64")}`;
}

test("the example of the standard is valid", async () => {
  for (const given of [headers, new Headers(headers), { ...headers, "webhook-signature": ["v1,eA==", signature] }]) {
    for (const bytes of [body, new TextEncoder().encode(body)]) {
      assert.deepEqual(await verifyWebhook(given, bytes, secret, { now }), { test: 2_432_232_314 });
    }
  }
  const large = '{"data": 9007199254740993}';
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const own = `v1,${createHmac("sha256", key).update(`${id}.${signedAt}.${large}`).digest("base64")}`;
  const read = await verifyWebhook({ ...headers, "webhook-signature": own }, large, secret, { now });
  assert.deepEqual(read, { data: 9_007_199_254_740_993n });
});

test("both sides of a rotation are valid", async () => {
  // The receiver has both secrets, and the sender only the new or only the previous one.
  for (const by of [secret, other]) {
    await verifyWebhook({ ...headers, "webhook-signature": signed(by) }, body, [secret, other], { now });
  }
  // The sender signs with both, and the receiver has one of them.
  const both = { ...headers, "webhook-signature": `${signed(other)} v1a,xyz= ${signature} v1,@` };
  for (const own of [secret, other]) await verifyWebhook(both, body, own, { now });
});

test("what is not signed so is refused with the reason", async () => {
  for (const [changes, bytes, own, reason] of [
    [{}, `${body} `, secret, /no signature/],
    [{}, body, other, /no signature/],
    [{ "Webhook-Id": "msg_other" }, body, secret, /no signature/],
    [{ "webhook-timestamp": String(signedAt + 1) }, body, secret, /no signature/],
    [{ "webhook-timestamp": "1e9" }, body, secret, /not a number/],
    [{ "webhook-signature": signature.replace("v1,", "v2,") }, body, secret, /no signature/],
    [{ "webhook-signature": undefined }, body, secret, /webhook-signature is missing/],
  ]) {
    const refused = await verifyWebhook({ ...headers, ...changes }, bytes, own, { now }).catch((error) => error);
    assert.ok(refused instanceof InvalidWebhook && reason.test(refused.message), String(refused));
  }
});

test("a request of another time is refused", async () => {
  for (const late of [301, -301]) {
    await assert.rejects(verifyWebhook(headers, body, secret, { now: now + late * 1_000 }), /s ago/);
  }
  await verifyWebhook(headers, body, secret, { now: now + 600_000, toleranceMs: 600_000 });
  await assert.rejects(verifyWebhook(headers, body, secret), /s ago/);
});

test("a wrong secret of the receiver is a mistake of its program", async () => {
  for (const wrong of ["text", "whsec_%", []]) {
    await assert.rejects(verifyWebhook(headers, body, wrong, { now }), TypeError);
  }
});
