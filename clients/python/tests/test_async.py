"""The asynchronous client against a running Weir. Its methods are those of the other client, which is made from it."""

from __future__ import annotations

import asyncio
import inspect
import os
import unittest
import unittest.mock
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from weir_client import AsyncWeir, ConnectionFailed, NotFound, Unavailable, Weir

URL = os.environ["WEIR_URL"]
KEY = os.environ["WEIR_API_KEY"]
RECEIVER = os.environ["RECEIVER"]


def shape(client: object) -> dict[str, object]:
    """The methods of all groups, with their parameters."""
    groups = {"": client, **{name: group for name, group in vars(client).items() if not name.startswith("_")}}
    return {
        f"{path}.{name}": [*inspect.signature(method).parameters]
        for path, group in groups.items()
        for name, method in inspect.getmembers(group, callable)
        if not name.startswith("_") and name not in ("close", "aclose")
    }


class AgainstWeir(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.weir = AsyncWeir(URL, key=KEY)

    async def asyncTearDown(self) -> None:
        await self.weir.aclose()

    async def test_events_are_posted_at_the_same_time_delivered_and_listed(self) -> None:
        created = await self.weir.destinations.create({"url": RECEIVER, "tenant": "async"})
        posted = await asyncio.gather(*(self.weir.events.post("a", n, tenant="async") for n in range(20)))
        self.assertEqual(len({event["id"] for event in posted}), 20)
        while (backlog := await self.weir.destinations.backlog(created["id"])) and (
            backlog["pending"] + backlog["delivering"]
        ):
            pass
        delivered = [one["state"] async for one in self.weir.deliveries.list(destination=created["id"])]
        self.assertEqual(delivered, ["delivered"] * 20)
        rows, cursor = await self.weir.events.list(tenant="async").page(limit=3)
        self.assertEqual((len(rows), cursor is None), (3, False))
        await self.weir.destinations.delete(created["id"])
        with self.assertRaises(NotFound):
            await self.weir.destinations.get(created["id"])

    async def test_it_has_the_methods_of_the_other_client(self) -> None:
        with Weir(URL, key=KEY) as other:
            self.assertEqual(shape(self.weir), shape(other))

    async def test_it_is_used_in_a_block(self) -> None:
        async with AsyncWeir(URL, key=KEY) as weir:
            self.assertEqual((await weir.me())["role"], "admin")

    async def test_a_busy_server_is_asked_again_and_the_last_refusal_is_told(self) -> None:
        answers: list[int | None] = [503, 200, 503, None]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = answers.pop(0)
                if answer is None:
                    self.connection.close()
                    return
                self.send_response(answer)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_PATCH = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        waits: list[float] = []
        yield_once = asyncio.sleep

        async def sleep(seconds: float) -> None:
            # Libraries sleep for no time to let other tasks run.
            if seconds:
                waits.append(seconds)
            await yield_once(0)

        with unittest.mock.patch("weir_client.async_transport.asyncio.sleep", sleep):
            async with AsyncWeir(f"http://127.0.0.1:{server.server_port}", retries=1, timeout=5) as weir:
                await weir.alerts.get()
                with self.assertRaises(ConnectionFailed) as failed:
                    await weir.destinations.edit("dst_1", {"paused": True})
        self.assertIsInstance(failed.exception.last_refusal, Unavailable)
        self.assertEqual(len(waits), 2)


if __name__ == "__main__":
    unittest.main()
