"""Programming problems in the style of contests; the examples' outputs are computed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class _Kind:
    """A task on an array a[1..n] and a number k.

    Attributes
    ----------
    title, ask, output : str
        The statement's own words; ``{thing}`` stands for what is counted.
    solve : callable
        The right answer.
    """

    title: str
    ask: str
    output: str
    solve: Callable[[list[int], int], int]


def _longest_within(a: list[int], k: int) -> int:
    return max(
        (j - i for i in range(len(a)) for j in range(i + 1, len(a) + 1) if sum(a[i:j]) <= k),
        default=0,
    )


def _pairs_divisible(a: list[int], k: int) -> int:
    return sum((a[i] + a[j]) % k == 0 for i in range(len(a)) for j in range(i))


def _trips(a: list[int], k: int) -> int:
    trips, load = 0, k + 1
    for x in a:
        x = min(x, k)
        if load + x > k:
            trips, load = trips + 1, 0
        load += x
    return trips


def _best_window(a: list[int], k: int) -> int:
    k = min(k, len(a))
    sums = [0, *accumulate(a)]
    return max(sums[i + k] - sums[i] for i in range(len(a) - k + 1))


def _distinct_after(a: list[int], k: int) -> int:
    return len({x % k for x in a})


def _raises(a: list[int], k: int) -> int:
    steps, floor = 0, 0
    for x in a:
        need = max(0, -(-(floor - x) // k))
        floor = x + need * k
        steps += need
    return steps


_KINDS = (
    _Kind(
        "The Longest Shelf",
        "A run of consecutive {thing} may stand on one shelf when the sum of its weights is at "
        "most <i>k</i>. How many {thing} can the longest such run have?",
        "the length of the longest run, or 0 if there is none",
        _longest_within,
    ),
    _Kind(
        "Matching Weights",
        "Two different {thing} match when the sum of their weights is divisible by <i>k</i>. Count "
        "the pairs that match; the order within a pair does not matter.",
        "the number of matching pairs",
        _pairs_divisible,
    ),
    _Kind(
        "One Cart",
        "The {thing} are carried away in the given order by a cart that holds a weight of at most "
        "<i>k</i>. Anything heavier than <i>k</i> is first cut down to exactly <i>k</i>. The cart "
        "leaves when the next piece would not fit. How many trips does it make?",
        "the number of trips",
        _trips,
    ),
    _Kind(
        "The Heaviest Row",
        "Choose exactly min(<i>k</i>, <i>n</i>) consecutive {thing} so that the sum of their "
        "weights is as large as possible.",
        "the largest possible sum",
        _best_window,
    ),
    _Kind(
        "Marks on the Dial",
        "Each of the {thing} is marked on a dial with <i>k</i> positions, at its weight modulo "
        "<i>k</i>. How many positions of the dial carry at least one mark?",
        "the number of marked positions",
        _distinct_after,
    ),
    _Kind(
        "Uphill",
        "In one move you may add <i>k</i> to the weight of any one of the {thing}. Find the fewest "
        "moves after which no weight is smaller than the one before it.",
        "the fewest moves",
        _raises,
    ),
)
_THINGS = ("boxes", "stones", "lanterns", "barrels", "bricks", "parcels", "bells", "planks")
# Tokens, roughly, that a prompt puts around an example.
_EXAMPLE_FRAME = 25
_NAMES = ("Noor", "Tomasz", "Ingrid", "Bao", "Leila", "Oskar", "Priya", "Mateo")


def row(
    rng: random.Random, index: int, length: float, measure: Callable[[str], float]
) -> dict[str, Any]:
    """A row for codeelo; a `length` beyond the statement is filled with explained examples."""
    kind = _KINDS[index % len(_KINDS)]
    thing, name = rng.choice(_THINGS), rng.choice(_NAMES)
    limit = rng.choice((1000, 20000, 200000))
    examples = [_example(rng, kind) for _ in range(2)]
    description = (
        f"<p>{name} keeps <i>n</i> {thing} in a line. The weight of the <i>i</i>-th is "
        f"<i>a</i><sub><i>i</i></sub>.</p><p>{kind.ask.format(thing=thing)}</p>"
    )
    written = measure(description) + sum(measure("\n".join(example)) for example in examples)
    while written < length:
        examples.append(_example(rng, kind))
        written += measure("\n".join(examples[-1])) + _EXAMPLE_FRAME
    return {
        "problem_id": f"sample-{index}",
        "url": None,
        "title": kind.title,
        "rating": rng.choice((800, 1000, 1200, 1400)),
        "tags": ["implementation"],
        "div": None,
        "time_limit_ms": rng.choice((1000, 2000)),
        "memory_limit_mb": 256,
        "description": description,
        "input": (
            f"<p>The first line holds two integers <i>n</i> and <i>k</i> (1 &le; <i>n</i> &le; "
            f"{limit}; 1 &le; <i>k</i> &le; 10<sup>9</sup>). The second line holds <i>n</i> "
            "integers <i>a</i><sub>1</sub>, &hellip;, <i>a</i><sub><i>n</i></sub> (1 &le; "
            "<i>a</i><sub><i>i</i></sub> &le; 10<sup>9</sup>).</p>"
        ),
        "output": f"<p>Print one integer: {kind.output}.</p>",
        "interaction": None,
        "examples": examples,
        "note": f"<p>In the first example <i>n</i> = {examples[0][0].split()[0]}.</p>",
    }


def _example(rng: random.Random, kind: _Kind) -> list[str]:
    n = rng.randint(3, 9)
    a = [rng.randint(1, 30) for _ in range(n)]
    k = rng.randint(2, 40)
    return [f"{n} {k}\n{' '.join(map(str, a))}", str(kind.solve(a, k))]
