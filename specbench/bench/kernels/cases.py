"""The shapes that kernels are measured at: two real models', at lengths that users serve."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from specbench.registry import unknown

Op = Literal["verify", "tree", "sparse", "select", "sample", "accept"]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape.

    Attributes
    ----------
    name : str
    op : str
        ``verify``: paged attention of `rows` query rows, with collection. ``tree``: the same of a
        tree's nodes, under its mask. ``sparse``: one query over `entries` selected ones.
        ``select``: the best `entries` of `context` scores.
        ``sample``: temperature, `top_k`, `top_p` and a draw from `entries` logits a row.
        ``accept``: which of `rows` - 1 drafts stand, and a draw of what follows.
    heads, kv_heads, dim : int
        Of the model; query heads, KV heads, head dimension (attention, select).
    batch, context : int
        Requests, and tokens of each.
    rows : int
        Query rows of a request (verify, tree, accept).
    entries : int
        Selected entries of a request and KV head (sparse, select); tokens of the vocabulary.
    layers : int
        Ranked in one go (select).
    scores : str
        Type of the scores that are stored or ranked; Vegas has bfloat16 with such a model.
    top_k, top_p : int, float
        Of the distribution (sample, accept), at temperature 0.6.
    """

    name: str
    op: Op
    heads: int = 0
    kv_heads: int = 0
    dim: int = 0
    batch: int = 1
    context: int = 0
    rows: int = 1
    entries: int = 0
    layers: int = 1
    scores: Literal["bfloat16", "float32"] = "bfloat16"
    top_k: int = 0
    top_p: float = 1.0

    @property
    def kv_bytes(self) -> int:
        """Keys and values that one call reads, in bf16."""
        tokens = self.entries if self.op == "sparse" else self.context
        return self.batch * tokens * self.kv_heads * self.dim * 2 * 2

    @property
    def token_bytes(self) -> int:
        """Logits that a sample reads and probabilities that it writes, or those of an acceptance.

        An acceptance has to read the target's and the draft's of one row a request.
        """
        return self.batch * self.entries * (6 if self.op == "sample" else 8)

    @property
    def score_bytes(self) -> int:
        """Scores that one selection reads once."""
        each = 2 if self.scores == "bfloat16" else 4
        return self.layers * self.batch * self.kv_heads * self.context * each


_8B: dict[str, Any] = {"heads": 32, "kv_heads": 8, "dim": 128}
_HALF_B: dict[str, Any] = {"heads": 14, "kv_heads": 2, "dim": 64}
_RANKED_8B = _8B | {"batch": 4, "context": 100_000, "entries": 7_000, "layers": 36}
_RANKED_HALF_B = _HALF_B | {"batch": 64, "context": 20_000, "entries": 1_400, "layers": 24}

# the vocabulary of Qwen2.5 and Qwen3, and what Qwen3's card advises for thinking
_QWEN: dict[str, Any] = {"entries": 151_936}
_THINKING: dict[str, Any] = {"top_k": 20, "top_p": 0.95}

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
    Case("tree.1x20074", "tree", **_8B, batch=1, context=20_074, rows=74),
    Case("tree.1x20069.d64", "tree", **_HALF_B, batch=1, context=20_069, rows=69),
    Case("sparse.8x4096", "sparse", **_8B, batch=8, context=65_536, entries=4096),
    Case("sparse.8x1638", "sparse", **_8B, batch=8, context=65_536, entries=1638),
    Case("sparse.8x4096.d64", "sparse", **_HALF_B, batch=8, context=65_536, entries=4096),
    Case("sparse.8x1638.d64", "sparse", **_HALF_B, batch=8, context=65_536, entries=1638),
    Case("sparse.1x1200.d64", "sparse", **_HALF_B, batch=1, context=24_000, entries=1200),
    Case("sparse.16x1200.d64", "sparse", **_HALF_B, batch=16, context=24_000, entries=1200),
    Case("sparse.64x1400.d64", "sparse", **_HALF_B, batch=64, context=20_000, entries=1400),
    Case("select.36x4x100000", "select", **_RANKED_8B, scores="float32"),
    Case("select.36x4x100000.bf16", "select", **_RANKED_8B),
    Case("select.24x64x20000", "select", **_RANKED_HALF_B, scores="float32"),
    Case("select.24x64x20000.bf16", "select", **_RANKED_HALF_B),
    Case("sample.16", "sample", batch=16, **_QWEN, **_THINKING),
    Case("sample.144", "sample", batch=144, **_QWEN, **_THINKING),
    Case("sample.16.top_p", "sample", batch=16, **_QWEN, top_p=0.95),
    Case("sample.16.all", "sample", batch=16, **_QWEN),
    Case("accept.16x9", "accept", batch=16, rows=9, **_QWEN, **_THINKING),
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
