"""How heavy values are, counted as if nothing in them were shared: what comparing, hashing or writing them may take.

Knows Python's containers. Knows nothing of Jinja. Sixty lists of the one before, twice, are small in memory, and no
computer ends comparing two of them, which nothing can interrupt. So each container is weighed where it is made: what is
put into it was weighed before, as containers of templates do not change.
"""

from collections.abc import ItemsView, Iterable, KeysView, ValuesView

# Characters of a text that weigh as much as an item.
_CHARS = 64
_CONTAINERS = (list, tuple, dict, KeysView, ItemsView, ValuesView)


class Weights:
    """Those that are known. Containers are held, as another could have the name of one that is gone."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int]] = {}

    def of(self, value: object) -> int:
        """In items, one for the value itself."""
        if isinstance(value, str | bytes):
            return 1 + len(value) // _CHARS
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._known.get(id(value))
        if known is None:
            weight = 1 + self._of_all(value)
            if isinstance(value, dict):
                weight += self._of_all(value.values())
            known = self._known[id(value)] = value, weight
        return known[1]

    def _of_all(self, items: Iterable[object]) -> int:
        return sum(1 if isinstance(item, int) else self.of(item) for item in items)

    def __repr__(self) -> str:
        return f"<Weights {len(self._known)} known>"
