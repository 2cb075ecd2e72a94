"""Device time of LongSpec's drafts and iterations by the drafts' shape, and where it goes.

    python scripts/longspec_step.py qwen2.5-coder-0.5b:1x20000 4,16,16,16,16 3,4,4,4 chain.4

Weights, draft and caches are random; a graph is replayed on the same state. An iteration has to
accept as many tokens as its time is autoregressive steps' to break even: `even_al`.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).parent))
from sweep_step import fill, print_kernels

from specbench.engine.dummy import SHAPES, randomise
from specbench.engine.engine import Engine
from specbench.engine.graph import capture
from specbench.engine.hf_config import from_hf
from specbench.engine.iteration import iterate
from specbench.engine.model import Transformer
from specbench.engine.sampling import Sampling
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.base import EngineMethod, Parameters
from specbench.methods.longspec.chain_method import LongSpecChain, LongSpecChainParameters
from specbench.methods.longspec.tree_method import LongSpecTree, LongSpecTreeParameters

REPLAYS = 15


def method_of(shape: str) -> EngineMethod:
    """`chain.GAMMA`, or the nodes of a tree's levels."""
    kind, _, gamma = shape.partition(".")
    if kind == "chain":
        return LongSpecChain(LongSpecChainParameters(draft_weights="dummy", gamma=int(gamma)))
    levels = tuple(map(int, shape.split(",")))
    return LongSpecTree(LongSpecTreeParameters(draft_weights="dummy", tree_shape=levels))


def milliseconds(engine: Engine, context: int, work: Callable[[], object], kernels: bool) -> float:
    """Median of a graph's replays, the state put back before each."""
    batch = engine.batch

    def restore() -> None:
        batch.lengths.fill_(context)
        batch.remaining.fill_(40)
        batch.active.fill_(True)

    with torch.inference_mode():
        restore()
        graph, _ = capture(work, torch.cuda.graph_pool_handle())
        found = []
        for _ in range(REPLAYS):
            restore()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end))
        if kernels:
            restore()
            print_kernels(graph)
    return median(found)


def measure(engine: Engine, method: EngineMethod, context: int) -> tuple[float, float]:
    """Milliseconds of the drafts and of an iteration."""
    engine.use(method, Sampling())
    fill(engine, context)
    drafts = 0.0
    if method.gamma:
        drafts = milliseconds(engine, context, lambda: method.draft(engine.batch), True)
    whole = milliseconds(engine, context, partial(iterate, engine), True)
    engine.release_all()
    engine.forget(method)
    method.unbind()
    return drafts, whole


def main(where: str, *shapes: str) -> None:
    name, size = where.split(":")
    rows, context = map(int, size.split("x"))
    methods = {shape: method_of(shape) for shape in shapes}
    spare = max((method.nodes for method in methods.values()), default=0)
    model = Transformer(from_hf(SHAPES[name], name), context + 256, torch.bfloat16, "cuda")
    randomise(model, 0)
    engine = Engine(model, rows=rows, max_len=context + 256, spare=spare, graphs=False)
    engine.cache.keys.normal_()
    engine.cache.values.normal_()
    _, step = measure(engine, Autoregressive(Parameters()), context)
    print(f"autoregressive {step:.3f} ms")
    for shape, method in methods.items():
        drafts, whole = measure(engine, method, context)
        print(
            f"{shape:20} drafts {drafts:.3f} ms  iteration {whole:.3f} ms  "
            f"even_al {whole / step:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
