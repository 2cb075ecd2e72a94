"""The shapes that kernels are measured at: two real models', at lengths that users serve."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from specbench.registry import unknown

Op = Literal["verify", "sparse", "select"]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape.

    Attributes
    ----------
    name : str
    op : str
        ``verify``: paged attention of `rows` query rows, with collection. ``sparse``: one query
        over `entries` selected ones. ``select``: the best `entries` of `context` scores.
    heads, kv_heads, dim : int
        Of the model; query heads, KV heads, head dimension.
    batch, context : int
        Requests, and tokens of each.
    rows : int
        Query rows of a request (verify).
    entries : int
        Selected entries of a request and KV head (sparse, select).
    layers : int
        Ranked in one go (select).
    """

    name: str
    op: Op
    heads: int
    kv_heads: int
    dim: int
    batch: int
    context: int
    rows: int = 1
    entries: int = 0
    layers: int = 1

    @property
    def kv_bytes(self) -> int:
        """Keys and values that one call reads, in bf16."""
        tokens = self.entries if self.op == "sparse" else self.context
        return self.batch * tokens * self.kv_heads * self.dim * 2 * 2

    @property
    def score_bytes(self) -> int:
        """fp32 scores that one selection reads once."""
        return self.layers * self.batch * self.kv_heads * self.context * 4


_8B = {"heads": 32, "kv_heads": 8, "dim": 128}
_HALF_B = {"heads": 14, "kv_heads": 2, "dim": 64}

CASES = (
    Case("verify.8x131072", "verify", **_8B, batch=8, context=131_072, rows=7),
    Case("verify.4x100000", "verify", **_8B, batch=4, context=100_000, rows=7),
    Case("verify.1x100000", "verify", **_8B, batch=1, context=100_000, rows=7),
    Case("verify.64x24000", "verify", **_HALF_B, batch=64, context=24_000, rows=9),
    Case("verify.16x24000", "verify", **_HALF_B, batch=16, context=24_000, rows=9),
    Case("verify.1x24000", "verify", **_HALF_B, batch=1, context=24_000, rows=9),
    Case("decode.4x100000", "verify", **_8B, batch=4, context=100_000),
    Case("decode.16x24000", "verify", **_HALF_B, batch=16, context=24_000),
    Case("decode.1x24000", "verify", **_HALF_B, batch=1, context=24_000),
    Case("sparse.8x4096", "sparse", **_8B, batch=8, context=65_536, entries=4096),
    Case("sparse.8x1638", "sparse", **_8B, batch=8, context=65_536, entries=1638),
    Case("sparse.8x4096.d64", "sparse", **_HALF_B, batch=8, context=65_536, entries=4096),
    Case("sparse.8x1638.d64", "sparse", **_HALF_B, batch=8, context=65_536, entries=1638),
    Case("sparse.1x1200.d64", "sparse", **_HALF_B, batch=1, context=24_000, entries=1200),
    Case("sparse.16x1200.d64", "sparse", **_HALF_B, batch=16, context=24_000, entries=1200),
    Case("sparse.64x1400.d64", "sparse", **_HALF_B, batch=64, context=20_000, entries=1400),
    Case(
        "select.36x4x100000",
        "select",
        **_8B,
        batch=4,
        context=100_000,
        entries=7_000,
        layers=36,
    ),
    Case(
        "select.24x64x20000",
        "select",
        **_HALF_B,
        batch=64,
        context=20_000,
        entries=1_400,
        layers=24,
    ),
)


def find_cases(patterns: tuple[str, ...]) -> list[Case]:
    """The cases whose names match any of `patterns` (``*`` is a wildcard); all without patterns.

    Raises
    ------
    UsageError
        A pattern that matches nothing; the nearest name is suggested.
    """
    if not patterns:
        return list(CASES)
    names = [case.name for case in CASES]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown("case", pattern, names)
    return [case for case in CASES if any(fnmatchcase(case.name, p) for p in patterns)]
