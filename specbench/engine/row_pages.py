"""Which KV pages each row has: its own, and those of a kept prompt that it reads."""

from dataclasses import dataclass

from specbench.engine.kv_cache import PAGE_SIZE, KVCache
from specbench.engine.prompt_store import PromptStore


@dataclass
class _Row:
    prompt: list[int]
    own: list[int]
    borrows: bool
    reused: int


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
        shared = store.borrow(prompt, known) if store else []
        reused = len(shared) * PAGE_SIZE
        if store and not shared:
            store.forget(prompt)  # prefilled anew, it is kept anew
        try:
            own = (store or self._cache).allocate(tokens - reused)
        except BaseException:
            if store and shared:
                store.give_back(prompt)
            raise
        self._rows[row] = _Row(prompt, own, bool(shared), reused)
        return shared + own

    def reused(self, row: int) -> int:
        """Entries that were there already; the prompt's forward begins behind them."""
        return self._rows[row].reused

    def keep_prompt(self, row: int) -> None:
        """The row's prompt is prefilled: let later requests read it."""
        state = self._rows[row]
        if self._prompts is None or state.borrows:
            return
        count = self._prompts.keep(state.prompt, state.own)
        state.borrows = count > 0
        state.own = state.own[count:]

    def release(self, row: int) -> None:
        """Give a row's pages back."""
        state = self._rows.pop(row)
        self._cache.free(state.own)
        if state.borrows:
            assert self._prompts is not None
            self._prompts.give_back(state.prompt)
