"""The secrets that sign webhooks: those of the settings, and those made while routers run, which all of them share in
Redis. Knows when each ends; how one signs is in `signing.py`.

A new secret signs at once, first; those made before it sign beside it for a while, so that receivers can change over.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.jobs.signing import PREFIX, Signer, parse_secret
from router.store import names
from router.store.connection import Store

NUM_BYTES = 32
# So long a process goes by what it read: a secret that another process made signs here by then.
FRESH_S = 1.0
MOST_MADE = 16
_KEY = names.JOBS + "secrets"


class Made(msgspec.Struct):
    """A secret made while routers ran; times in seconds since 1970, `ends` None for the newest."""

    secret: str
    created: float
    ends: float | None = None


@dataclass(eq=False, slots=True)
class SecretBook:
    """`own` are the settings', which sign as long as they are set. Raises StoreAway where Redis is."""

    store: Store
    own: Sequence[bytes] = ()
    wall: Callable[[], float] = time.time
    _made: list[Made] = field(default_factory=list)
    _read_at: float = float("-inf")

    async def signer(self) -> Signer:
        """Of now, the newest first."""
        now = self.wall()
        if not 0 <= now - self._read_at < FRESH_S:
            self._made, self._read_at = await self._load(now), now
        return Signer([*(parse_secret(made.secret) for made in self._made), *self.own])

    async def rotate(self, overlap_s: float) -> str:
        """A new secret, as text; those made before it end after `overlap_s`. Of two at once both are kept."""
        now, text = self.wall(), PREFIX + base64.b64encode(secrets.token_bytes(NUM_BYTES)).decode()
        for before in await self._load(now):
            if before.ends is None or before.ends > now + overlap_s:
                before.ends = now + overlap_s
                await self.store.call("HSET", _KEY, _id(before.secret), msgspec.json.encode(before))
        await self.store.call("HSET", _KEY, _id(text), msgspec.json.encode(Made(text, now)))
        self._read_at = float("-inf")
        return text

    async def told(self) -> list[dict[str, Any]]:
        """For operators: which there are, and never what they are."""
        made = [
            {"id": _id(each.secret), "created_at": each.created, "signs_until": each.ends, "from": "rotation"}
            for each in await self._load(self.wall())
        ]
        texts = [PREFIX + base64.b64encode(secret).decode() for secret in self.own]
        own = [{"id": _id(text), "created_at": None, "signs_until": None, "from": "settings"} for text in texts]
        return [*made, *own]

    async def _load(self, now: float) -> list[Made]:
        """Those that still sign, the newest first; what has ended is forgotten."""
        rows = await self.store.call("HVALS", _KEY) or []
        found = sorted((msgspec.json.decode(row, type=Made) for row in rows), key=lambda made: -made.created)
        kept = [made for made in found if made.ends is None or made.ends > now][:MOST_MADE]
        if gone := [_id(made.secret) for made in found if made not in kept]:
            await self.store.call("HDEL", _KEY, *gone)
        return kept


def _id(secret: str) -> str:
    """By which people can tell secrets apart without knowing them."""
    return "whs_" + hashlib.sha256(secret.encode()).hexdigest()[:12]
