"""What goes wrong with the store. Knows nothing of Redis' own words: they are translated in `connection.py`."""


class StoreAway(Exception):
    """It does not answer in time, or does not take what must be written; whoever asked goes on without it."""


class StoreUnfit(Exception):
    """It is there, and cannot serve us: not Redis, too old, or we may not use it. One sentence for the operator."""
