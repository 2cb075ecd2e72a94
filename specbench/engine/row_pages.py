"""Which KV pages each row has: its own, and those of a kept prompt that it reads."""

from dataclasses import dataclass

from specbench.engine.kv_cache import PAGE_SIZE, KVCache
from specbench.engine.prompt_store import PromptStore, key_of


@dataclass
class _Row:
    prompt: bytes
    own: list[int]
    borrows: bool
    reused: int
    table: list[int]


class RowPages:
    """The pages of the rows that decode together.

    Parameters
    ----------
    cache : KVCache
    keep_prompts : bool
        Keep the KV of prompts while there is room, for later requests of the same ones.
    """

    def __init__(self, cache: KVCache, keep_prompts: bool) -> None:
        self._cache = cache
        self._prompts = PromptStore(cache) if keep_prompts else None
        self._rows: dict[int, _Row] = {}

    @property
    def taken(self) -> list[int]:
        """The rows that have pages."""
        return list(self._rows)

    def reserve(self, row: int, prompt: list[int], known: int, tokens: int) -> list[int]:
        """Pages for `tokens` entries, of which the first `known` at most may be there already.

        Parameters
        ----------
        row : int
            Has none.
        prompt : list of int
            What the entries begin with.
        known, tokens : int

        Raises
        ------
        OutOfMemoryError
            Not enough free pages; nothing is taken.
        """
        store = self._prompts
        key = key_of(prompt) if store else b""
        shared = store.borrow(key, known) if store else []
        reused = len(shared) * PAGE_SIZE
        if store and not shared:
            store.forget(key)  # prefilled anew, it is kept anew
        try:
            own = (store or self._cache).allocate(tokens - reused)
        except BaseException:
            if store and shared:
                store.give_back(key)
            raise
        self._rows[row] = _Row(key, own, bool(shared), reused, shared + own)
        return shared + own

    def reused(self, row: int) -> int:
        """Entries that were there already; the prompt's forward begins behind them."""
        return self._rows[row].reused

    def keep_prompt(self, row: int, known: int) -> None:
        """The row's prompt is prefilled: let later requests read its first ``known`` entries."""
        state = self._rows[row]
        if self._prompts is None or state.borrows:
            return
        count = self._prompts.keep(state.prompt, known, state.own)
        state.borrows = count > 0
        state.own = state.own[count:]

    def release(self, row: int) -> None:
        """Give a row's pages back."""
        state = self._rows.pop(row)
        self._cache.free(state.own)
        if state.borrows:
            assert self._prompts is not None
            self._prompts.give_back(state.prompt)

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raise RuntimeError unless every page in use has one owner, and `tables` are the rows'.

        Parameters
        ----------
        tables : list of list of int
            The block table of each row; 0 past its pages.
        """
        store = self._prompts
        kept = store.pages if store else []
        held = [*kept, *(page for state in self._rows.values() for page in state.own)]
        if len(set(held)) != len(held):
            raise RuntimeError("a KV page has two owners")
        if len(held) != self._cache.num_pages - self._cache.free_pages:
            raise RuntimeError("KV pages are in use that neither a row nor a kept prompt has")
        for row, table in enumerate(tables):
            state = self._rows.get(row)
            pages = state.table if state else []
            if table != pages + [0] * (len(table) - len(pages)):
                raise RuntimeError(f"the block table of row {row} is not that of its KV pages")
            if state and not set(pages) - set(state.own) <= set(kept if state.borrows else ()):
                raise RuntimeError(f"row {row} reads KV pages that are not its own, nor kept")
        if store:
            store.check_users([s.prompt for s in self._rows.values() if s.borrows])
