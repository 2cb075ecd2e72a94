"""Competition-like problems whose answers, integers from 0 to 999, are computed by counting."""

import math
import random
from collections.abc import Callable
from itertools import product
from typing import Any

Problem = tuple[str, int]


def _divisor_pairs(rng: random.Random) -> Problem:
    n = rng.randint(40, 400) * rng.choice((6, 12, 30))
    k = rng.randint(3, 9)
    answer = sum(1 for d in range(1, n + 1) if n % d == 0 and d % k != 0)
    return (
        f"How many positive divisors of ${n}$ are not multiples of ${k}$?",
        answer,
    )


def _paths(rng: random.Random) -> Problem:
    width, height = rng.randint(4, 7), rng.randint(4, 7)
    x, y = rng.randint(1, width - 1), rng.randint(1, height - 1)
    through = math.comb(x + y, x) * math.comb(width + height - x - y, width - x)
    total = math.comb(width + height, width)
    return (
        f"A beetle walks from $(0,0)$ to $({width},{height})$ in unit steps to the right or up "
        f"and never visits $({x},{y})$. Let $N$ be the number of such walks. Find the remainder "
        "when $N$ is divided by $1000$.",
        (total - through) % 1000,
    )


def _remainders(rng: random.Random) -> Problem:
    p, q, r = rng.choice(((5, 7, 11), (7, 9, 13), (8, 9, 11), (5, 9, 16), (7, 10, 13)))
    n = rng.randint(100, 999)
    answer = next(m for m in range(1000) if (m % p, m % q, m % r) == (n % p, n % q, n % r))
    return (
        f"Find the least non-negative integer that leaves the remainder ${n % p}$ when divided by "
        f"${p}$, the remainder ${n % q}$ when divided by ${q}$, and the remainder ${n % r}$ when "
        f"divided by ${r}$.",
        answer,
    )


def _digits(rng: random.Random) -> Problem:
    total, banned = rng.randint(9, 18), rng.randint(0, 9)
    answer = sum(
        1
        for n in range(1000, 10000)
        if sum(map(int, str(n))) == total and str(banned) not in str(n)
    )
    return (
        f"How many four-digit positive integers have digit sum ${total}$ and do not contain the "
        f"digit ${banned}$?",
        answer,
    )


def _recurrence(rng: random.Random) -> Problem:
    a, b, first, second = (rng.randint(2, 9) for _ in range(4))
    n = rng.randint(20, 90)
    values = [first, second]
    while len(values) < n:
        values.append((a * values[-1] + b * values[-2]) % 1000)
    return (
        f"A sequence has $x_1={first}$, $x_2={second}$ and $x_{{n+1}}={a}x_n+{b}x_{{n-1}}$ for "
        f"$n\\ge 2$. Find the remainder when $x_{{{n}}}$ is divided by $1000$.",
        values[-1],
    )


def _dice(rng: random.Random) -> Problem:
    faces = rng.choice((4, 6, 8))
    total = rng.randint(faces, 3 * faces - 3)
    hits = sum(1 for roll in product(range(1, faces + 1), repeat=3) if sum(roll) == total)
    common = math.gcd(hits, faces**3)
    return (
        f"Three fair {faces}-sided dice are rolled. The probability that their sum is ${total}$ is "
        "$m/n$ in lowest terms. Find $m+n$.",
        (hits + faces**3) // common,
    )


def _lattice(rng: random.Random) -> Problem:
    a, b = rng.randint(5, 14), rng.randint(5, 14)
    answer = sum(
        1
        for x in range(-a, a + 1)
        for y in range(-b, b + 1)
        if b * abs(x) + a * abs(y) <= a * b
    )  # fmt: skip
    return (
        f"How many points with integer coordinates satisfy $|x|/{a}+|y|/{b}\\le 1$?",
        answer,
    )


def _subsets(rng: random.Random) -> Problem:
    n, gap = rng.randint(9, 14), rng.randint(2, 3)
    counts = [1] * (n + 1)
    for k in range(1, n + 1):
        counts[k] = counts[k - 1] + (counts[k - gap] if k >= gap else 1)
    return (
        f"Find the number of subsets of $\\{{1,2,\\dots,{n}\\}}$, the empty set included, in which "
        f"any two elements differ by at least ${gap}$.",
        counts[n],
    )


_KINDS: tuple[Callable[[random.Random], Problem], ...] = (
    _divisor_pairs, _paths, _remainders, _digits, _recurrence, _dice, _lattice, _subsets,
)  # fmt: skip


def row(
    rng: random.Random, index: int, length: float, measure: Callable[[str], float]
) -> dict[str, Any]:
    """A row for aime25; a `length` beyond one problem is filled with a problem of many parts."""
    start = index % len(_KINDS)
    text, answer = _bounded(rng, _KINDS[start])
    if length <= measure(text):
        return {"id": f"sample-{index}", "question": text, "answer": str(answer)}
    parts = [f"Part 1. {text}"]
    total = answer
    written = measure(text)
    while written < length:
        kind = _KINDS[(start + len(parts)) % len(_KINDS)]
        text, answer = _bounded(rng, kind)
        parts.append(f"Part {len(parts) + 1}. {text}")
        total += answer
        written += measure(text)
    parts.append(
        "Solve every part. Find the remainder when the sum of all the parts' answers is divided by "
        "$1000$."
    )
    return {
        "id": f"sample-{index}",
        "question": "\n\n".join(parts),
        "answer": str(total % 1000),
    }


def _bounded(rng: random.Random, kind: Callable[[random.Random], Problem]) -> Problem:
    while True:
        text, answer = kind(rng)
        if 0 <= answer <= 999:
            return text, answer
