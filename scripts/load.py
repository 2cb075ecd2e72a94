"""Many requests through an engine's rows: pages returned, memory flat, acceptance steady.

python scripts/load.py ./my-model prompts.jsonl runs/load --method vegas --requests 1000

After every request each KV page must have one owner or none, and each row's table must be that of
its pages. At the end all pages must be free, the last third of the requests may not take more
memory than the first, and its acceptance length must be that of the first within noise. Prompts
come in a random order, again and again if there are fewer than requests. The exit status is 1
where something did not hold.
"""

import argparse
import csv
import io
import json
import random
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from specbench.bench.backends import EngineHost
from specbench.bench.environment import describe
from specbench.bench.plan import make_plan
from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.engine.generate import Request, generate
from specbench.engine.sampling import Sampling
from specbench.files import write_atomically
from specbench.methods.base import EngineMethod

ALLOWED_BYTES = 16 * 2**20
ALLOWED_ERRORS = 4.0


@dataclass(frozen=True)
class Completed:
    """A request that left its row, in the order in which they did.

    `host_bytes` is what the process holds after it, `device_bytes` what it holds of a GPU.
    """

    index: int
    item_id: str
    prompt_tokens: int
    output_tokens: int
    steps: int
    committed: int
    free_pages: int
    host_bytes: int
    device_bytes: int
    seconds: float


def main(argv: list[str] | None = None) -> int:
    """Write `load.csv` and `load.json`, and print what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--method", default="vegas")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--context-len", type=int)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    config = {
        **{"model": options.model, "dataset": f"file:{options.prompts}", "repeats": 1},
        **{"method": options.method, "batch_size": options.rows, "seed": options.seed},
        **{"context_len": options.context_len, "max_new_tokens": options.max_new_tokens},
        **{"num_prompts": options.requests, "baseline": options.method == "autoregressive"},
    }
    plan = make_plan(build_config(config))
    method = plan.arms[-1].method
    assert isinstance(method, EngineMethod)
    engine = EngineHost(plan).engine
    requests = repeated(plan.workloads[0].requests, options.requests, options.seed)
    began = time.perf_counter()
    completed = []
    for done in drive(engine, method, requests, Sampling.from_config(plan.config)):
        completed.append(done)
        if len(completed) % 50 == 0:
            print(f"{len(completed)} of {len(requests)} requests", flush=True)
    found = judge(completed, engine)
    found["seconds"] = time.perf_counter() - began
    found["graph_mode"] = engine.graph_mode(method)
    named = {"model": Path(options.model).name, "dataset": f"file:{options.prompts.name}"}
    found["config"] = {**config, **named}
    found["environment"] = describe(["scripts/load.py"])
    options.output.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output / "load.csv", to_csv(completed))
    write_atomically(options.output / "load.json", json.dumps(found, indent=2).encode())
    shown = {name: found[name] for name in found if name not in ("config", "environment")}
    print(json.dumps(shown, indent=2))
    return 1 if found["complaints"] else 0


def repeated(requests: Sequence[Request], count: int, seed: int) -> list[Request]:
    """`count` requests in a random order, numbered anew."""
    mixed = list(requests)
    random.Random(seed).shuffle(mixed)
    return [replace(r, index=i) for i, r in enumerate(islice(cycle(mixed), count))]


def drive(
    engine: Engine, method: EngineMethod, requests: Sequence[Request], sampling: Sampling
) -> Iterator[Completed]:
    """Decode `requests`, the book of the pages checked after each of them.

    Raises
    ------
    RuntimeError
        See `Engine.check_integrity`.
    """
    engine.use(method, sampling)
    began = time.perf_counter()
    for generated in generate(engine, requests):
        engine.check_integrity()
        yield Completed(
            index=generated.request.index,
            item_id=generated.request.item_id,
            prompt_tokens=len(generated.request.token_ids),
            output_tokens=len(generated.output_ids),
            steps=len(generated.committed),
            committed=sum(generated.committed),
            free_pages=engine.cache.free_pages,
            host_bytes=host_bytes(),
            device_bytes=device_bytes(engine.device),
            seconds=time.perf_counter() - began,
        )


def host_bytes() -> int:
    """The resident set."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def device_bytes(device: torch.device) -> int:
    """What tensors take of a GPU; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def judge(completed: Sequence[Completed], engine: Engine) -> dict[str, Any]:
    """The thirds of a load, and what is wrong with it."""
    third = len(completed) // 3
    first, last = completed[:third], completed[-third:]
    (a, error_a), (b, error_b) = acceptance_length(first), acceptance_length(last)
    apart = abs(a - b) / max((error_a**2 + error_b**2) ** 0.5, 1e-9)
    memory = {
        name: [max(getattr(c, name) for c in part) for part in (first, last)]
        for name in ("host_bytes", "device_bytes")
    }
    lost = engine.cache.num_pages - engine.cache.free_pages
    complaints = []
    if lost:
        complaints.append(f"{lost} of {engine.cache.num_pages} KV pages were not returned")
    for name, (before, after) in memory.items():
        if after - before > ALLOWED_BYTES:
            complaints.append(
                f"{name}: {after - before:,} more in the last third than in the first"
            )
    if apart > ALLOWED_ERRORS:
        complaints.append(f"AL {a:.3f} in the first third, {b:.3f} in the last")
    return {
        "requests": len(completed),
        "rows": engine.batch.rows,
        "kv_pages": engine.cache.num_pages,
        "kv_pages_lost": lost,
        "acceptance_length_first_third": a,
        "acceptance_length_last_third": b,
        "standard_errors_apart": apart,
        **{f"{name}_of_thirds": found for name, found in memory.items()},
        "complaints": complaints,
    }


def acceptance_length(completed: Sequence[Completed]) -> tuple[float, float]:
    """Tokens a step, pooled, and its standard error: that of a ratio of sums over requests."""
    steps = sum(c.steps for c in completed)
    ratio = sum(c.committed for c in completed) / steps
    squares = sum((c.committed - ratio * c.steps) ** 2 for c in completed)
    return ratio, (squares * len(completed) / (len(completed) - 1)) ** 0.5 / steps


def to_csv(completed: Sequence[Completed]) -> bytes:
    """A line a request."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Completed)]
    writer.writerow(names)
    writer.writerows([getattr(c, name) for name in names] for c in completed)
    return text.getvalue().encode()


if __name__ == "__main__":
    raise SystemExit(main())
