"""Draft steps whose layers are one launch: python scripts/sweep_layers.py OUT [SHAPE...].

SHAPE is MODEL:BATCHxCONTEXT, weights and caches random. Beside the launches that it replaces, by
launch; with a launch for each phase, what its barriers save; and by how much its results differ.
"""

import csv
import sys
from functools import partial
from typing import Any

import torch
from sweep_step import GAMMA, fill, make_engine, milliseconds

from specbench.engine import resident_step
from specbench.engine.engine import Engine
from specbench.engine.forward import SparseAttention
from specbench.engine.sampling import Sampling
from specbench.engine.triton_compute import Fusion, TritonCompute
from specbench.kernels.launch import row_tile
from specbench.kernels.step import triton as step
from specbench.kernels.step.plan import StepLaunch
from specbench.methods.vegas import Vegas, VegasParameters

DEFAULT = (
    "qwen2.5-coder-0.5b:16x20000",
    "qwen2.5-coder-0.5b:1x24000",
    "qwen2.5-coder-0.5b:64x20000",
)
RULE, APART = step.choose, "a launch a phase"
FEW = (
    StepLaunch(cooperative=False),
    StepLaunch(ahead=False),
    StepLaunch(1, 4, 128),
    StepLaunch(2, 4, 128, (32, 128, 3), (64, 64, 5)),
    StepLaunch(gate_up=(32, 128, 8)),
    StepLaunch(gate_up=(64, 128, 5), down=(64, 64, 10)),
    StepLaunch(entries=128),
    StepLaunch(down=(32, 128, 6)),
)
MANY = (
    StepLaunch(down=(32, 128, 6), ahead=False),
    StepLaunch(gate_up=(64, 128, 4), down=(32, 128, 6)),
    StepLaunch(1, 8, 128, (32, 128, 5), (32, 128, 5)),
    StepLaunch(2, 4, 128, (32, 128, 3), (64, 64, 5)),
)


def use(launch: StepLaunch | None, apart: bool = False) -> None:
    """From now on steps are launched so."""
    step.choose = RULE if launch is None else lambda *_: launch
    made = partial(step.draft_layers, apart=apart)
    resident_step.draft_layers = made  # type: ignore[attr-defined]


def vegas() -> Vegas:
    return Vegas(VegasParameters(gamma=GAMMA, kept_ratio=0.05, normaliser="previous"))


def hidden(engine: Engine, attention: SparseAttention, fusion: Fusion) -> torch.Tensor:
    """Of one draft step."""
    tokens = engine.batch.tokens[:, None]
    position = engine.within(engine.batch.lengths)[:, None]
    compute = TritonCompute(engine.model, engine.cache, fusion)
    return compute.hidden(tokens, position, attention)


def difference(engine: Engine, context: int) -> float:
    """How far one step is from that of the chain of launches, against its size."""
    method = vegas()
    engine.use(method, Sampling())
    fill(engine, context)
    batch = engine.batch
    with torch.inference_mode():
        reach = method.ranked[:, None] + torch.arange(2 * GAMMA + 1, device=engine.device)
        steps = engine.compute.draft_steps(batch, GAMMA, reach, engine.max_len)
        lists = method.selected, steps.tails[0], steps.own[0]
        attention = SparseAttention(engine.cache, *lists, engine.scale)
        chain, ours = (hidden(engine, attention, Fusion(step=n)).float() for n in (0, 64))
    engine.release_all()
    engine.forget(method)
    method.unbind()
    return float((ours - chain).norm() / chain.norm())


def main(out: str, *shapes: str) -> None:
    rows: list[dict[str, Any]] = []
    for shape in shapes or DEFAULT:
        name, size = shape.split(":")
        batch, context = map(int, size.split("x"))
        engine = make_engine(name, batch, context)
        others = FEW if row_tile(batch) == 16 else MANY
        for label in ("chain", APART, "table", *others):
            use(None if isinstance(label, str) else label, label == APART)
            fusion = Fusion(step=0 if label == "chain" else 64)
            engine.compute = TritonCompute(engine.model, engine.cache, fusion)
            try:
                error = 0.0 if label == "chain" else difference(engine, context)
                found = milliseconds(engine, vegas(), context, "draft", label in ("chain", "table"))
            except Exception as problem:  # a launch that cannot be
                print(shape, label, type(problem).__name__, str(problem)[:80], flush=True)
                engine.release_all()
                continue
            rows.append({"shape": shape, "launch": label, "draft_step": found / GAMMA})
            rows[-1]["difference"] = error
            print(f"{shape:30} {found / GAMMA:.3f} ms a step, {error:.1e} off: {label}", flush=True)
            with open(out, "w", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        del engine
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
