"""Prompts whose KV outlives their requests, so that another pass over them need not prefill."""

from array import array
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256

from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for


@dataclass
class _Kept:
    pages: list[int]
    users: int


class PromptStore:
    """The full pages of prompts, kept until their memory is wanted.

    A prompt's last entry is never among them: its forward gives the first token. All who use a
    prompt at a time read all of its pages, so that rows with room of their own never lack pages.
    Prompts go by their `key_of`, which is computed once a request: a long one takes a millisecond.

    Parameters
    ----------
    cache : KVCache
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._kept: dict[bytes, _Kept] = {}  # the oldest first

    @property
    def pages(self) -> list[int]:
        """Of all kept prompts."""
        return [page for kept in self._kept.values() for page in kept.pages]

    def check_users(self, prompts: list[bytes]) -> None:
        """Raise RuntimeError unless `prompts` are what is borrowed, as often as it is."""
        if Counter(prompts) != {k: v.users for k, v in self._kept.items() if v.users}:
            raise RuntimeError("a kept prompt is in use by others than those that borrowed it")

    def allocate(self, tokens: int) -> list[int]:
        """Pages for `tokens` entries; prompts that nobody uses make room, the oldest first.

        Raises
        ------
        OutOfMemoryError
            See `KVCache.allocate`.
        """
        idle = [key for key, kept in self._kept.items() if not kept.users]
        for key in idle:
            if pages_for(tokens) <= self._cache.free_pages:
                break
            self._cache.free(self._kept.pop(key).pages)
        return self._cache.allocate(tokens)

    def borrow(self, prompt: bytes, tokens: int) -> list[int]:
        """Pages of a kept prompt's entries before ``tokens``; none if it is not kept.

        Where there are some, they are in use until `give_back`, and must not be written. Pages
        behind them that nobody reads are given up.
        """
        kept = self._kept.get(prompt)
        if kept is None:
            return []
        count = max(tokens, 0) // PAGE_SIZE
        if not kept.users:
            self._cache.free(kept.pages[count:])
            del kept.pages[count:]
        pages = kept.pages[:count]
        kept.users += bool(pages)
        return pages

    def forget(self, prompt: bytes) -> None:
        """Give a kept prompt up unless it is in use."""
        kept = self._kept.get(prompt)
        if kept is not None and not kept.users:
            self._cache.free(self._kept.pop(prompt).pages)

    def keep(self, prompt: bytes, known: int, pages: list[int]) -> int:
        """Keep the first ``known`` entries of a prompt, of whose request `pages` are.

        Returns
        -------
        int
            How many of the first pages are the store's from now on, in use until `give_back`; 0 if
            the prompt is kept already, or ``known`` is not a page long.
        """
        full = known // PAGE_SIZE
        if prompt in self._kept or full <= 0:
            return 0
        self._kept[prompt] = _Kept(pages[:full], users=1)
        return full

    def give_back(self, prompt: bytes) -> None:
        """A request that used a kept prompt has ended."""
        self._kept[prompt].users -= 1


def key_of(token_ids: list[int]) -> bytes:
    """What a prompt is kept by."""
    return sha256(array("q", token_ids)).digest()
