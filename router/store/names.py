"""Every key that we use in Redis. Keys of one pool, and those of one account, stand in one hash slot, so that a script
may use them together on a cluster. Knows names only.
"""

from urllib.parse import quote

PREFIX = "pm:"


def pool(model: str) -> str:
    """What the keys of a pool begin with."""
    return f"{PREFIX}{{pool/{quote(model, safe='')}}}:"


def account(name: str) -> str:
    return f"{PREFIX}{{account/{quote(name, safe='')}}}"


def lesson(model: str, replica: str) -> str:
    return f"{LESSONS}{quote(model, safe='')}/{quote(replica, safe='')}"


def response(id: str) -> str:
    return f"{RESPONSES}r:{id}"


JOBS = PREFIX + "{jobs}:"
LESSONS = PREFIX + "{lessons}:"
RESPONSES = PREFIX + "{responses}:"
BOOK = PREFIX + "{keys}:book"
ADAPTERS = PREFIX + "{adapters}:book"
ROUTERS = PREFIX + "{routers}"
PROBE = PREFIX + "{probe}:"
