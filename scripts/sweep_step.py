"""Device time of iterations by fused products: python scripts/sweep_step.py OUT [SHAPE...].

SHAPE is MODEL:BATCHxCONTEXT, weights and caches random; of MODEL/4 there are 4 layers. A graph is
replayed on the same state.
"""

import csv
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from specbench.config import Normaliser
from specbench.engine import triton_attention
from specbench.engine.dummy import SHAPES, randomise
from specbench.engine.engine import Engine
from specbench.engine.graph import capture
from specbench.engine.hf_config import from_hf
from specbench.engine.iteration import iterate
from specbench.engine.model import Transformer
from specbench.engine.sampling import Sampling
from specbench.engine.triton_compute import Fusion, TritonCompute
from specbench.kernels import launch
from specbench.kernels.head import triton as head
from specbench.kernels.launch import dependent as launch_dependent
from specbench.kernels.linear import triton as linear
from specbench.kernels.mlp import triton as mlp
from specbench.kernels.paged_attention import workspace
from specbench.kernels.qkv import project
from specbench.kernels.sparse_attention import triton as sparse
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.base import EngineMethod, Parameters
from specbench.methods.vegas import Vegas, VegasParameters

DEFAULT = (
    "qwen2.5-coder-0.5b:1x24000",
    "qwen2.5-coder-0.5b:16x24000",
    "qwen2.5-coder-0.5b:64x8000",
)
GAMMA = 6
CHOICES = {module: module.choose for module in (linear, mlp, project)}
HEAD = dict(head.TABLE)
AHEAD = launch.MOST_AHEAD


def make_engine(name: str, batch: int, context: int, spare: int = 0) -> Engine:
    """Random weights and random keys and values; `spare` entries a row for trees of drafts."""
    name, _, layers = name.partition("/")
    config = from_hf(SHAPES[name], name)
    config = replace(config, num_layers=int(layers or config.num_layers))
    model = Transformer(config, context + 64, torch.bfloat16, "cuda")
    randomise(model, 0)
    engine = Engine(model, rows=batch, max_len=context + 64, spare=spare, graphs=False)
    engine.cache.keys.normal_()
    engine.cache.values.normal_()
    return engine


def fill(engine: Engine, context: int) -> None:
    """Every row a request of `context` tokens, and sets of the size that they would have."""
    if isinstance(engine.method, Vegas):
        engine.method.scores.normal_()
    for row in range(engine.batch.rows):
        pages = engine.pages.reserve(row, [], 0, context + 64 + engine.spare)
        engine.batch.reserve(row, pages)
        engine.batch.admit(row, row, context, 17 + row, 40)
        engine.method.admit(row, engine.batch)


def milliseconds(
    engine: Engine, method: EngineMethod, context: int, part: str, profile: bool
) -> float:
    """Median device time of one replay, the state put back before each."""
    engine.use(method, Sampling())
    fill(engine, context)
    batch = engine.batch

    def restore() -> None:
        batch.lengths.fill_(context)
        batch.remaining.fill_(40)
        batch.active.fill_(True)

    def draft() -> torch.Tensor:
        made = method.draft(batch)
        assert made is not None
        return made.tokens

    with torch.inference_mode():
        work = partial(iterate, engine) if part == "iteration" else draft
        restore()
        graph, _ = capture(work, torch.cuda.graph_pool_handle())
        found = []
        for _ in range(15):
            restore()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end))
        if profile:
            restore()
            print_kernels(graph)
    engine.release_all()
    engine.forget(method)
    method.unbind()
    return sorted(found)[len(found) // 2]


def unsettled(*arguments: Any, **options: Any) -> torch.Tensor:
    """Sparse attention that waits before it looks at its lists."""
    return sparse.sparse_attention(*arguments, **(options | {"settled": False}))


def change(label: str) -> None:
    """Alter how the kernels are launched."""

    def altered(chosen: Any, op: str) -> Any:
        if label == "prefetch of all":
            return replace(chosen, prefetch=True)
        if label == "prefetch of none":
            return replace(chosen, prefetch=False)
        return replace(chosen, pdl=label != f"no overlap of {op}")

    def choose(module: Any, *sizes: int) -> Any:
        # of one op of each module; attention's output is linear's other
        op = {linear: "down", mlp: "gate_up", project: "qkv"}[module]
        wide = module is not linear or sizes[2] > 2 * sizes[1]
        return altered(CHOICES[module](*sizes), op if wide else "o")

    launch.overlaps = lambda _: label != "no overlap"  # type: ignore[assignment]
    launch.MOST_AHEAD = 0 if label == "nothing ahead" else AHEAD
    triton_attention.sparse_attention = sparse.sparse_attention  # type: ignore[attr-defined]
    if label == "entries not ahead":
        triton_attention.sparse_attention = unsettled  # type: ignore[attr-defined]
    for module in CHOICES:
        module.choose = partial(choose, module)  # type: ignore[attr-defined]
    head.TABLE.update({tile: altered(chosen, "head") for tile, chosen in HEAD.items()})
    for attention in (workspace, sparse):
        options = launch.dependent
        if label == "no overlap of attention":
            options = lambda _, device: launch_dependent(False, device)  # noqa: E731
        attention.dependent = options  # type: ignore[attr-defined]


def print_kernels(graph: torch.cuda.CUDAGraph) -> None:
    """Where a replay's time goes: microseconds and launches by kernel."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        graph.replay()
        torch.cuda.synchronize()
    for event in sorted(trace.key_averages(), key=lambda e: -e.self_device_time_total)[:14]:
        print(f"    {event.self_device_time_total:8.1f} us {event.count:5} x {event.key[:90]}")


def main(out: str, *shapes: str) -> None:
    rows: list[dict[str, Any]] = []
    for shape in shapes or DEFAULT:
        name, size = shape.split(":")
        batch, context = map(int, size.split("x"))
        engine = make_engine(name, batch, context)
        for label in (
            "all",
            "one pass",
            "no overlap",
            "prefetch of all",
            "prefetch of none",
            "nothing ahead",
            "entries not ahead",
            *(f"no overlap of {op}" for op in ("gate_up", "down", "attention")),
            "library",
        ):
            change(label)
            fusion = Fusion(0, 0, 0, 0, 0) if label == "library" else Fusion()
            engine.compute = TritonCompute(engine.model, engine.cache, fusion)
            how: Normaliser = "previous" if label == "one pass" else "exact"
            vegas = Vegas(VegasParameters(gamma=GAMMA, kept_ratio=0.05, normaliser=how))
            times = {
                key: milliseconds(engine, method, context, part, label == "no overlap")
                for key, method, part in (
                    ("ar_step", Autoregressive(Parameters()), "iteration"),
                    ("drafts", vegas, "draft"),
                    ("iteration", vegas, "iteration"),
                )
            }
            times["draft_step"] = times["drafts"] / GAMMA
            times["verify_and_rest"] = times["iteration"] - times["drafts"]
            rows.append({"shape": shape, "fusion": label} | times)
            line = "  ".join(f"{key} {value:.3f}" for key, value in times.items())
            print(f"{shape:34} {label:24} {line}", flush=True)
        del engine
        torch.cuda.empty_cache()
    with open(out, "w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
