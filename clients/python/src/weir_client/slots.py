# Made from async_slots.py by unasync.py: edit that file.
"""Slots of limit groups: a program that shares a quota with Weir takes its turn before each call.

The server says how long its slot is away, and how long it took for the answer. What the client measured beyond that is the
way of the request and the answer, so a call starts inside its slot whatever the clocks of both say.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from .transport import Transport
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


class Limit:
    """A limit group from which this program takes slots."""

    def __init__(self, transport: Transport, group: str, tenant: str) -> None:
        self._transport = transport
        self._route = route_of(group, tenant)

    def slot(self, *, cost: int = 1, wait_s: float = 30.0, width_ms: int = 250) -> Slot:
        """A slot for one call, which is made in the block.

        The block begins inside the slot. `Unavailable`: there was no slot within `wait_s`. `SlotMissed`: the slot was over
        before the block could begin, because this program or the network was slow; a larger `width_ms` helps.
        """
        return Slot(self._transport, self._route, cost, wait_s, width_ms)


class Slot:
    """One slot, as a block."""

    def __init__(
        self, transport: Transport, route: tuple[str, dict[str, str]], cost: int, wait_s: float, width_ms: int
    ) -> None:
        self._transport = transport
        self._route = route
        self._wanted = {"cost": cost, "width_ms": width_ms}
        self._wait_s = wait_s

    def __enter__(self) -> ReservedSlot:
        slot, starts, ends = self._reserve()
        try:
            while (left := starts - time.monotonic()) > 0.0:
                time.sleep(left)
        except BaseException:
            # The block does not begin.
            self._give_back(slot)
            raise
        if time.monotonic() >= ends:
            raise SlotMissed(f"the slot {slot['id']} was over before the call could start")
        return slot

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def _reserve(self) -> tuple[ReservedSlot, float, float]:
        """The slot, and when it starts and ends by the clock of this process."""
        route, parts = self._route
        deadline = time.monotonic() + self._wait_s
        while True:
            asked = time.monotonic()
            wait_s = max(0.0, min(deadline - asked, LONGEST_POLL_S))
            body: dict[str, Any] = {**self._wanted, "wait_ms": int(wait_s * 1000.0)}
            try:
                answer = self._transport.send(
                    "POST", route, parts, body=body, retries=0, timeout=wait_s + ANSWER_S
                )
            except Unavailable as refused:
                pause = refused.retry_after_s or PAUSE_S
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                continue
            answered = time.monotonic()
            slot: ReservedSlot = answer.json()
            way = max(0.0, answered - asked - slot["took_ms"] / 1000.0)
            # The latest instant at which it may start, and the earliest at which it may end.
            return slot, answered + slot["starts_in_ms"] / 1000.0, answered - way + slot["ends_in_ms"] / 1000.0

    def _give_back(self, slot: ReservedSlot) -> None:
        parts = {"id": slot["limit_group"], "rid": slot["id"]}
        try:
            self._transport.send("DELETE", "/v1/limit-groups/{id}/reservations/{rid}", parts, retries=0)
        except WeirError:
            # It stays taken, which only delays others.
            pass
