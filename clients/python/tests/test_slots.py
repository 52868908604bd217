"""Slots of limit groups, against a server that answers as a test says."""

from __future__ import annotations

import asyncio
import json
import time
import unittest
import unittest.mock
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from weir_client import AsyncWeir, SlotMissed, Unavailable, Weir

BY_NAME = "/v1/limit-groups/by-name/default/stripe%20eu/reservations"


def granted(starts_in_ms: int, ends_in_ms: int, took_ms: int = 0) -> tuple[int, dict[str, Any]]:
    times = {"starts_in_ms": starts_in_ms, "ends_in_ms": ends_in_ms, "took_ms": took_ms}
    # The clock of the server is hours away: the client must not use it.
    instants = {"starts_at": "2000-01-01T00:00:00.000Z", "ends_at": "2000-01-01T00:00:00.250Z"}
    return 201, {"id": "rsv_1", "limit_group": "lgr_1", "cost": 1, **instants, **times}


NO_SLOT = (429, {"status": 429, "detail": "no slot", "next_at": "2026-11-21T07:30:04.250Z"})


class FakeServer(unittest.TestCase):
    """Answers from a list. After it, a DELETE is answered with 204."""

    def setUp(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.seen: list[tuple[str, str, Any]] = []
        self.delay_s = 0.0
        test = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                test.seen.append((self.command, self.path, json.loads(body)))
                time.sleep(test.delay_s)
                status, answer = test.answers.pop(0)
                self.send_response(status)
                if status == 429:
                    self.send_header("retry-after", "0")
                self.answer(json.dumps(answer).encode())

            def do_DELETE(self) -> None:
                test.seen.append((self.command, self.path, None))
                self.send_response(204)
                self.answer(b"")

            def answer(self, body: bytes) -> None:
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.weir = Weir(self.url)
        self.addCleanup(self.weir.close)

    def test_the_block_begins_when_the_slot_starts(self) -> None:
        self.answers = [granted(80, 5_000)]
        began = time.monotonic()
        with self.weir.limit("stripe eu").slot(cost=3, wait_s=12.0, width_ms=100) as slot:
            self.assertGreaterEqual(time.monotonic() - began, 0.08)
            self.assertEqual(slot["id"], "rsv_1")
        ((method, path, body),) = self.seen
        self.assertEqual((method, path, body["cost"], body["width_ms"]), ("POST", BY_NAME, 3, 100))
        self.assertTrue(11_000 < body["wait_ms"] <= 12_000, body)

    def test_a_long_wait_is_several_requests(self) -> None:
        self.answers = [NO_SLOT, NO_SLOT, granted(0, 5_000)]
        with self.weir.limit("lgr_1").slot(wait_s=60.0):
            pass
        self.assertEqual({path for _, path, _ in self.seen}, {"/v1/limit-groups/lgr_1/reservations"})
        self.assertEqual([body["wait_ms"] for _, _, body in self.seen], [20_000] * 3)

    def test_without_a_slot_in_time_the_block_does_not_begin(self) -> None:
        self.answers = [NO_SLOT]
        with self.assertRaises(Unavailable) as refused:
            with self.weir.limit("stripe eu").slot(wait_s=0.0):
                self.fail("there is no slot")
        self.assertEqual(refused.exception.next_at, "2026-11-21T07:30:04.250Z")

    def test_a_slot_that_may_be_over_is_missed(self) -> None:
        # The answer may have been 100 ms on its way, so the slot may have ended.
        self.delay_s = 0.1
        self.answers = [granted(0, 50), granted(0, 50, took_ms=95)]
        with self.assertRaises(SlotMissed):
            with self.weir.limit("stripe eu").slot():
                self.fail("the slot is over")
        # The same answer, if the server had it for most of that time.
        with self.weir.limit("stripe eu").slot():
            pass

    def test_a_slot_whose_block_does_not_begin_is_given_back(self) -> None:
        async def cancelled() -> None:
            async with AsyncWeir(self.url) as weir:

                async def call() -> None:
                    async with weir.limit("stripe eu").slot():
                        self.fail("it was cancelled before")

                waits, sleep = asyncio.Event(), asyncio.sleep

                async def waiting(seconds: float) -> None:
                    if seconds > 1.0:
                        waits.set()
                    await sleep(seconds)

                with unittest.mock.patch("asyncio.sleep", waiting):
                    task = asyncio.create_task(call())
                    await waits.wait()
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task

        self.answers = [granted(60_000, 61_000)]
        asyncio.run(cancelled())
        self.assertEqual(self.seen[1][:2], ("DELETE", "/v1/limit-groups/lgr_1/reservations/rsv_1"))

    def test_an_error_of_the_block_is_the_callers(self) -> None:
        self.answers = [granted(0, 5_000)]
        with self.assertRaises(KeyError):
            with self.weir.limit("stripe eu").slot():
                raise KeyError("of the call")
        self.assertEqual(len(self.seen), 1, "the slot was used")


if __name__ == "__main__":
    unittest.main()
