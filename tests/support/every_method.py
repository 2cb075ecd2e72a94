"""Every method that the engine runs, in every variant, on a tiny target."""

from collections.abc import Callable

from specbench.engine.engine import Engine
from specbench.engine.generate import Generated
from specbench.engine.model import Transformer
from specbench.methods.base import EngineMethod
from tests.support.tiny import (
    autoregressive,
    longspec,
    longspec_tree,
    lookup,
    magicdec,
    self_tree,
    specextend,
    stream_draft,
    tiny_model,
    vegas,
    with_draft,
)

Factory = Callable[[], EngineMethod]


def drafter(**shape: object) -> Transformer:
    """A small model other than the target, for methods that draft with one."""
    return tiny_model(3, max_len=300, **shape)


SPARSE: dict[str, Factory] = {
    "vegas": vegas,
    "vegas, logits": lambda: vegas(score="logit", share="layer"),
    "vegas, previous": lambda: vegas(normaliser="previous", sinks=1, window=1),
    "vegas, normalised by its drafts": lambda: vegas(normaliser="draft"),
    "magicdec-stream": lambda: magicdec("stream"),
    "magicdec-stream, relative": lambda: magicdec("stream", positions="cache-relative"),
    "magicdec-snapkv": lambda: magicdec("snapkv"),
    "magicdec-quest": lambda: magicdec("quest"),
    "specextend, chains": specextend,
    "specextend, chains, full": lambda: specextend(collect="full", interval=1),
    "specextend, trees": self_tree,
    "specextend, trees, full": lambda: self_tree(collect="full", interval=1),
}
"""The target drafts for itself from a part of its KV."""

WITH_DRAFTER: dict[str, Factory] = {
    "specextend, draft model": lambda: with_draft(drafter()),
    "specextend, draft model, full": lambda: with_draft(drafter(), collect="full", interval=1),
    "magicdec-stream, draft model": lambda: stream_draft(drafter()),
}

SPECULATIVE: dict[str, Factory] = {
    "lookup": lambda: lookup(ngram_min=1),
    **SPARSE,
    **WITH_DRAFTER,
    "longspec, trees": longspec_tree,
    "longspec, chains": longspec,
}

EVERY: dict[str, Factory] = {"autoregressive": autoregressive, **SPECULATIVE}


def certain(target: Transformer, gamma: int) -> dict[str, Factory]:
    """Chains that leave nothing out, so that a greedy target accepts all of their drafts."""
    return {
        "vegas": lambda: vegas(gamma=gamma, kept_ratio=1.0),
        "magicdec-stream": lambda: magicdec("stream", gamma=gamma, budget=200),
        "magicdec-snapkv": lambda: magicdec("snapkv", gamma=gamma, budget=200),
        "magicdec-quest": lambda: magicdec("quest", gamma=gamma, budget=208),
        "magicdec-stream, draft model": lambda: stream_draft(target, gamma=gamma, budget=200),
        "specextend": lambda: specextend(gamma=gamma, top_chunks=99),
    }


def engine_for(method: EngineMethod, model: Transformer, rows: int = 2, **settings: int) -> Engine:
    """An engine with room for the method's trees."""
    values = {"max_len": 220, "prefill_chunk": 32} | settings
    return Engine(model, rows=rows, spare=method.nodes, **values)  # type: ignore[arg-type]


def tokens_of(found: dict[int, Generated]) -> dict[int, list[int]]:
    """Outputs by index."""
    return {index: generated.output_ids for index, generated in found.items()}


def steps_of(found: dict[int, Generated]) -> dict[int, tuple[object, ...]]:
    """Outputs with what was drafted and accepted in each step: all but the times."""
    return {i: (g.output_ids, g.drafted, g.accepted, g.committed) for i, g in found.items()}
