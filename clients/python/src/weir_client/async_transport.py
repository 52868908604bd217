"""Requests with retries.

A request is repeated after 429 and 503, which change nothing, and after a failed connection. After a request whose answer
was lost it is repeated only if that cannot take effect twice: reads, and writes with an idempotency key.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any
from urllib.parse import quote

import httpx

from .errors import ApiError, ConnectionFailed, refusal

# Delays double from the first to the longest one, each shortened by chance so that clients do not return together.
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 8.0
# A server that asks for a longer pause than this gets no retry: the caller decides.
LONGEST_RETRY_AFTER_S = 60.0
# The request cannot have taken effect.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class AsyncTransport:
    """Sends requests to one server."""

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        headers = {"accept": "application/json", "user-agent": "weir-client-python/0.1.0"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self._base = url.rstrip("/")
        self._retries = retries
        # A redirected POST would become a GET.
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, follow_redirects=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        route: str,
        parts: dict[str, str] | None = None,
        *,
        query: dict[str, Any] | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
        repeatable: bool = False,
        retries: int | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Sends a request and returns a successful answer.

        `route` is a path of the API's document, such as `/v1/events/{id}`, and `parts` has the values of its parameters.
        `repeatable`: the request may be repeated although it may have taken effect. `retries` and `timeout`, in seconds: in
        place of those of the client.
        """
        escaped = {name: quote(value, safe="") for name, value in (parts or {}).items()}
        request = self._http.build_request(
            method,
            self._base + route.format(**escaped),
            params={name: _text(value) for name, value in (query or {}).items() if value is not None},
            json=body,
            headers=headers,
            timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout,
        )
        retries = self._retries if retries is None else retries
        last_refusal: ApiError | None = None
        for attempt in itertools.count():
            is_last = attempt >= retries
            try:
                answer = await self._http.send(request)
            except httpx.TransportError as error:
                may_repeat = repeatable or method == "GET" or isinstance(error, _NOT_SENT)
                if is_last or not may_repeat:
                    raise ConnectionFailed(f"{method} {request.url}: {error!r}", last_refusal) from error
                pause = 0.0
            else:
                if answer.is_success:
                    return answer
                last_refusal = refusal(answer.status_code, answer.content, answer.headers)
                pause = last_refusal.retry_after_s or 0.0
                if answer.status_code not in (429, 503) or is_last or pause > LONGEST_RETRY_AFTER_S:
                    raise last_refusal
            # Without chance, all clients would return together after a pause that the server asks for.
            await asyncio.sleep(pause + random.uniform(0.0, min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0**attempt)))
        raise AssertionError("the loop has no end")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)
