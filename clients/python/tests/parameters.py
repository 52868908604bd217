"""Prints the query parameters that the methods send, as `GET /v1/events: type`, when they get all their arguments."""

from __future__ import annotations

import inspect
from typing import Any

from weir_client import Pages, Weir

FOUND: set[str] = set()


class Answer:
    content = b"{}"
    headers = {"etag": ""}

    def json(self) -> Any:
        keys = ("cancelled", "discarded", "total", "count", "data", "next_cursor", "events")
        return {**dict.fromkeys(keys, 0), "events": [], "data": [], "next_cursor": None}


class Transport:
    def send(self, method: str, route: str, *_: Any, query: dict[str, Any] | None = None, **__: Any) -> Answer:
        FOUND.update(f"{method} {route}: {name}" for name in query or {})
        return Answer()

    def close(self) -> None:
        pass


def argument(name: str) -> Any:
    """Something that the method can take apart."""
    return [] if name in ("events", "destinations") else {} if name in ("filter", "settings", "changes") else "value"


def main() -> None:
    with Weir() as client:
        groups = [client, *(group for name, group in vars(client).items() if not name.startswith("_"))]
        for group in groups:
            group._transport = Transport()
            for name, method in inspect.getmembers(group, inspect.ismethod):
                if not name.startswith("_") and name != "close":
                    answer = method(**{each: argument(each) for each in inspect.signature(method).parameters})
                    if isinstance(answer, Pages):
                        answer.page(cursor="value")
    print("\n".join(sorted(FOUND)))


if __name__ == "__main__":
    main()
