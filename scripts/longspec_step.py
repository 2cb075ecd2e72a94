"""Device time of LongSpec's drafts and iterations by the drafts' shape, and where it goes.

    python scripts/longspec_step.py qwen2.5-coder-0.5b:1x20000 4,16,16,16,16 3,4,4,4 chain.4

Weights, draft and caches are random; a graph is replayed on the same state. An iteration has to
accept as many tokens as its time is autoregressive steps' to break even: `even_al`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from sweep_step import make_engine, milliseconds

from specbench.methods.autoregressive import Autoregressive
from specbench.methods.base import EngineMethod, Parameters
from specbench.methods.longspec.chain_method import LongSpecChain, LongSpecChainParameters
from specbench.methods.longspec.tree_method import LongSpecTree, LongSpecTreeParameters


def method_of(shape: str) -> EngineMethod:
    """`chain.GAMMA`, or the nodes of a tree's levels."""
    kind, _, gamma = shape.partition(".")
    if kind == "chain":
        return LongSpecChain(LongSpecChainParameters(draft_weights="dummy", gamma=int(gamma)))
    levels = tuple(map(int, shape.split(",")))
    return LongSpecTree(LongSpecTreeParameters(draft_weights="dummy", tree_shape=levels))


def main(where: str, *shapes: str) -> None:
    name, size = where.split(":")
    rows, context = map(int, size.split("x"))
    methods = {shape: method_of(shape) for shape in shapes}
    spare = max((method.nodes for method in methods.values()), default=0)
    engine = make_engine(name, rows, context, spare)
    step = milliseconds(engine, Autoregressive(Parameters()), context, "iteration", True)
    print(f"autoregressive {step:.3f} ms")
    for shape, method in methods.items():
        drafts = milliseconds(engine, method, context, "draft", True)
        whole = milliseconds(engine, method, context, "iteration", True)
        print(
            f"{shape:20} drafts {drafts:.3f} ms  iteration {whole:.3f} ms  "
            f"even_al {whole / step:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
