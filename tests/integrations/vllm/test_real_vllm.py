"""The plug-in inside real vLLM on the CPU, beside specbench's own engine on the same weights."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
import torch

from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.methods.base import EngineMethod
from specbench.methods.magicdec.stream import Stream, StreamParameters
from tests.support.folder import save_model
from tests.support.tiny import autoregressive, decode, prompts, tiny_model, vegas
from tests.support.vllm import ROOT, real_python

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.is_available(), reason="CPU only; see test_gpu.py"),
]
VOCAB, MAX_LEN, NEW = 64, 256, 36
SPARSE = {"kept_ratio": 0.4, "min_tokens": 4}
# a prompt of several chunks, one shorter than a verification, one of a token
PROMPTS = prompts(7, (90, 40, 3, 1, 61, 180, 33), VOCAB)


@dataclass
class Run:
    """What one vLLM is asked, and what the engine is asked in its place."""

    settings: dict[str, Any]
    method: EngineMethod | None
    gamma: int = 3
    args: dict[str, Any] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)


def request(index: int, new: int = NEW, **more: Any) -> dict[str, Any]:
    return {"ids": PROMPTS[index], "new": new, **more}


RUNS = {
    # requests that come while others decode; one is cancelled, one repeats a prompt
    "vegas": Run(
        SPARSE,
        # vLLM's attention tells the sum of every row, and the plug-in divides by that; it saves two
        vegas(gamma=3, normaliser="exact", queries="first+last", **SPARSE),
        args={"block_size": 32, "max_num_seqs": 5},
        requests=[
            request(0),
            request(1),
            request(2, at=2),
            request(3, at=3),
            request(4, at=5, cancel=14),
            request(0, at=40),
        ],
    ),
    "vegas by other settings": Run(
        {**SPARSE, "score": "logit", "queries": "last", "share": "layer", "sinks": 1, "window": 2},
        vegas(gamma=4, score="logit", queries="last", share="layer", sinks=1, window=2, **SPARSE),
        gamma=4,
        # chunks of fewer tokens than a prompt, and KV for fewer requests than come
        args={"block_size": 32, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 9},
        requests=[request(i) for i in (0, 1, 4, 6)],
    ),
    "magicdec": Run(
        {"method": "magicdec", "budget": 24, "sinks": 2},
        Stream(StreamParameters(gamma=3, budget=24, sinks=2)),
        requests=[
            request(0),
            request(1, sampling={"temperature": 1.0, "seed": 5}),
            # ends within gamma of the maximum: nobody drafts meanwhile
            {"ids": PROMPTS[5] + PROMPTS[4], "new": 14, "at": 6},
            request(2, sampling={"temperature": 0.7, "top_k": 5, "seed": 6}),
        ],
    ),
    "refused": Run({"kept_ration": 0.1}, None, requests=[request(0)]),
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny_model(
        3,
        torch.float32,
        MAX_LEN,
        architecture="qwen3",
        qk_norm=True,
        vocab_size=VOCAB,
        hidden_size=64,
        head_dim=32,
    )


@pytest.fixture(scope="module")
def served(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM gave in each run, all in one process: to import it takes the longest."""
    folder = tmp_path_factory.mktemp("served")
    save_model(folder / "model", model, 512)
    runs = [
        {"gamma": r.gamma, "settings": r.settings, "args": r.args, "requests": r.requests}
        for r in RUNS.values()
    ]
    done = subprocess.run(
        [str(real_python()), "-m", "tests.support.vllm_plugin", str(folder / "result.json")],
        input=json.dumps({"model": str(folder / "model"), "runs": runs}),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results = json.loads((folder / "result.json").read_text())
    return dict(zip(RUNS, results, strict=True))


@pytest.fixture(scope="module")
def engine(model: Transformer) -> Engine:
    return Engine(model, rows=6, max_len=MAX_LEN, max_new_tokens=NEW + 8, ignore_eos=True)


def flat(steps: Sequence[Sequence[int]]) -> list[int]:
    return [token for step in steps for token in step]


def is_greedy(asked: dict[str, Any]) -> bool:
    return not asked.get("sampling")


@pytest.mark.parametrize("name", ["vegas", "vegas by other settings", "magicdec"])
def test_greedy_outputs_are_those_of_plain_decoding(
    name: str, served: dict[str, Any], engine: Engine
) -> None:
    asked = RUNS[name].requests
    new = [r["new"] for r in asked]
    plain = decode(engine, autoregressive(), [r["ids"] for r in asked], new)
    for index, steps in enumerate(served[name]["steps"]):
        if "cancel" in asked[index]:
            assert 0 < len(flat(steps)) < new[index]
            assert flat(steps) == plain[index].output_ids[: len(flat(steps))]
        elif is_greedy(asked[index]):
            assert flat(steps) == plain[index].output_ids
        else:
            assert len(flat(steps)) == new[index]


@pytest.mark.parametrize("name", ["vegas", "magicdec"])
def test_drafts_are_those_of_the_engine(name: str, served: dict[str, Any], engine: Engine) -> None:
    """Each verification accepts what it accepts in the engine: the drafts are the same."""
    run = RUNS[name]
    assert run.method is not None
    wanted = [i for i, asked in enumerate(run.requests) if is_greedy(asked)]
    # the engine's last drafts are fewer, so it is asked for more tokens than are compared
    new = [min(run.requests[i]["new"] + 8, MAX_LEN - len(run.requests[i]["ids"])) for i in wanted]
    ours = decode(engine, run.method, [run.requests[i]["ids"] for i in wanted], new)
    accepted: list[int] = []
    for at, index in enumerate(wanted):
        steps = served[name]["steps"][index]
        # of an end token or a limit vLLM shows less than it accepted
        counts = [len(step) for step in steps][1:-1]
        if name == "magicdec" and index == 2:
            assert set(counts) == {1}
            continue
        if name == "magicdec":
            # until the long request came, and after it was gone, drafts are as ever
            counts = counts[:5]
        assert counts == ours[at].committed[: len(counts)]
        accepted += counts
    assert {1, 2, run.gamma + 1} <= set(accepted) or name == "magicdec"


def test_a_preempted_request_goes_on_where_it_was(served: dict[str, Any]) -> None:
    result = served["vegas by other settings"]
    assert result["preempted"] > 0
    assert result["figures"]["acceptance_length"] > 1.1


def test_a_repeated_prompt_comes_from_the_prefix_cache(served: dict[str, Any]) -> None:
    result = served["vegas"]
    assert result["hits"] >= 64
    first, again = result["steps"][0], result["steps"][-1]
    assert [len(step) for step in again] == [len(step) for step in first]


def test_the_figures_add_up(served: dict[str, Any]) -> None:
    for name in ("vegas", "magicdec"):
        figures = served[name]["figures"]
        assert sum(figures["graph_modes"].values()) == figures["rounds"]
        assert figures["graph_modes"]["NONE"] == figures["rounds"]
        assert 1 <= figures["acceptance_length"] <= RUNS[name].gamma + 1
        assert 0 < figures["drafter_share"] < 1
        assert 0 < figures["kept_ratio"] < 1
    vegas_steps = served["vegas"]["steps"]
    tokens = sum(len(flat(steps)) - 1 for steps in vegas_steps)
    assert served["vegas"]["figures"]["committed"] == pytest.approx(tokens, abs=4 * 3)
    assert served["vegas"]["figures"]["rounds_skipped_by_length"] == 0
    assert served["magicdec"]["figures"]["rounds_skipped_by_length"] > 0


def test_a_wrong_setting_ends_the_start_with_its_reason(served: dict[str, Any]) -> None:
    assert "unknown setting of vegas 'kept_ration'" in served["refused"]["error"]
    assert "'kept_ratio'" in served["refused"]["error"]


def test_the_longest_request_is_what_it_claims_to_be() -> None:
    lengths = [len(r["ids"]) + r["new"] for run in RUNS.values() for r in run.requests]
    assert max(accumulate(lengths, max)) == MAX_LEN - 1
