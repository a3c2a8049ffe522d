"""A book in Redis (of keys, of adapters), for all hosts that share it: `ports.BookStore`. Knows one hash; knows nothing
of what a book says. It is replaced as a whole, if nobody else was faster.
"""

from dataclasses import dataclass

from router.store import names
from router.store.connection import Script, Store

NOTHING = "0"
_SAVE = Script(
    """
    if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return false end
    local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
    redis.call('HSET', KEYS[1], 'book', ARGV[2])
    return tostring(version)
    """
)


@dataclass(frozen=True, slots=True)
class BookInRedis:
    """`key` is whose book. Raises StoreAway."""

    store: Store
    key: str = names.BOOK

    async def load(self, known: str) -> tuple[str, bytes] | None:
        version = await self.store.call("HGET", self.key, "version")
        if (version or NOTHING.encode()).decode() == known:
            return None
        version, book = await self.store.call("HMGET", self.key, "version", "book")
        return (version or NOTHING.encode()).decode(), book or b""

    async def save(self, document: bytes, known: str) -> str | None:
        version = await self.store.run(_SAVE, [self.key], [known, document])
        return None if version is None else version.decode()
