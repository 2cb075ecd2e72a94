"""The plug-in on a CUDA device; SPECBENCH_GPU_MODEL names a model folder (else the default)."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from rich.console import Console

from specbench.bench.run import run_benchmark
from specbench.config_build import build_config
from specbench.engine.model import Transformer
from specbench.integrations.vllm.replay import Replay
from specbench.integrations.vllm.vegas_choice import VegasChoice
from specbench.methods.vegas import VegasParameters
from tests.support.tiny import prompts, tiny_model
from tests.support.vllm_batch import Row, continued, make_drafter, packed_layout, split_layout

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
GAMMA = 3


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny_model(1, torch.float32, 128, hidden_size=64, head_dim=16).cuda()


@pytest.mark.parametrize("layout", [split_layout, packed_layout])
def test_a_captured_round_drafts_what_the_target_would(model: Transformer, layout: Any) -> None:
    texts = [ids[:n] for ids, n in zip(prompts(5, (50, 37, 20), 32), (50, 37, 20), strict=True)]
    batch = [
        Row(texts[0], GAMMA + 1, continued(model, texts[0][:-GAMMA], 1)),
        Row(texts[1], 8, continued(model, texts[1], 1), prefilling=True),
        Row(texts[2], 4, [], prefilling=True),
    ]
    parameters = VegasParameters(gamma=GAMMA, kept_ratio=1.0)

    def choice(rows: int, length: int, kernels: bool) -> VegasChoice:
        sizes = rows, length, model.dtype, torch.device("cuda")
        return VegasChoice(parameters, model.config, *sizes, kernels)

    drafter = make_drafter(model, batch, choice, GAMMA, layout, kernels=True)
    replay = Replay(drafter, graphs=True)
    planned = drafter.planned.clone()
    with torch.inference_mode():
        for _ in range(3):  # one captures, the others replay
            drafter.planned.copy_(planned)
            drafts = replay.run(len(batch)).tolist()
            for row, drafted in zip(batch, drafts, strict=True):
                if row.sampled:
                    assert drafted == continued(model, row.committed, GAMMA)


@pytest.mark.vllm
def test_the_plug_in_beside_our_engine_and_vllm(tmp_path: Path) -> None:
    values = {
        "model": os.environ.get("SPECBENCH_GPU_MODEL"),
        "method": ("vegas", "vllm"),
        "host": ("engine", "vllm"),
        "dataset": "longbench-v2",
        "source": "sample",
        "num_prompts": 6,
        "batch_size": 4,
        "context_len": 2000,
        "max_new_tokens": 96,
        "gamma": 4,
        "kept_ratio": 0.2,
        "repeats": 1,
        "ignore_eos": True,
        "output": tmp_path / "out",
    }
    text = io.StringIO()
    console = Console(file=text, width=160)
    assert run_benchmark(build_config(values), console=console, argv=["specbench"]) == 0
    print(text.getvalue())  # noqa: T201 - shown with -s
    table = pd.read_csv(tmp_path / "out" / "throughput.csv").set_index("arm")
    assert set(table["status"]) == {"PASSED"}
    acceptance = pd.read_csv(tmp_path / "out" / "acceptance.csv").set_index("arm")
    length = acceptance["spec_decode_acceptance_length"]
    assert length["vllm-vegas"] == pytest.approx(length["vegas"], rel=0.1)
    arms = [json.loads(x) for x in (tmp_path / "out" / "arms.jsonl").read_text().splitlines()]
    hosted = next(arm for arm in arms if arm["arm"] == "vllm-vegas")
    assert "none beyond" not in hosted["graph_mode"]
