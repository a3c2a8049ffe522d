"""What a request asks for in its headers: who it is, how urgent, how long it may take. Knows header names, ours and
those of other routers; knows no keys and no limits.

Of several names for one thing ours wins, then the newest. None of this reaches a replica.
"""

import math
from collections.abc import Mapping
from functools import lru_cache

from router.admission.bands import SERVICE_TIERS, band_named, band_of_priority
from router.core import Asked, Band, Headers
from router.errors import InvalidRequest

PRIORITY = "x-pointsman-priority"
TENANT = "x-pointsman-tenant"
# Names of an objective or a class elsewhere: they count where they happen to be names of ours.
CLASS_SYNONYMS = (
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-dynamo-meta-policy-class",
)
TENANT_SYNONYMS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
TIMEOUTS = ("x-pointsman-timeout", "x-request-timeout")
MAX_TENANT_CHARS = 128
# Longer is surely a mistake, as in the wrong unit; what is less is bounded by the router's own.
MAX_TIMEOUT_S = 7 * 86400.0


@lru_cache(maxsize=4096)
def terms(headers: Headers) -> Asked:
    """Raises InvalidRequest that names the header."""
    found = dict(reversed(headers))  # the first of equal names counts
    return Asked(
        credential=_credential(found),
        tenant=_tenant(found),
        band=_band(found),
        other_band=next((_other_band(found[name]) for name in CLASS_SYNONYMS if name in found), None),
        timeout_s=next((timeout_s(found[name], name) for name in TIMEOUTS if name in found), None),
    )


def asked_band(asked: Asked, priority: int | None, service_tier: str | None) -> Band | None:
    """What the request asks for: our header, else the body's priority, its service tier, or other routers' headers.

    None: nothing. Raises InvalidRequest for a class that is not ours in our header; other words mean the default.
    """
    if asked.band is not None:
        return asked.band
    if priority:
        return band_of_priority(priority)
    if service_tier is not None and (band := SERVICE_TIERS.get(service_tier)) is not None:
        return band
    return asked.other_band


def asked_deadline(asked: Asked, body_timeout: float | None, now: float, latest: float) -> float:
    """When the request must be answered: `latest`, or sooner where header or body ask for it. Raises InvalidRequest."""
    wanted_s = asked.timeout_s
    if body_timeout is not None:
        body_s = timeout_s(body_timeout, "timeout")
        wanted_s = body_s if wanted_s is None else min(wanted_s, body_s)
    return latest if wanted_s is None else min(latest, now + wanted_s)


def timeout_s(value: str | float, name: str) -> float:
    """Seconds, as a number or as text that may end in `s` or `ms`."""
    text, unit_s = str(value).strip().lower(), 1.0
    if text.endswith("ms"):
        text, unit_s = text[:-2], 1e-3
    elif text.endswith("s"):
        text = text[:-1]
    try:
        seconds = float(text) * unit_s
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"`{name}` must be seconds above 0 and up to {MAX_TIMEOUT_S:.0f}.", param=name)
    return seconds


def _credential(found: Mapping[str, str]) -> str | None:
    scheme, _, token = found.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return found.get("x-api-key") or found.get("api-key") or None


def _tenant(found: Mapping[str, str]) -> str | None:
    for name in (TENANT, *TENANT_SYNONYMS):
        value = found.get(name, "").strip()
        if not value:
            continue
        if len(value) > MAX_TENANT_CHARS or not value.isprintable():
            raise InvalidRequest(f"`{name}` must be a printable name of at most {MAX_TENANT_CHARS}.", param=name)
        return value
    return None


def _band(found: Mapping[str, str]) -> Band | None:
    value = found.get(PRIORITY)
    if value is None:
        return None
    band = band_named(value)
    if band is None:
        words = ", ".join(each.name.lower() for each in Band)
        raise InvalidRequest(f"`{PRIORITY}` must be one of {words}, or a whole number.", param=PRIORITY)
    return band


def _other_band(value: str) -> Band | None:
    """A word only: what a number means is not the same everywhere."""
    return None if value.strip().lstrip("+-").isdecimal() else band_named(value)
