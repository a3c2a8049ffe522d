"""Signatures of webhooks, by the Standard Webhooks specification 1.0. Knows secrets and bytes; knows nothing of what is
sent or where."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with every secret, the newest first: while one is replaced, receivers that know either can verify."""

    secrets: Sequence[bytes]

    def headers(self, id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
        """`id` stays the same over all attempts, `timestamp_s` (since 1970) is the attempt's."""
        signed = b"%b.%d.%b" % (id.encode(), timestamp_s, body)
        signatures = [
            "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
            for secret in self.secrets
        ]
        told = {"webhook-id": id, "webhook-timestamp": str(timestamp_s)}
        return told | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def parse_secret(text: str) -> bytes:
    """From `whsec_` and base64 of 24 to 64 bytes. Raises ValueError; the secret itself is in no message."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not text.startswith(PREFIX) or not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise ValueError(f"a webhook secret is `{PREFIX}` and base64 of {LEAST_BYTES} to {MOST_BYTES} random bytes")
    return secret
