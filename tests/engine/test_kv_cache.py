"""The book of pages: what is handed out belongs to one request, and comes back whole."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for
from specbench.errors import OutOfMemoryError
from tests.support.tiny import tiny_config

PAGES = 6


def cache(num_pages: int = PAGES) -> KVCache:
    return KVCache(tiny_config(), num_pages, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("tokens", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_shape_has_one_page_that_belongs_to_nobody() -> None:
    config = tiny_config(num_layers=3, num_kv_heads=1, num_heads=4, head_dim=8)
    kv = KVCache(config, 5, torch.bfloat16, "cpu")
    assert kv.keys.shape == kv.values.shape == (3, 6, PAGE_SIZE, 1, 8)
    assert kv.keys.dtype == kv.values.dtype == torch.bfloat16
    assert sorted(kv.allocate(5 * PAGE_SIZE)) == [1, 2, 3, 4, 5]


def test_a_layer_is_a_view() -> None:
    kv = cache()
    keys, values = kv.layer(1)
    keys[2, 3] = 1
    values[4, 5] = 2
    assert (kv.keys[1, 2, 3] == 1).all()
    assert (kv.values[1, 4, 5] == 2).all()
    assert kv.keys[0].sum() == kv.values[0].sum() == 0


def test_requests_share_no_page() -> None:
    kv = cache()
    one, two = kv.allocate(17), kv.allocate(33)
    assert (len(one), len(two)) == (2, 3)
    assert not set(one) & set(two)
    assert kv.free_pages == 1


def test_too_large_a_request_takes_nothing() -> None:
    kv = cache()
    kv.allocate(4 * PAGE_SIZE)
    with pytest.raises(OutOfMemoryError, match=r"40 tokens needs 3 KV pages, 2 of 6 are free"):
        kv.allocate(40)
    assert kv.free_pages == 2
    kv.check_integrity()
    assert len(kv.allocate(32)) == 2


@pytest.mark.parametrize("wrong", ["free", "foreign", "nobody's", "twice"])
def test_freeing_what_is_not_in_use_gives_nothing_back(wrong: str) -> None:
    kv = cache()
    own = kv.allocate(40)
    spare = next(page for page in range(1, PAGES + 1) if page not in own)
    bad = {"free": [spare], "foreign": [PAGES + 1], "nobody's": [0], "twice": [own[0]]}[wrong]
    with pytest.raises(ValueError, match="not all in use"):
        kv.free(own + bad)
    assert kv.free_pages == PAGES - len(own)
    kv.check_integrity()
    kv.free(own)
    assert kv.free_pages == PAGES


def test_pages_cannot_be_freed_again() -> None:
    kv = cache()
    own = kv.allocate(40)
    kv.free(own)
    with pytest.raises(ValueError, match="not all in use"):
        kv.free(own)


def test_integrity_notices_a_lost_page() -> None:
    kv = cache()
    kv._free.pop()
    with pytest.raises(RuntimeError, match="lost"):
        kv.check_integrity()


def test_integrity_notices_a_page_listed_twice() -> None:
    kv = cache()
    kv._free.append(kv._free[0])
    with pytest.raises(RuntimeError, match="twice"):
        kv.check_integrity()


def test_integrity_notices_a_page_both_free_and_owned() -> None:
    kv = cache()
    own = kv.allocate(PAGE_SIZE)
    kv._free[0] = own[0]
    with pytest.raises(RuntimeError, match="twice"):
        kv.check_integrity()


class Book(RuleBasedStateMachine):
    """Any order of allocations and returns, checked against a plain set of free pages."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.cache = cache()
        self.free = set(range(1, PAGES + 1))

    @rule(target=requests, tokens=st.integers(1, (PAGES + 1) * PAGE_SIZE))
    def allocate(self, tokens: int) -> list[int]:
        count = pages_for(tokens)
        if count > len(self.free):
            with pytest.raises(OutOfMemoryError):
                self.cache.allocate(tokens)
            return []
        pages = self.cache.allocate(tokens)
        assert len(pages) == count
        assert self.free.issuperset(pages)
        self.free.difference_update(pages)
        return pages

    @rule(pages=consumes(requests))
    def give_back(self, pages: list[int]) -> None:
        self.cache.free(pages)
        self.free.update(pages)

    @rule(page=st.integers(0, PAGES + 1))
    def give_back_what_is_free(self, page: int) -> None:
        if page in self.free or not 1 <= page <= PAGES:
            with pytest.raises(ValueError, match="not all in use"):
                self.cache.free([page])

    @invariant()
    def book_is_whole(self) -> None:
        assert self.cache.free_pages == len(self.free)
        self.cache.check_integrity()


Book.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True
)
TestBook = Book.TestCase
