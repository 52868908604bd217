"""A receiver of Weir's webhooks (Standard Webhooks), with only Python's standard library.

    SECRET=whsec_... python3 receiver.py [port]
"""

import base64, collections, hashlib, hmac, os, queue, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The old or the new secret: during a rotation each delivery is signed with both.
SECRET = base64.b64decode(os.environ["SECRET"].removeprefix("whsec_"))
TOLERANCE_S = 300
MAX_BODY = 2 * 1024 * 1024

# The accepted ids; the oldest is forgotten first. In production: a unique key in the database, written in the
# transaction that stores the event.
seen, seen_lock, MAX_SEEN = collections.OrderedDict(), threading.Lock(), 100_000
# In production: a table or a queue that survives a restart.
work = queue.Queue()


def refusal(headers, body):
    """The reason to refuse the request; None if it is valid. `body` is the raw bytes, before any parsing."""
    event_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    message = f"{event_id}.{sent_at}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET, message, hashlib.sha256).digest())
    signatures = [part[3:] for part in headers.get("webhook-signature", "").split(" ") if part.startswith("v1,")]
    # compare_digest takes the same time for every wrong signature, so the time reveals nothing about the right one.
    if not any(hmac.compare_digest(expected, signature.encode()) for signature in signatures):
        return "bad signature"
    # The signature covers the time, so the time is a number here.
    if abs(time.time() - int(sent_at)) > TOLERANCE_S:
        return "not recent"
    return None


def is_new(event_id):
    """Remembers the id. A retry has the id of the first attempt, so an event is handled once."""
    with seen_lock:
        if event_id in seen:
            return False
        seen[event_id] = True
        if len(seen) > MAX_SEEN:
            seen.popitem(last=False)
        return True


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        if length > MAX_BODY:
            self.close_connection = True
            return self.answer(413)
        body = self.rfile.read(length)
        reason = refusal(self.headers, body)
        if reason:
            print("refused", reason, flush=True)
            return self.answer(401)
        event_id = self.headers["webhook-id"]
        if is_new(event_id):
            work.put((event_id, body))
        else:
            # A duplicate gets the same answer as the first: after a refusal it would be sent again.
            print("duplicate", event_id, flush=True)
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """A thread for each connection. Weir keeps several connections open, so one thread would keep the others waiting."""

    # Connections that come at the same time wait here, instead of being refused.
    request_queue_size = 128


def handle_events():
    """Processes the events after the answer, so the sender does not wait for it and does not time out."""
    while True:
        event_id, body = work.get()
        print("accepted", event_id, body.decode(), flush=True)


if __name__ == "__main__":
    threading.Thread(target=handle_events, daemon=True).start()
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Receiver)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
