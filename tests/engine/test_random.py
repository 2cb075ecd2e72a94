"""The counter-based generator: known answers, range, and streams that do not meet."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.engine import random
from specbench.engine.random import Purpose, philox, uniform

# counter, key and result of Philox4x32-10 as the Random123 library publishes them
KNOWN = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
COUNT = 50_000
TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(out, seed, c0, c1, c2, c3):
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, c2, c3)
    tl.store(out, r0.to(tl.int64))
    tl.store(out + 1, r1.to(tl.int64))
    tl.store(out + 2, r2.to(tl.int64))
    tl.store(out + 3, r3.to(tl.int64))

out = torch.zeros(4, dtype=torch.int64)
kernel[(1,)](out, 0x123456789ABCDEF0, 5, 6, 7, 8)
print(*[x & 0xFFFFFFFF for x in out.tolist()])
"""


def numbers(
    start: int = 10, offset: int = 0, purpose: Purpose = Purpose.DRAFT, seed: int = 1
) -> Tensor:
    """The numbers of many requests."""
    request = torch.arange(COUNT)
    return uniform(seed, request, torch.full_like(request, start), offset, purpose)


def words(*counter: int) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([c]) for c in counter)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN, ids=["zeros", "ones", "pi"])
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    found = philox(words(*counter), key[0] | key[1] << 32)
    assert tuple(int(word) for word in found) == expected


def test_a_vector_of_counters_is_many_scalars() -> None:
    counters, keys, expected = zip(*KNOWN, strict=True)
    seed = keys[2][0] | keys[2][1] << 32
    columns = tuple(torch.tensor(column) for column in zip(*counters, strict=True))
    together = torch.stack(philox(columns, seed), dim=1).tolist()
    assert together[2] == list(expected[2])
    for row, counter in enumerate(counters):
        assert together[row] == [int(word) for word in philox(words(*counter), seed)]


def test_triton_has_the_same_generator(tmp_path: Path) -> None:
    """A kernel that draws with `tl.philox` reproduces the reference."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    script = tmp_path / "kernel.py"
    script.write_text(TRITON)
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True
    )
    found = philox(words(5, 6, 7, 8), 0x123456789ABCDEF0)
    assert [int(word) for word in done.stdout.split()] == [int(word) for word in found]


def test_uniform_uses_the_first_two_words() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    u = uniform(0, zero, zero, 0, Purpose(0))
    expected = ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53
    assert u.item() == expected


def test_counter_and_key_words() -> None:
    """Counter = (start, offset, request, purpose), key = (low, high) word of the seed."""
    (c0, c1, c2, c3), key = (3, 5, 7, Purpose.TARGET), (11, 13)
    u = uniform(key[0] | key[1] << 32, torch.tensor([c2]), torch.tensor([c0]), c1, c3)
    high, low, *_ = philox(words(c0, c1, c2, c3), key[0] | key[1] << 32)
    assert u.item() == (int(high >> 5) * 2**26 + int(low >> 6)) / 2**53


@pytest.mark.parametrize(("word", "expected"), [(0, 0.0), (0xFFFFFFFF, 1 - 2.0**-53)])
def test_range_excludes_one(monkeypatch: pytest.MonkeyPatch, word: int, expected: float) -> None:
    monkeypatch.setattr(random, "philox", lambda counter, seed: words(word, word, word, word))
    zero = torch.zeros(1, dtype=torch.int64)
    assert uniform(0, zero, zero, 0, Purpose.DRAFT).item() == expected


def test_shape_and_type_are_those_of_the_broadcast() -> None:
    request, start = torch.arange(3)[:, None], torch.arange(3)[:, None]
    u = uniform(0, request, start, torch.arange(4), Purpose.ACCEPT)
    assert u.shape == (3, 4)
    assert u.dtype == torch.float64
    for r, i in itertools.product(range(3), range(4)):
        alone = uniform(0, request[r], start[r], i, Purpose.ACCEPT)
        assert alone.item() == u[r, i].item()


def test_uniform_fills_the_interval_evenly() -> None:
    u = numbers()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean().item() - 0.5) < 5 / (12 * COUNT) ** 0.5
    assert abs(u.var().item() - 1 / 12) < 0.002
    cells = torch.histc(u, bins=100, min=0, max=1)
    expected = COUNT / 100
    chi_square = ((cells - expected) ** 2 / expected).sum().item()
    assert 45 < chi_square < 180  # 99 degrees of freedom, 1 in 100,000 on either side
    # the low bits are random too
    low_bits = (u * 2**53).long() & 1
    assert abs(low_bits.double().mean().item() - 0.5) < 5 * 0.5 / COUNT**0.5


@pytest.mark.parametrize(
    "other",
    [
        *(pytest.param(numbers(purpose=p), id=p.name) for p in Purpose if p is not Purpose.DRAFT),
        pytest.param(numbers(offset=1), id="offset"),
        pytest.param(numbers(start=11), id="start"),
        pytest.param(numbers(seed=2), id="seed"),
        pytest.param(numbers(seed=1 + 2**32), id="high word of the seed"),
        pytest.param(numbers().roll(1), id="request"),
    ],
)
def test_streams_are_independent(other: Tensor) -> None:
    u = numbers()
    assert (u == other).sum() == 0
    correlation = torch.corrcoef(torch.stack([u, other]))[0, 1].item()
    assert abs(correlation) < 5 / COUNT**0.5
    # and no dependence that a correlation cannot see: the difference modulo 1 is uniform as well
    cells = torch.histc((u - other).remainder(1), bins=20, min=0, max=1)
    expected = COUNT / 20
    assert ((cells - expected) ** 2 / expected).sum().item() < 60  # 19 degrees of freedom


def test_a_position_drafted_again_gets_a_fresh_number() -> None:
    """Position 12 seen from start 10 and from start 11 are two draws."""
    assert (numbers(start=10, offset=2) == numbers(start=11, offset=1)).sum() == 0


def test_all_keys_give_different_numbers() -> None:
    request, start, offset = torch.arange(8), torch.arange(30)[:, None], torch.arange(7)
    everything = torch.cat(
        [
            uniform(0, request, start[..., None], offset[:, None], purpose).flatten()
            for purpose in Purpose
        ]
    )
    assert len(everything) == 8 * 30 * 7 * len(Purpose)
    assert len(everything.unique()) == len(everything)
