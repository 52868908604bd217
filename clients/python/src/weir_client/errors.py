"""The errors of the client: refusals of the server by kind, and requests without an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class WeirError(Exception):
    """Every error of this package."""


class ConnectionFailed(WeirError):
    """No connection, or no answer in time. Whether the request took effect is unknown."""

    def __init__(self, message: str, last_refusal: ApiError | None = None) -> None:
        # The last answer before the connection failed, if the server refused an earlier attempt with 429 or 503.
        self.last_refusal = last_refusal
        super().__init__(f"{message}; before that, {last_refusal}" if last_refusal else message)


@dataclass(frozen=True)
class FieldError:
    """One error of a request: the JSON pointer of the value, and what is expected."""

    pointer: str
    detail: str


class ApiError(WeirError):
    """A refusal of the server (RFC 9457)."""

    def __init__(
        self, status: int, problem: dict[str, Any], request_id: str | None, retry_after_s: float | None = None
    ) -> None:
        self.status = status
        self.type = str(problem.get("type", "about:blank"))
        self.title = str(problem.get("title", f"HTTP status {status}"))
        self.detail = str(problem.get("detail", ""))
        self.errors = [FieldError(str(error["pointer"]), str(error["detail"])) for error in problem.get("errors", [])]
        # The `x-request-id` of the answer, by which the log of the server names the request.
        self.request_id = request_id
        # When a slot of the limit group is expected (RFC 3339), of a reservation that got none in time.
        self.next_at: str | None = problem.get("next_at")
        # The seconds of `Retry-After`, if the answer has it.
        self.retry_after_s = retry_after_s
        reasons = "; ".join(f"{error.pointer} {error.detail}".strip() for error in self.errors)
        super().__init__(f"{status}: {reasons or self.detail or self.title}")


class InvalidRequest(ApiError):
    """400, 413 and 422: the request is wrong. `errors` names the fields."""


class Unauthorized(ApiError):
    """401: the API key is missing or not valid."""


class Forbidden(ApiError):
    """403: the role of the API key does not allow this."""


class NotFound(ApiError):
    """404: there is no such object for this key."""


class Conflict(ApiError):
    """409: the current state does not allow this."""


class PreconditionFailed(ApiError):
    """412: the object has changed since it was read."""


class Unavailable(ApiError):
    """429 and 503, after all retries: the server cannot take the request now."""


class SlotMissed(WeirError):
    """A reserved slot was over before its block could begin. The call was not made."""


class BatchRefused(WeirError):
    """Events of a batch were refused. The others are stored."""

    def __init__(self, results: list[Any], refused: dict[int, ApiError]) -> None:
        # The results of all events in their order: an accepted event, or its error.
        self.results = results
        # The errors of the refused events, by the index in the batch.
        self.refused = refused
        first = "; ".join(f"event {index}: {error}" for index, error in list(refused.items())[:3])
        super().__init__(f"{len(refused)} of {len(results)} events were refused: {first}")


_KINDS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: InvalidRequest,
    422: InvalidRequest,
    429: Unavailable,
    503: Unavailable,
}


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error of an answer. The answer of a proxy may be no problem document."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = {}
    problem = problem if isinstance(problem, dict) else {}
    return _KINDS.get(status, ApiError)(status, problem, headers.get("x-request-id"), _retry_after(headers))


def of_problem(status: int, problem: dict[str, Any]) -> ApiError:
    return _KINDS.get(status, ApiError)(status, problem, None)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of `Retry-After`. Weir sends no dates."""
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None
