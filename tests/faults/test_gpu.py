"""Another process takes the GPU's memory while requests are decoded.

No test may run beside it on the same GPU, hence it is slow:
pytest -m gpu --slow -n0 tests/faults/test_gpu.py
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from specbench.bench.status import classify
from specbench.engine.engine import Engine
from specbench.engine.generate import Request, generate
from specbench.results.records import Status
from tests.support.tiny import GREEDY, prompts, tiny_model, vegas

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CHUNK = 8192
HOG = """
import sys, torch
held, size = [], 2**30
while size >= 2**21:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except RuntimeError:  # OutOfMemoryError, or AcceleratorError where the driver says so
        size //= 2
print("full", flush=True)
sys.stdin.read()
"""


@contextmanager
def full_device() -> Iterator[None]:
    """All memory that is free is another process's."""
    torch.cuda.empty_cache()
    process = subprocess.Popen(
        [sys.executable, "-c", HOG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "full\n"
        yield
    finally:
        process.stdin.close()
        process.wait()


def test_out_of_memory_in_the_middle_and_again_when_it_is_back() -> None:
    """The feed-forward part of a long prompt's chunk takes a gibibyte that is not there."""
    shape = {"hidden_size": 1024, "intermediate_size": 16384, "num_heads": 16, "head_dim": 64}
    model = tiny_model(9, torch.float32, CHUNK + 64, **shape).to("cuda")
    engine = Engine(model, rows=2, max_len=CHUNK + 64, prefill_chunk=CHUNK)
    requests = [
        Request(i, f"item-{i}", ids, 16) for i, ids in enumerate(prompts(9, [32, 60, CHUNK, 40]))
    ]
    method = vegas(gamma=4)
    engine.use(method, GREEDY)
    ended: list[int] = []
    with full_device():
        with pytest.raises(RuntimeError) as caught:
            ended += (done.request.index for done in generate(engine, requests))
        status, message = classify(caught.value)
        assert status is Status.OOM
        assert message.endswith("use a smaller --batch-size or --context-len")
        del caught
        engine.check_integrity()
        assert engine.cache.free_pages == engine.cache.num_pages
        engine.forget(method)
        method.unbind()
        torch.cuda.empty_cache()
    engine.use(method, GREEDY)
    again = {done.request.index: done.output_ids for done in generate(engine, requests)}
    alone = {
        done.request.index: done.output_ids for r in requests for done in generate(engine, [r])
    }
    assert again == alone
    assert engine.cache.free_pages == engine.cache.num_pages
