"""One small generic registry: names to objects, imported on first use."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Generic, TypeVar

from specbench.errors import UsageError
from specbench.parsing import shown

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` begins or resembles most, if any; case does not matter."""
    by_lower = {other.lower(): other for other in known}
    wanted = name.lower()
    found = [other for other in by_lower if wanted and other.startswith(wanted)]
    found += difflib.get_close_matches(wanted, by_lower, n=1)
    return by_lower[found[0]] if found else None


def suggestion(name: str | None) -> str:
    """The sentence that offers what `nearest` found, with a space before it, or nothing."""
    return f" Did you mean {name!r}?" if name else ""


def unknown(kind: str, name: str, known: list[str]) -> UsageError:
    """The error for a name that is not among `known`, with the nearest one suggested."""
    hint = suggestion(nearest(name, known))
    return UsageError(f"unknown {kind} {shown(name)}.{hint} Known: {', '.join(known)}.")


class Registry(Generic[T]):
    """Maps names of one kind of thing (a method, a dataset) to the thing itself.

    Parameters
    ----------
    kind : str
        What the entries are called in messages, such as ``"method"``.
    entry_point_group : str, optional
        Packages that declare an entry point in this group add their own entries.

    Notes
    -----
    An entry is the object itself or a string ``"module:attribute"`` that is imported when it is
    first asked for, so that listing names costs no heavy import.
    """

    def __init__(self, kind: str, entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._group = entry_point_group
        self._entries: dict[str, T | str] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds its object under `name` and returns the object."""

        def add(entry: T) -> T:
            self._add(name, entry)
            return entry

        return add

    def register_lazy(self, name: str, path: str) -> None:
        """Add ``"module:attribute"``, imported on first use."""
        self._add(name, path)

    def names(self) -> list[str]:
        """All names, in the order in which they were added, plug-ins last."""
        self._load_entry_points()
        return list(self._entries)

    def get(self, name: str) -> T:
        """The entry called `name`.

        Raises
        ------
        UsageError
            No such entry; the message suggests the nearest name.
        """
        self._load_entry_points()
        if name not in self._entries:
            raise unknown(self.kind, name, list(self._entries))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = getattr(import_module(module), attribute)
            self._entries[name] = entry
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _add(self, name: str, entry: T | str) -> None:
        present = self._entries.get(name)
        if present is not None and present is not entry:
            raise ValueError(f"{self.kind} {name!r} is registered twice: {present!r} and {entry!r}")
        self._entries[name] = entry

    def _load_entry_points(self) -> None:
        if self._group is None:
            return
        from importlib.metadata import entry_points

        group, self._group = self._group, None
        for point in entry_points(group=group):
            if point.name not in self._entries:
                self._entries[point.name] = point.value
