// A receiver of Weir's webhooks (Standard Webhooks), with only Node's standard library.
//
//     SECRET=whsec_... node receiver.mjs [port]

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

if (!process.env.SECRET) throw new Error("set SECRET to the destination's whsec_... secret");
// The old or the new secret: during a rotation each delivery is signed with both.
const SECRET = Buffer.from(process.env.SECRET.replace(/^whsec_/, ""), "base64");
const TOLERANCE_S = 300;
const MAX_BODY = 2 * 1024 * 1024;

// The accepted ids; the oldest is forgotten first. In production: a unique key in the database, written in the
// transaction that stores the event.
const seen = new Set();
const MAX_SEEN = 100_000;

// The reason to refuse the request; undefined if it is valid. `body` is the raw bytes, before any parsing.
function refusal(headers, body) {
  const id = headers["webhook-id"] ?? "";
  const sentAt = headers["webhook-timestamp"] ?? "";
  const expected = createHmac("sha256", SECRET).update(`${id}.${sentAt}.`).update(body).digest();
  const good = (headers["webhook-signature"] ?? "").split(" ").some((part) => {
    const given = Buffer.from(part.slice(3), "base64");
    // timingSafeEqual takes the same time for every wrong signature. It needs equal lengths; the length is not secret.
    return part.startsWith("v1,") && given.length === expected.length && timingSafeEqual(given, expected);
  });
  if (!good) return "bad signature";
  const age = Math.abs(Date.now() / 1000 - Number(sentAt));
  if (!(age <= TOLERANCE_S)) return "not recent";
}

// Remembers the id. A retry has the id of the first attempt, so an event is handled once.
function isNew(id) {
  if (seen.has(id)) return false;
  seen.add(id);
  if (seen.size > MAX_SEEN) seen.delete(seen.values().next().value);
  return true;
}

// Processes the event after the answer. In production: from a table or a queue that survives a restart.
function handle(id, body) {
  console.log("accepted", id, body.toString());
}

const server = createServer((request, response) => {
  const answer = (status) => response.writeHead(status).end();
  if (request.method !== "POST") return answer(405);
  const chunks = [];
  let length = 0;
  request.on("data", (chunk) => {
    length += chunk.length;
    if (length <= MAX_BODY) chunks.push(chunk);
  });
  request.on("end", () => {
    if (length > MAX_BODY) return answer(413);
    const body = Buffer.concat(chunks);
    const reason = refusal(request.headers, body);
    if (reason) {
      console.log("refused", reason);
      return answer(401);
    }
    const id = request.headers["webhook-id"];
    // A duplicate gets the same answer as the first: after a refusal it would be sent again.
    if (isNew(id)) setImmediate(handle, id, body);
    else console.log("duplicate", id);
    answer(204);
  });
});

server.listen(Number(process.argv[2] ?? 9000), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
