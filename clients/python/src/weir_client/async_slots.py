"""Slots of limit groups: a program that shares a quota with Weir takes its turn before each call.

The server says how long its slot is away, and how long it took for the answer. What the client measured beyond that is the
way of the request and the answer, so a call starts inside its slot whatever the clocks of both say.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

from .async_transport import AsyncTransport
from .errors import SlotMissed, Unavailable, WeirError
from .types import ReservedSlot

# One request waits for no longer than this, so that proxies do not end it.
LONGEST_POLL_S = 20.0
# Beyond its wait, a request may take this long.
ANSWER_S = 10.0
# A pause after a refusal that does not say how long to wait.
PAUSE_S = 1.0


def route_of(group: str, tenant: str) -> tuple[str, dict[str, str]]:
    """Where slots of a group are reserved, by its id or by its name."""
    if group.startswith("lgr_"):
        return "/v1/limit-groups/{id}/reservations", {"id": group}
    return "/v1/limit-groups/by-name/{tenant}/{name}/reservations", {"tenant": tenant, "name": group}


class AsyncLimit:
    """A limit group from which this program takes slots."""

    def __init__(self, transport: AsyncTransport, group: str, tenant: str) -> None:
        self._transport = transport
        self._route = route_of(group, tenant)

    def slot(self, *, cost: int = 1, wait_s: float = 30.0, width_ms: int = 250) -> AsyncSlot:
        """A slot for one call, which is made in the block.

        The block begins inside the slot. `Unavailable`: there was no slot within `wait_s`. `SlotMissed`: the slot was over
        before the block could begin, because this program or the network was slow; a larger `width_ms` helps.
        """
        return AsyncSlot(self._transport, self._route, cost, wait_s, width_ms)


class AsyncSlot:
    """One slot, as a block."""

    def __init__(
        self, transport: AsyncTransport, route: tuple[str, dict[str, str]], cost: int, wait_s: float, width_ms: int
    ) -> None:
        self._transport = transport
        self._route = route
        self._wanted = {"cost": cost, "width_ms": width_ms}
        self._wait_s = wait_s

    async def __aenter__(self) -> ReservedSlot:
        slot, starts, ends = await self._reserve()
        try:
            while (left := starts - time.monotonic()) > 0.0:
                await asyncio.sleep(left)
        except BaseException:
            # The block does not begin.
            await self._give_back(slot)
            raise
        if time.monotonic() >= ends:
            raise SlotMissed(f"the slot {slot['id']} was over before the call could start")
        return slot

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    async def _reserve(self) -> tuple[ReservedSlot, float, float]:
        """The slot, and when it starts and ends by the clock of this process."""
        route, parts = self._route
        deadline = time.monotonic() + self._wait_s
        while True:
            asked = time.monotonic()
            wait_s = max(0.0, min(deadline - asked, LONGEST_POLL_S))
            body: dict[str, Any] = {**self._wanted, "wait_ms": int(wait_s * 1000.0)}
            try:
                answer = await self._transport.send(
                    "POST", route, parts, body=body, retries=0, timeout=wait_s + ANSWER_S
                )
            except Unavailable as refused:
                pause = refused.retry_after_s or PAUSE_S
                if time.monotonic() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
                continue
            answered = time.monotonic()
            slot: ReservedSlot = answer.json()
            way = max(0.0, answered - asked - slot["took_ms"] / 1000.0)
            # The latest instant at which it may start, and the earliest at which it may end.
            return slot, answered + slot["starts_in_ms"] / 1000.0, answered - way + slot["ends_in_ms"] / 1000.0

    async def _give_back(self, slot: ReservedSlot) -> None:
        parts = {"id": slot["limit_group"], "rid": slot["id"]}
        try:
            await self._transport.send("DELETE", "/v1/limit-groups/{id}/reservations/{rid}", parts, retries=0)
        except WeirError:
            # It stays taken, which only delays others.
            pass
