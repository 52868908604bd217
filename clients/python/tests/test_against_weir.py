"""The client against a running Weir. WEIR_URL and WEIR_API_KEY name it; RECEIVER is the URL of a receiver."""

from __future__ import annotations

import functools
import os
import threading
import unittest
import unittest.mock
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

from weir_client import (
    BatchRefused,
    Conflict,
    ConnectionFailed,
    FieldError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RateLimit,
    Unauthorized,
    Unavailable,
    Weir,
)

URL = os.environ["WEIR_URL"]
KEY = os.environ["WEIR_API_KEY"]
RECEIVER = os.environ["RECEIVER"]


# The methods that a test has called and that have succeeded.
CALLED: set[str] = set()


def methods(client: Weir) -> Iterator[tuple[object, str, str]]:
    """The public methods: their objects, their names, and the names by which users know them, such as `events.post`."""
    groups = {f"{name}.": group for name, group in vars(client).items() if not name.startswith("_")}
    for path, group in {"": client, **groups}.items():
        for name, method in vars(type(group)).items():
            if callable(method) and not name.startswith("_"):
                yield group, name, path + name


def recorded(path: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*values: Any, **options: Any) -> Any:
        answer = method(*values, **options)
        CALLED.add(path)
        return answer

    return call


class AgainstWeir(unittest.TestCase):
    def setUp(self) -> None:
        self.weir = Weir(URL, key=KEY)
        for group, name, path in methods(self.weir):
            setattr(group, name, recorded(path, getattr(group, name)))
        self.addCleanup(self.weir.close)

    @classmethod
    def tearDownClass(cls) -> None:
        # The clean-ups of the tests have closed their clients.
        with Weir(URL, key=KEY) as client:
            missing = [path for _, _, path in methods(client) if path not in CALLED]
        assert not missing, f"no test calls {missing}"

    def test_integers_of_64_bits_keep_their_digits_in_both_directions(self) -> None:
        created = self.weir.destinations.create({"url": RECEIVER, "tenant": "integers", "paused": True})
        data = {"id": 2**53 + 1, "least": -(2**63), "most": 2**64 - 1}
        accepted = self.weir.events.post("video.created", data, tenant="integers")
        self.assertEqual(self.weir.events.get(accepted["id"])["data"], data)
        self.weir.destinations.delete(created["id"])

    def test_a_destination_is_created_edited_and_deleted(self) -> None:
        created = self.weir.destinations.create(
            {"url": RECEIVER, "tenant": "edits", "rate_limits": [{"limit": 10, "period": "second"}]}
        )
        id = created["id"]
        self.assertEqual(self.weir.destinations.secret(id)["secret"], created["secret"])
        destination, version = self.weir.destinations.get_version(id)
        self.assertEqual(destination["rate_limits"], [{"limit": 10, "period": "second", "burst": 1, "margin_ms": 0}])
        edited = self.weir.destinations.edit(id, {"paused": True}, if_match=version)
        self.assertTrue(edited["paused"])
        with self.assertRaises(PreconditionFailed):
            self.weir.destinations.edit(id, {"paused": False}, if_match=version)
        self.assertIsNone(self.weir.destinations.release(id)["held_until"])
        self.assertNotEqual(self.weir.destinations.rotate_secret(id)["secret"], created["secret"])
        limits: list[RateLimit] = [{"limit": 50, "period": "second"}]
        raised = self.weir.destinations.override(id, "launch day", rate_limits=limits, for_s=60)
        assert raised["override"]
        self.assertEqual((raised["override"]["reason"], raised["replaced"]), ("launch day", None))
        until = datetime.now(timezone.utc) + timedelta(hours=1)
        calmer = self.weir.destinations.override(id, "calmer", max_in_flight=3, until=until)
        assert calmer["override"]
        self.assertEqual((calmer["override"]["max_in_flight"], calmer["replaced"]), (3, raised["override"]))
        self.assertIsNone(self.weir.destinations.end_override(id)["override"])
        held = self.weir.destinations.hold(id, "their maintenance", for_s=60)
        assert held["hold"]
        self.assertEqual((held["hold"]["until"], held["replaced"]), (held["held_until"], None))
        self.assertIsNone(self.weir.destinations.end_hold(id)["held_until"])
        filtered = self.weir.destinations.list(tenant="edits", url=RECEIVER, state="paused", q="/CLIENT")
        self.assertEqual([one["id"] for one in filtered], [id])
        self.assertEqual(list(self.weir.destinations.list(tenant="edits", name="another")), [])
        self.weir.destinations.delete(id)
        with self.assertRaises(NotFound):
            self.weir.destinations.get(id)
        named = self.weir.destinations.put("named", "a/b", {"url": RECEIVER}, only_create=True)
        again = self.weir.destinations.put("named", "a/b", {"url": RECEIVER, "paused": True})
        self.assertEqual((again["id"], again["name"], again["paused"]), (named["id"], "a/b", True))
        deleted = next(iter(self.weir.activity.list(destination=id)))
        self.assertEqual((deleted["action"], deleted["after"]), ("destination.deleted", None))

    def test_events_are_delivered_audited_and_replayed(self) -> None:
        id = self.weir.destinations.create({"url": RECEIVER, "tenant": "sent"})["id"]
        event = self.weir.events.post("video.created", {"id": 7}, tenant="sent", idempotency_key="python-7")
        self.assertEqual((event["deliveries"], event["duplicate"]), (1, False))
        again = self.weir.events.post("video.created", {"id": 7}, tenant="sent", idempotency_key="python-7")
        self.assertEqual((again["id"], again["duplicate"]), (event["id"], True))
        with self.assertRaises(InvalidRequest):
            self.weir.events.post("video.created", {"id": 8}, tenant="sent", idempotency_key="python-7")
        found = list(self.weir.events.list(tenant="sent", idempotency_key="python-7", order="oldest"))
        self.assertEqual([one["id"] for one in found], [event["id"]])
        self.assertEqual(self.weir.events.get(event["id"])["data"], {"id": 7})

        test = self.weir.destinations.test(id)
        self.wait_until_sent(id)
        self.assertEqual(self.weir.deliveries.get(test["id"])["attempts"][0]["status_code"], 204)
        self.assertEqual(len(list(self.weir.deliveries.list(destination=id, state="delivered"))), 2)
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        self.assertEqual(self.weir.destinations.audit(id, from_=hour_ago)["sends"], 2)
        self.assertEqual(self.weir.replays.count({"states": ["delivered"], "destination": id}), 2)
        replay = self.weir.replays.create({"states": ["delivered"], "destination": id})
        self.assertEqual(self.weir.replays.get(replay["id"])["total"], 2)
        self.assertIn(replay["id"], [one["id"] for one in self.weir.replays.list()])
        self.wait_until_sent(id)

    def test_an_event_has_a_cost_of_a_limit_in_points(self) -> None:
        limits: list[Any] = [{"limit": 100, "period": "minute", "unit": "cost"}]
        settings: Any = {"url": RECEIVER, "tenant": "points", "rate_limits": limits, "paused": True}
        destination = self.weir.destinations.create(settings)
        self.assertEqual(destination["rate_limits"][0].get("unit"), "cost")
        event = self.weir.events.post("a", 1, tenant="points", cost=60)
        self.assertEqual(self.weir.events.get(event["id"])["deliveries"][0].get("cost"), 60)
        with self.assertRaises(InvalidRequest):
            self.weir.events.post("a", 1, tenant="points", cost=101)

    def test_what_waits_is_retried_cancelled_and_purged(self) -> None:
        id = self.weir.destinations.create({"url": RECEIVER, "tenant": "waits", "paused": True})["id"]
        with self.assertRaises(BatchRefused) as raised:
            self.weir.events.post_batch(
                [
                    {"type": "a", "data": 1, "tenant": "waits"},
                    {"type": "b b", "data": 1},
                    {"type": "a", "data": 2, "tenant": "waits"},
                ]
            )
        refused = raised.exception.refused[1]
        assert isinstance(refused, InvalidRequest)
        self.assertEqual([error.pointer for error in refused.errors], ["/type"])
        self.assertTrue(str(raised.exception).startswith("1 of 3 events were refused: event 1: 422: /type "))
        self.assertEqual(raised.exception.results[0]["type"], "a")
        results = self.weir.events.post_batch([{"type": "b b", "data": 1}, {"type": "c", "data": 1}], partial=True)
        self.assertEqual([isinstance(result, InvalidRequest) for result in results], [True, False])
        first, second = self.weir.deliveries.list(destination=id)
        self.assertEqual(self.weir.deliveries.count(destination=id, state=["pending"]), {"value": 2, "capped": False})
        self.assertEqual(self.weir.deliveries.retry(first["id"])["state"], "pending")
        self.assertEqual(self.weir.deliveries.cancel(first["id"])["state"], "cancelled")
        with self.assertRaises(Conflict):
            self.weir.deliveries.cancel(first["id"])
        self.assertEqual(self.weir.destinations.backlog(id)["pending"], 1)
        self.assertEqual(self.weir.destinations.count_purge(id, {"event_type": "a"}), 1)
        self.assertEqual(self.weir.destinations.purge(id), 1)
        self.assertEqual(self.weir.deliveries.get(second["id"])["state"], "cancelled")

    def test_dead_letters_are_what_is_wrong_until_they_are_discarded(self) -> None:
        tenant = "letters"
        # Nothing listens there.
        destination = {"url": "http://127.0.0.1:1/", "tenant": tenant, "retry": {"max_attempts": 1}}
        id = self.weir.destinations.create(destination)["id"]  # type: ignore[arg-type]
        for _ in range(3):
            self.weir.events.post("a", 1, tenant=tenant)
        self.wait_until_sent(id)
        wrong = list(self.weir.alerts.active(tenant=tenant, type="weir.delivery.dead"))
        self.assertEqual([alert["destination_id"] for alert in wrong], [id])
        letter = next(iter(self.weir.deliveries.list(destination=id, state="dead")))
        self.assertEqual(self.weir.deliveries.discard(letter["id"], reason="a test")["state"], "cancelled")
        self.assertEqual(self.weir.deliveries.count_discard({"destination": id}), 2)
        self.assertEqual(self.weir.deliveries.discard_all({"destination": id}), 2)
        self.assertEqual(list(self.weir.alerts.active(tenant=tenant)), [])
        arrivals = sum(minute["arrivals"] for minute in self.weir.overview_history(tenant=tenant)["data"])
        self.assertEqual(arrivals, 3)

    def test_a_destination_shows_its_state_its_past_and_its_future(self) -> None:
        created = self.weir.destinations.create(
            {"url": RECEIVER, "tenant": "shown", "name": "shown", "rate_limits": [{"limit": 100, "period": "second"}]}
        )
        id = created["id"]
        self.assertEqual(self.weir.destinations.get(id)["name"], "shown")
        self.weir.events.post("shown", 1, tenant="shown")
        self.wait_until_sent(id)
        history = self.weir.destinations.history(id, step="10s")
        self.assertEqual((history["step"], sum(bucket["sends"] for bucket in history["data"])), ("10s", 1))
        health = self.weir.destinations.health(id, window="24h")
        self.assertEqual((health["window"], health["delivered"], health["success_ratio"]), ("24h", 1, 1))
        row = self.weir.destinations.overview(id)
        self.assertEqual((row["destination"]["id"], row["backlog"], row["reason"]), (id, 0, None))
        self.assertEqual([one["destination"]["name"] for one in self.weir.overview(tenant="shown")], ["shown"])
        tried = self.weir.destinations.try_filter(id, {"amount": 120}, filter={"/amount": {"gte": 100}})
        self.assertTrue(tried["matches"])
        preview = self.weir.destinations.preview(id, rate_limits=[{"limit": 60, "period": "minute"}])
        self.assertEqual((preview["binding"], preview["would_expire"]), ({"limit": 60, "period": "minute"}, False))
        self.assertEqual(preview["now"]["binding"], {"limit": 100, "period": "second"})
        rate = self.weir.destinations.rate(id)
        self.assertEqual((rate["adaptive_rate"], rate["data"]), (None, []))
        past = self.weir.destinations.simulate(id, rate_limits=[{"limit": 60, "period": "minute"}], latency_p99_ms=5_000)
        self.assertEqual((past["verdict"], past["truncated"], len(past["series"])), ("drains", False, 120))

        headers = {"webhook-id": "evt_1", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
        verified = self.weir.verify(headers, "{}", secret=created["secret"])
        self.assertFalse(verified["valid"])
        self.assertTrue(verified["reason"])

        status = self.weir.status()
        self.assertTrue(status["store"]["is_reachable"] and status["queue"]["is_reachable"] and status["processes"])
        me = self.weir.me()
        self.assertEqual((me["role"], me["tenants"], me["version"]), ("admin", None, status["version"]))

    def test_failures_are_grouped_and_a_replay_is_cancelled(self) -> None:
        # Nothing listens there.
        nowhere = f"http://{urlsplit(RECEIVER).hostname}:1/"
        id = self.weir.destinations.create(
            {"url": nowhere, "tenant": "failures", "name": "nowhere", "retry": {"max_attempts": 1}, "breaker": None}
        )["id"]
        self.weir.events.post_batch([{"type": "lost", "data": n, "tenant": "failures"} for n in range(2)])
        self.wait_until_sent(id)
        groups = self.weir.deliveries.groups(tenant="failures")
        found = [(group["destination_name"], group["deliveries"]) for group in groups["data"]]
        self.assertEqual((found, groups["capped"]), ([("nowhere", 2)], False))
        self.weir.destinations.edit(id, {"paused": True})
        replay = self.weir.replays.create({"destination": id})
        self.assertEqual(self.weir.replays.cancel(replay["id"])["state"], "cancelled")

    def test_a_list_spans_pages(self) -> None:
        events = [{"type": "many", "data": n, "tenant": "pages"} for n in range(450)]
        self.weir.events.post_batch(events)  # type: ignore[arg-type]
        found = self.weir.events.list(tenant="pages", include_data=True)
        self.assertEqual(sorted(event["data"] for event in found), list(range(450)))
        rows, cursor = found.page(limit=3)
        self.assertEqual(len(rows), 3)
        self.assertIsNotNone(cursor)

    def test_keys_and_alert_thresholds(self) -> None:
        key = self.weir.keys.create({"name": "python", "role": "read", "tenants": ["sent"]})
        with Weir(URL, key=key["secret"]) as reader:
            list(reader.events.list())
            self.assertEqual((reader.me()["role"], reader.me()["tenants"]), ("read", ["sent"]))
        self.weir.keys.delete(key["id"])
        self.assertNotIn(key["id"], [one["id"] for one in self.weir.keys.list()])
        self.assertEqual(self.weir.alerts.set({"backlog_depth": 7})["backlog_depth"], 7)
        self.assertEqual(self.weir.alerts.get()["backlog_depth"], 7)
        self.assertEqual(self.weir.shedding.set({"target_ms": 300})["target_ms"], 300)
        self.assertEqual(self.weir.shedding.get()["target_ms"], 300)

    def test_the_catalogue_of_event_types(self) -> None:
        types = self.weir.event_types
        added = types.put("py.created", {"description": "A test.", "schema": {"type": "object"}}, only_create=True)
        self.assertEqual(added["schema"], {"type": "object"})
        with self.assertRaises(PreconditionFailed):
            types.put("py.created", {}, only_create=True)
        found, version = types.get_version("py.created")
        self.assertEqual((found, types.get("py.created")), (added, added))
        self.assertEqual(types.put("py.created", {"example": {"id": 7}}, if_match=version)["example"], {"id": 7})
        self.assertEqual([one["name"] for one in types.list(q="PY.")], ["py.created"])
        with self.assertRaises(InvalidRequest) as refused:
            types.put("py.created", {"schema": {"requred": []}})
        self.assertEqual(refused.exception.errors[0].pointer, "/schema/requred")
        types.delete("py.created")
        self.assertEqual(list(types.list(q="py.")), [])

    def test_a_limit_key_has_a_rate_of_its_own_is_listed_and_paused(self) -> None:
        keys: Any = {"key": "/customer", "rate_limits": [{"limit": 5, "period": "second"}]}
        settings: Any = {"url": RECEIVER, "tenant": "limit-keys", "key_limits": keys, "paused": True}
        id = self.weir.destinations.create(settings)["id"]
        self.weir.events.post("a", {"customer": "cus_1"}, tenant="limit-keys")
        self.weir.events.post("a", {}, tenant="limit-keys", limit_key="a/b")
        shown = self.weir.destinations.limit_keys(id, sort="use", limit=10)
        self.assertEqual(sorted(row["key"] for row in shown["data"]), ["a/b", "cus_1"])
        self.assertEqual(self.weir.destinations.limit_keys(id, q="cus")["data"][0]["waiting"], 1)
        of_key = self.weir.destinations.backlog(id, key="a/b")
        self.assertEqual((of_key["pending"], of_key.get("limit_key")), (1, "a/b"))
        self.assertEqual(self.weir.destinations.audit(id, key="a/b")["sends"], 0)
        paused: Any = self.weir.destinations.pause_key(id, "a/b")
        self.assertTrue(paused["key_limits"]["overrides"]["a/b"]["paused"])
        resumed: Any = self.weir.destinations.resume_key(id, "a/b")
        self.assertEqual(resumed["key_limits"]["overrides"], {})
        found = self.weir.deliveries.list(destination=id, limit_key="a/b")
        self.assertEqual([one.get("limit_key") for one in found], ["a/b"])
        self.assertEqual(self.weir.destinations.purge(id, {"limit_key": "cus_1"}), 1)

    def test_a_limit_group_and_its_members(self) -> None:
        groups, name = self.weir.limit_groups, f"py {uuid.uuid4()}"
        made = groups.create({"name": name, "rate_limits": [{"limit": 10, "period": "second"}]})
        with self.assertRaises(Conflict):
            groups.create({"name": name})
        member = self.weir.destinations.create({"url": "https://example.com/", "limit_group": made["id"], "weight": 2})
        shown = groups.overview(made["id"])
        self.assertEqual([(one["id"], one["weight"]) for one in shown["data"]], [(member["id"], 2)])
        self.assertIn(made["id"], [one["id"] for one in groups.list()])
        found, version = groups.get_version(made["id"])
        self.assertEqual(groups.get(made["id"]), found)
        edited = groups.edit(made["id"], {"max_in_flight": 5}, if_match=version)
        self.assertEqual((found["max_in_flight"], edited["max_in_flight"]), (None, 5))
        preview = groups.preview(made["id"], rate_limits=[{"limit": 20, "period": "second"}])
        self.assertGreater(preview["effective_per_s"] or 0, preview["now"]["effective_per_s"] or 0)
        self.assertEqual(groups.audit(made["id"])["sends"], 0)
        self.assertEqual(groups.history(made["id"], step="1m")["step"], "1m")
        begun = groups.override(made["id"], max_in_flight=9, for_s=600, reason="launch day")
        override = begun["override"]
        assert override is not None
        self.assertEqual(override["reason"], "launch day")
        self.assertIsNone(groups.end_override(made["id"])["override"])
        self.assertIsNotNone(groups.hold(made["id"], for_s=600, reason="their maintenance")["hold"])
        self.assertIsNone(groups.end_hold(made["id"])["hold"])
        reserved = groups.reserve(made["id"], wait_ms=5_000)
        groups.reserve_by_name("default", name, wait_ms=5_000)
        with self.weir.limit(name).slot(width_ms=2_500):
            pass
        self.assertIn(reserved["id"], [one["id"] for one in groups.reservations(made["id"])])
        # A slot begins soon after it is given: on a busy machine it has begun before it is given back.
        is_given = True
        while is_given:
            slot = groups.reserve(made["id"], wait_ms=5_000)
            try:
                groups.give_back(made["id"], slot["id"])
                is_given = False
            except Conflict:
                pass
        with self.assertRaises(Conflict):
            groups.delete(made["id"])
        self.weir.destinations.delete(member["id"])
        groups.delete(made["id"])
        put = groups.put("default", name, {"max_in_flight": 3}, only_create=True)
        groups.delete(put["id"])

    def test_refusals_name_the_fields(self) -> None:
        with self.assertRaises(InvalidRequest) as refused:
            self.weir.destinations.create({"url": "ftp://x", "max_in_flight": 0})
        self.assertEqual({error.pointer for error in refused.exception.errors}, {"/url", "/max_in_flight"})
        self.assertIsInstance(refused.exception.errors[0], FieldError)
        with self.assertRaises(Unauthorized), Weir(URL, key="wrong") as stranger:
            stranger.alerts.get()

    def wait_until_sent(self, id: str) -> None:
        while any(self.weir.destinations.backlog(id)[state] for state in ("pending", "delivering", "retrying")):
            pass


class Answering(unittest.TestCase):
    """Retries, against a server that answers as it is told."""

    def setUp(self) -> None:
        self.answers: list[tuple[int, dict[str, str]] | None] = []
        self.requests: list[tuple[str, str | None, bytes]] = []
        test = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                test.requests.append((self.command, self.headers.get("idempotency-key"), body))
                answer = test.answers.pop(0)
                if answer is None:
                    self.connection.close()
                    return
                status, headers = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_PATCH = do_POST

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.waits: list[float] = []
        sleep = unittest.mock.patch("time.sleep", self.waits.append)
        sleep.start()
        self.addCleanup(sleep.stop)
        self.weir = Weir(f"http://127.0.0.1:{server.server_port}", retries=3, timeout=5)
        self.addCleanup(self.weir.close)

    def test_a_busy_server_is_asked_again_after_the_pause_that_it_names(self) -> None:
        self.answers = [(503, {"retry-after": "2"}), (429, {}), (200, {})]
        self.weir.alerts.get()
        self.assertEqual(len(self.requests), 3)
        self.assertTrue(2.0 <= self.waits[0] <= 2.25 and 0.0 <= self.waits[1] <= 0.5, self.waits)

    def test_retries_end(self) -> None:
        self.answers = [(503, {})] * 4
        with self.assertRaises(Unavailable):
            self.weir.alerts.get()
        self.answers = [(429, {"retry-after": "3600"})]
        with self.assertRaises(Unavailable):
            self.weir.alerts.get()
        self.assertEqual(len(self.requests), 5)

    def test_the_last_refusal_is_told_when_the_connection_fails_after_it(self) -> None:
        self.answers = [(503, {"retry-after": "1", "x-request-id": "r-1"}), None]
        with self.assertRaises(ConnectionFailed) as failed:
            self.weir.destinations.edit("dst_1", {"paused": True})
        refusal = failed.exception.last_refusal
        assert isinstance(refusal, Unavailable)
        self.assertEqual((refusal.status, refusal.retry_after_s, refusal.request_id), (503, 1.0, "r-1"))
        self.assertIn("; before that, 503: ", str(failed.exception))

    def test_an_event_whose_answer_is_lost_is_posted_again_with_the_same_key(self) -> None:
        self.answers = [None, (202, {})]
        self.weir.events.post("a", 1)
        first, second = self.requests
        self.assertEqual(first, second)
        self.assertIn(b"idempotency_key", first[2])
        self.answers = [None, (201, {})]
        self.weir.destinations.create({"url": "https://example.com"})
        self.assertIsNotNone(self.requests[2][1])
        self.assertEqual(self.requests[2], self.requests[3])

    def test_a_change_whose_answer_is_lost_is_not_repeated(self) -> None:
        self.answers = [None]
        with self.assertRaises(ConnectionFailed):
            self.weir.destinations.edit("dst_1", {"paused": True})
        self.assertEqual(len(self.requests), 1)


if __name__ == "__main__":
    unittest.main()
