"""Received webhooks, verified without a server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import unittest

from weir_client import InvalidWebhook, verify_webhook

# The example of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
BODY = b'{"test": 2432232314}'
SIGNED_AT = 1614265330
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = "whsec_" + base64.b64encode(b"another secret of 32 bytes, here").decode()
HEADERS = {"Webhook-Id": ID, "Webhook-Timestamp": str(SIGNED_AT), "Webhook-Signature": SIGNATURE}


def signature(secret: str) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{ID}.{SIGNED_AT}.".encode() + BODY, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


class Webhooks(unittest.TestCase):
    def test_the_example_of_the_standard_is_valid(self) -> None:
        for body in (BODY, BODY.decode(), bytearray(BODY)):
            self.assertEqual(verify_webhook(HEADERS, body, SECRET, now=SIGNED_AT), json.loads(BODY))  # type: ignore[arg-type]

    def test_both_sides_of_a_rotation_are_valid(self) -> None:
        # The receiver has both secrets, and the sender only the new or only the previous one.
        for secret in (SECRET, OTHER):
            headers = {**HEADERS, "Webhook-Signature": signature(secret)}
            verify_webhook(headers, BODY, [SECRET, OTHER], now=SIGNED_AT)
        # The sender signs with both, and the receiver has one of them.
        headers = {**HEADERS, "Webhook-Signature": f"{signature(OTHER)} v1a,xyz= {SIGNATURE} v1,@"}
        for secret in (SECRET, OTHER):
            verify_webhook(headers, BODY, secret, now=SIGNED_AT)

    def test_what_is_not_signed_so_is_refused_with_the_reason(self) -> None:
        cases = [
            ({}, BODY + b" ", SECRET, "no signature"),
            ({}, BODY, OTHER, "no signature"),
            ({"Webhook-Id": "msg_other"}, BODY, SECRET, "no signature"),
            ({"Webhook-Timestamp": str(SIGNED_AT + 1)}, BODY, SECRET, "no signature"),
            ({"Webhook-Timestamp": "²"}, BODY, SECRET, "not a number"),
            ({"Webhook-Signature": SIGNATURE.replace("v1,", "v2,")}, BODY, SECRET, "no signature"),
            ({"Webhook-Signature": ""}, BODY, SECRET, "webhook-signature is missing"),
        ]
        for changes, body, secret, reason in cases:
            with self.subTest(reason=reason, changes=changes), self.assertRaisesRegex(InvalidWebhook, reason):
                verify_webhook({**HEADERS, **changes}, body, secret, now=SIGNED_AT)

    def test_a_request_of_another_time_is_refused(self) -> None:
        for late in (301, -301):
            with self.assertRaisesRegex(InvalidWebhook, f"{late} s ago"):
                verify_webhook(HEADERS, BODY, SECRET, now=SIGNED_AT + late)
        verify_webhook(HEADERS, BODY, SECRET, now=SIGNED_AT + 600, tolerance_s=600)
        with self.assertRaisesRegex(InvalidWebhook, "s ago"):
            verify_webhook(HEADERS, BODY, SECRET)

    def test_a_wrong_secret_of_the_receiver_is_a_mistake_of_its_program(self) -> None:
        wrong: list[str | list[str]] = ["text", "whsec_%", []]
        for secrets in wrong:
            with self.assertRaises(ValueError):
                verify_webhook(HEADERS, BODY, secrets, now=SIGNED_AT)


if __name__ == "__main__":
    unittest.main()
