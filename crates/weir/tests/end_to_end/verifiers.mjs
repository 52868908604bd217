// Verifies requests as the documentation of each sender tells its receivers to. Reads an array of requests from standard
// input: {style, secret, url, headers, body}. Writes for each style whether the request is accepted, and whether it is
// with another body. Each function follows the page that is named above it, and shares no code with Weir.
import crypto from "node:crypto";
import { text } from "node:stream/consumers";

const hmac = (key, message) => crypto.createHmac("sha256", key).update(message);
const equal = (a, b) => a.length === b.length && crypto.timingSafeEqual(Buffer.from(a), Buffer.from(b));
const recent = (seconds) => Math.abs(Date.now() / 1000 - seconds) < 300;

const verifiers = {
  // https://docs.stripe.com/webhooks#verify-manually
  stripe({ secret, headers, body }) {
    const parts = headers["stripe-signature"].split(",").map((part) => part.split("=", 2));
    const time = parts.find(([name]) => name === "t")[1];
    const expected = hmac(secret, `${time}.${body}`).digest("hex");
    return recent(Number(time)) && parts.some(([name, value]) => name === "v1" && equal(value, expected));
  },
  // https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
  github({ secret, headers, body }) {
    return equal(headers["x-hub-signature-256"], `sha256=${hmac(secret, body).digest("hex")}`);
  },
  // https://docs.slack.dev/authentication/verifying-requests-from-slack
  slack({ secret, headers, body }) {
    const time = headers["x-slack-request-timestamp"];
    return recent(Number(time)) && equal(headers["x-slack-signature"], `v0=${hmac(secret, `v0:${time}:${body}`).digest("hex")}`);
  },
  // https://developers.zoom.us/docs/api/webhooks/
  zoom({ secret, headers, body }) {
    const message = `v0:${headers["x-zm-request-timestamp"]}:${body}`;
    return headers["x-zm-signature"] === `v0=${hmac(secret, message).digest("hex")}`;
  },
  // https://shopify.dev/docs/apps/build/webhooks/subscribe/https
  shopify({ secret, headers, body }) {
    return equal(headers["x-shopify-hmac-sha256"], hmac(secret, body).digest("base64"));
  },
  // https://developer.zendesk.com/documentation/webhooks/verifying/
  zendesk({ secret, headers, body }) {
    const time = headers["x-zendesk-webhook-signature-timestamp"];
    const expected = hmac(secret, time + body).digest("base64");
    return /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(time) && equal(headers["x-zendesk-webhook-signature"], expected);
  },
  // https://developer.squareup.com/docs/webhooks/step3validate
  square({ secret, url, headers, body }) {
    return equal(headers["x-square-hmacsha256-signature"], hmac(secret, url + body).digest("base64"));
  },
  // https://razorpay.com/docs/webhooks/validate-test/
  razorpay({ secret, headers, body }) {
    return equal(headers["x-razorpay-signature"], hmac(secret, body).digest("hex"));
  },
  // https://linear.app/developers/webhooks#securing-webhooks
  linear({ secret, headers, body }) {
    return equal(Buffer.from(headers["linear-signature"], "hex"), hmac(secret, body).digest());
  },
  // https://docs.lemonsqueezy.com/help/webhooks/signing-requests
  "lemon-squeezy"({ secret, headers, body }) {
    return equal(Buffer.from(headers["x-signature"], "utf8"), Buffer.from(hmac(secret, body).digest("hex"), "utf8"));
  },
  // https://developer.pagerduty.com/docs/webhooks/webhook-signatures/
  pagerduty({ secret, headers, body }) {
    const expected = `v1=${hmac(secret, body).digest("hex")}`;
    return headers["x-pagerduty-signature"].split(",").includes(expected);
  },
  // https://developer.paddle.com/webhooks/signature-verification
  paddle({ secret, headers, body }) {
    const parts = headers["paddle-signature"].split(";").map((part) => part.split("="));
    const time = parts.find(([name]) => name === "ts")[1];
    const expected = hmac(secret, `${time}:${body}`).digest("hex");
    return recent(Number(time)) && parts.some(([name, value]) => name === "h1" && equal(value, expected));
  },
  // https://discord.com/developers/docs/interactions/overview
  discord({ secret: publicKey, headers, body }) {
    // The key of RFC 8410: this prefix and the 32 bytes.
    const der = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), Buffer.from(publicKey, "hex")]);
    const key = crypto.createPublicKey({ key: der, format: "der", type: "spki" });
    const message = Buffer.from(headers["x-signature-timestamp"] + body);
    return crypto.verify(null, message, key, Buffer.from(headers["x-signature-ed25519"], "hex"));
  },
  // https://docs.svix.com/receiving/verifying-payloads/how-manual
  svix({ secret, headers, body }) {
    const message = `${headers["svix-id"]}.${headers["svix-timestamp"]}.${body}`;
    const expected = hmac(Buffer.from(secret.split("_")[1], "base64"), message).digest("base64");
    return headers["svix-signature"].split(" ").some((part) => equal(part.split(",")[1], expected));
  },
  // https://dev.twitch.tv/docs/eventsub/handling-webhook-events/#verifying-the-event-message
  twitch({ secret, headers, body }) {
    const message = headers["twitch-eventsub-message-id"] + headers["twitch-eventsub-message-timestamp"] + body;
    return equal(headers["twitch-eventsub-message-signature"], `sha256=${hmac(secret, message).digest("hex")}`);
  },
};

const verdicts = {};
for (const request of JSON.parse(await text(process.stdin))) {
  const verify = verifiers[request.style];
  verdicts[request.style] = { accepted: verify(request), tampered: verify({ ...request, body: `${request.body} ` }) };
}
process.stdout.write(JSON.stringify(verdicts));
