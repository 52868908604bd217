"""Verification of received webhooks that are signed as in Standard Webhooks, Weir's default."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import WeirError

_PREFIX = "whsec_"


class InvalidWebhook(WeirError):
    """The request is not from Weir, or not from now. Answer it with 400 or 401, and use nothing of it."""


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes | str,
    secrets: str | Iterable[str],
    *,
    tolerance_s: int = 300,
    now: float | None = None,
) -> Any:
    """Verifies a received request and returns the JSON of its body. Raises `InvalidWebhook`.

    `body` must be the bytes as they were received: JSON that was parsed and written again differs. `secrets` is the
    secret of the destination, or several: while a secret is rotated, the new one and the previous one. A request is
    valid if one of its signatures is made with one of them, so it does not matter which side rotates first.

    `tolerance_s` is how far the signed time may be from the time of this machine. A request that was recorded and is
    sent again later is refused; one that is sent again at once is not, so store the `webhook-id` and skip repeated ones.
    """
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise ValueError("no secret was given")
    given = {name.lower(): value.strip() for name, value in headers.items()}
    id, timestamp, signatures = (_header(given, f"webhook-{name}") for name in ("id", "timestamp", "signature"))
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise InvalidWebhook("the header webhook-timestamp is not a number of seconds")
    raw = body.encode() if isinstance(body, str) else bytes(body)
    signed = f"{id}.{timestamp}.".encode() + raw
    expected = [hmac.new(key, signed, hashlib.sha256).digest() for key in keys]
    received = [decoded for version, decoded in map(_signature, signatures.split()) if version == "v1"]
    # Each is compared, so that the time does not tell which secret is right.
    matches = [hmac.compare_digest(one, other) for one in expected for other in received]
    if not any(matches):
        raise InvalidWebhook("no signature of the request is made with one of the secrets")
    # After the signature: the time of a forged request says nothing.
    age = (time.time() if now is None else now) - int(timestamp)
    if abs(age) > tolerance_s:
        raise InvalidWebhook(f"the request was signed {age:.0f} s ago; at most {tolerance_s} s are allowed")
    try:
        return json.loads(raw)
    except ValueError as error:
        raise InvalidWebhook(f"the body is not JSON: {error}") from error


def _header(headers: dict[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise InvalidWebhook(f"the header {name} is missing")
    return value


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        raise ValueError("a secret begins with whsec_; other styles of signatures are not verified here")
    text = secret[len(_PREFIX) :].rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("the secret is not base64 after whsec_") from error


def _signature(text: str) -> tuple[str, bytes]:
    version, _, encoded = text.partition(",")
    try:
        return version, base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return version, b""
