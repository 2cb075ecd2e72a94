"""Launches of a draft step's kernels, chosen in the step: python scripts/tune_step.py OUT SHAPE...

SHAPE is MODEL:BATCHxCONTEXT, or MODEL/4:… for 4 of its layers. One kernel after the other takes
each of its candidates while the rest stay: what a kernel costs depends on those around it, which
fetch for it and make room for it. Processes compile in parallel first.
"""

import csv
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
from sweep_step import GAMMA, fill, make_engine, milliseconds

from specbench.engine.engine import Engine
from specbench.engine.sampling import Sampling
from specbench.engine.triton_compute import TritonCompute
from specbench.kernels.head import triton as head
from specbench.kernels.launch import Scratch, row_tile
from specbench.kernels.linear import triton as linear
from specbench.kernels.linear.plan import whole
from specbench.kernels.mlp import triton as mlp
from specbench.kernels.qkv import project
from specbench.kernels.sparse_attention import workspace as sparse
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.base import Parameters
from specbench.methods.vegas import Vegas, VegasParameters

RATIO = 0.05
# a draft that takes less than this much of the best time so far is better
BETTER = 0.996
# hidden sizes beyond this are those of models of billions
WIDE = 2048
# that compile, of contexts four times as long as the sets: their caches must fit beside each other
WORKERS = 14

RULES = {
    "qkv": project.choose,
    "o": linear.choose,
    "gate_up": mlp.choose,
    "down": linear.choose,
    "head": dict(head.TABLE),
    "sparse": sparse.default_launch,
}
chosen: dict[str, Any] = {}


def install() -> None:
    """From now on the kernels are launched as `chosen` says, where it does."""

    def choose(op: str, *sizes: int) -> Any:
        return chosen.get(op) or RULES[op](*sizes)

    project.choose = lambda *sizes: choose("qkv", *sizes)
    mlp.choose = lambda *sizes: choose("gate_up", *sizes)
    linear.choose = lambda *sizes: choose("down" if sizes[2] > 2 * sizes[1] else "o", *sizes)
    sparse.default_launch = lambda *shape: choose("sparse", *shape)


def take(op: str, launch: Any) -> None:
    """Launch `op` so; None for its own rule."""
    chosen[op] = launch
    head.TABLE.update(RULES["head"])
    if chosen.get("head"):
        head.TABLE.update(dict.fromkeys(head.TABLE, chosen["head"]))


def rule(op: str, engine: Engine) -> Any:
    """What the kernels choose themselves."""
    config, rows = engine.config, engine.batch.rows
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, sms = config.num_heads + 2 * config.num_kv_heads, 132
    if op == "head":
        return RULES[op][row_tile(rows)]
    sizes = {
        "qkv": (rows, heads, dim, hidden, sms),
        "o": (rows, hidden, config.num_heads * dim, sms),
        "gate_up": (rows, inner, sms),
        "down": (rows, hidden, inner, sms),
        "sparse": (dim, torch.bfloat16, rows * config.num_kv_heads),
    }
    return RULES[op](*sizes[op])


def candidates(op: str, engine: Engine) -> list[Any]:
    """What is tried, from the rule's own launch."""
    own = rule(op, engine)
    if op == "sparse":
        tiles = [(32, 1, 4), (32, 1, 6), (64, 2, 3), (64, 2, 5), (64, 4, 4), (128, 4, 2)]
        tiles += [(128, 4, 3), (128, 8, 3)]
        held = [(64, 2, 3), (64, 4, 3), (128, 4, 2)]
        return [
            sparse.Launch(*tile, programs, 2)
            for tile, programs in itertools.product(tiles, (1, 2, 3, 4))
        ] + [
            sparse.Launch(*tile, programs, 1, held=True)
            for tile, programs in itertools.product(held, (2, 3))
        ]
    if op == "head":
        grid = itertools.product((64, 128), (1, 2), (3, 5), (4, 8), (False, True))
        return [
            replace(own, block_n=n, per_multiprocessor=p, num_stages=s, num_warps=w, prefetch=f)
            for n, p, s, w, f in grid
        ]
    head_width = 1 << (engine.config.head_dim - 1).bit_length()
    shapes = {
        "qkv": ((head_width,), (128, 256), (1, 2, 4, 7), (2, 4, 8), (3,)),
        "o": ((16, 32), (128, 256), (1, 2), (2, 4), (4,)),
        "gate_up": ((16, 32, 64), (64, 128), (1,), (2, 4), (4, 7)),
        "down": ((16, 32), (128, 256), (1, 2, 4, 8), (2, 4), (4,)),
    }
    if engine.batch.rows > 32:
        # the rows of x are as many bytes as the weight's: wider tiles read them less often
        shapes |= {
            "o": ((16, 32, 64), (128,), (1, 2, 4), (4, 8), (4,)),
            "gate_up": ((32, 64, 128), (64, 128), (1,), (4, 8), (3, 5)),
            "down": ((32, 64, 128), (64, 128), (4, 9, 18), (4, 8), (4,)),
        }
    elif engine.config.hidden_size > WIDE:
        # each program has a long K to stream
        shapes |= {
            "qkv": ((head_width,), (64, 128), (2, 3, 5), (4, 8), (3, 4)),
            "o": ((32, 64), (128, 256), (2, 4), (4, 8), (3, 5)),
            "gate_up": ((16, 32, 64), (64, 128, 256), (1,), (4, 8), (3, 4)),
            "down": ((32, 64), (128, 256), (2, 4, 8), (4, 8), (4,)),
        }
    whole_k, _, warps = whole(engine.config.hidden_size)
    shared = {
        "qkv": [(16, whole_k, 1, warps, 1), (32, whole_k, 1, warps, 1), (16, 256, 1, 4, 4)],
        "o": [(n, whole_k, 1, warps, 1) for n in (8, 16, 32)] + [(16, 256, 1, 4, 4)],
        "gate_up": [(32, 128, 1, 4, 5), (32, 256, 1, 8, 3), (16, 256, 1, 4, 4)],
        "down": [(8, 512, 1, 8, 5), (16, 512, 2, 8, 4), (32, 512, 4, 8, 4), (32, 1024, 5, 8, 1)],
    }
    fields = "block_n", "block_k", "splits", "num_warps", "num_stages"
    return [
        replace(own, over_k=over_k, **dict(zip(fields, values, strict=True)))
        for over_k, tried in ((False, itertools.product(*shapes[op])), (True, shared[op]))
        for values in tried
    ]


def flags(launch: Any) -> list[Any]:
    """The same tiles, entered and fetched otherwise."""
    if isinstance(launch, sparse.Launch):
        return [replace(launch, early=tiles) for tiles in (0, 1, 2, 4)]
    if not hasattr(launch, "pdl"):
        return []
    found = [
        replace(launch, pdl=pdl, prefetch=fetch)
        for pdl, fetch in ((True, True), (True, False), (False, False))
    ]
    if hasattr(launch, "early"):
        found += [replace(launch, pdl=True, prefetch=f, early=True) for f in (True, False)]
    return found


def vegas(context: int, width: int) -> Vegas:
    """With sets of `width` entries."""
    return Vegas(VegasParameters(gamma=GAMMA, kept_ratio=width / context, normaliser="previous"))


def compute(engine: Engine) -> TritonCompute:
    """With room for more parts of sums than the rules' own launches leave."""
    made = TritonCompute(engine.model, engine.cache)
    made._scratch = Scratch.make("cuda", 2**23)
    return made


_engine: Engine | None = None


def begin(name: str, batch: int, width: int) -> None:
    """A process's own engine; sets as wide as in the measurement, since strides are compiled in."""
    global _engine
    install()
    context = 4 * width
    _engine = make_engine(name, batch, context)
    method = vegas(context, width)
    _engine.use(method, Sampling())
    fill(_engine, context)


def compile_one(op: str, launch: Any) -> None:
    """Draft once."""
    assert _engine is not None
    take(op, launch)
    _engine.compute = compute(_engine)
    try:
        with torch.inference_mode():
            _engine.method.draft(_engine.batch)
            torch.cuda.synchronize()
    except Exception as error:  # it will not be measured either
        print(op, launch, type(error).__name__, str(error)[:80], flush=True)
    take(op, None)


def drafts(engine: Engine, context: int, width: int) -> float:
    """Milliseconds of `GAMMA` draft steps."""
    engine.compute = compute(engine)
    try:
        return milliseconds(engine, vegas(context, width), context, "draft", False)
    except Exception as error:  # a launch that cannot be
        print(type(error).__name__, str(error)[:80], flush=True)
        engine.release_all()
        return float("inf")


def tune(shape: str, write: Any) -> None:
    """Every kernel once."""
    name, size = shape.split(":")
    batch, context = map(int, size.split("x"))
    width = -(-context // 20)
    install()
    engine = make_engine(name, batch, context)
    jobs = [(op, launch) for op in RULES for launch in candidates(op, engine)]
    pool = ProcessPoolExecutor(WORKERS, get_context("spawn"), begin, (name, batch, width))
    with pool:
        list(pool.map(compile_one, *zip(*jobs, strict=True), chunksize=2))
    print(shape, flush=True)
    milliseconds(engine, vegas(context, width), context, "draft", True)
    best = drafts(engine, context, width)
    write(shape, "rule", "", best)
    print(f"{shape:32} {'rule':8} {best / GAMMA:.3f} ms a step", flush=True)
    for op in RULES:
        for stage in (candidates(op, engine), None):
            tried = flags(chosen.get(op) or rule(op, engine)) if stage is None else stage
            for launch in tried:
                before = chosen.get(op)
                take(op, launch)
                found = drafts(engine, context, width)
                write(shape, op, launch, found)
                if found < BETTER * best:
                    best = found
                else:
                    take(op, before)
        print(f"{shape:32} {op:8} {best / GAMMA:.3f} ms a step  {chosen.get(op)}", flush=True)
    for label, method, part in (
        ("ar_step", Autoregressive(Parameters()), "iteration"),
        ("iteration", vegas(context, width), "iteration"),
    ):
        found = milliseconds(engine, method, context, part, False)
        write(shape, label, "", found)
        print(f"{shape:32} {label:8} {found:.3f} ms", flush=True)
    for op in RULES:
        take(op, None)


def main(out: str, *shapes: str) -> None:
    with open(out, "w", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["shape", "op", "launch", "ms"])

        def write(*row: Any) -> None:
            writer.writerow(row)
            file.flush()

        for shape in shapes:
            tune(shape, write)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
