"""What a request is made from: times, idempotency keys, and the fields that are set."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, cast

from .errors import ApiError, BatchRefused, of_problem
from .types import AcceptedEvent, RateLimit

# A time: RFC 3339, or a datetime with a zone.
Time = str | datetime

# The answers of a batch whose events were all accepted, in the order of its events.
AcceptedEvents = list[AcceptedEvent]

# The answers of a batch, in the order of its events.
BatchResults = list[AcceptedEvent | ApiError]


def new_key() -> str:
    return str(uuid.uuid4())


def once() -> dict[str, Any]:
    """For a request that creates something: with its key, a repetition gets the first answer again."""
    return {"headers": {"idempotency-key": new_key()}, "repeatable": True}


def given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def lasting(reason: str, for_s: int | None, until: Time | None) -> dict[str, Any]:
    """The fields of what ends by itself."""
    return given({"for_s": for_s, "until": time_text(until), "reason": reason})


def limiting(
    rate_limits: Sequence[RateLimit] | None, max_in_flight: int | None, reason: str, for_s: int | None, until: Time | None
) -> dict[str, Any]:
    """The fields of an override of limits."""
    limits = None if rate_limits is None else [*rate_limits]
    return given({"rate_limits": limits, "max_in_flight": max_in_flight, **lasting(reason, for_s, until)})


def time_text(time: Time | None) -> str | None:
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise ValueError("a datetime needs a zone, such as timezone.utc")
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def results_of(items: list[dict[str, Any]], *, partial: bool) -> BatchResults:
    """The results of a batch. A refused event raises an error, unless the caller looks at each result."""
    results = [_result(item) for item in items]
    refused = {index: result for index, result in enumerate(results) if isinstance(result, ApiError)}
    if refused and not partial:
        raise BatchRefused(list(results), refused)
    return results


def _result(item: dict[str, Any]) -> AcceptedEvent | ApiError:
    problem = item.get("error")
    return cast(AcceptedEvent, item) if problem is None else of_problem(int(problem["status"]), problem)
