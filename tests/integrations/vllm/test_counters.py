"""What the plug-in counts, the line that it logs, and batches that pass without drafts."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specbench.integrations.vllm.counters import Counters
from specbench.integrations.vllm.hub import Hub
from specbench.integrations.vllm.memory import check_memory, drafter_bytes
from tests.support.tiny import tiny_config

CPU = torch.device("cpu")
# two verified requests, a prompt's end, one that gets no drafts
PLANNED = np.array(
    [
        # token, ranked, sampled, seen, votes, last only
        [5, 100, 3, 103, 2, 0],
        [6, 200, 1, 203, 2, 0],
        [7, 50, 1, 50, 1, 1],
        [0, 0, 0, 0, 0, 0],
    ]
)


def count(counters: Counters, rounds: int = 1) -> Counters:
    for _ in range(rounds):
        counters.begin()
        counters.end(PLANNED, kept=35)
    return counters


def test_acceptance_is_of_verifications_and_kept_of_all_that_draft() -> None:
    figures = count(Counters(CPU), 2).figures()
    assert figures["rounds"] == 2
    assert figures["verifications"] == 4
    assert figures["acceptance_length"] == 2.0
    assert figures["kept_ratio"] == pytest.approx(35 / 350)
    assert figures["graph_modes"] == {"FULL": 2, "PIECEWISE": 0, "NONE": 0}


def test_what_is_unknown_is_none() -> None:
    figures = Counters(CPU).figures()
    assert figures["acceptance_length"] is figures["kept_ratio"] is figures["drafter_share"] is None


def test_the_line_and_the_file_say_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters = count(Counters(CPU, stats=tmp_path / "stats.json"), 3)
    with caplog.at_level(logging.INFO, logger="vllm.specbench"):
        counters.report()
    assert json.loads((tmp_path / "stats.json").read_text()) == counters.figures()
    assert "acceptance length 2, kept ratio 0.1" in caplog.text
    assert "3 rounds (3 FULL, 0 PIECEWISE, 0 NONE), 0 skipped by length" in caplog.text


def test_lines_come_no_oftener_than_asked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.specbench"):
        count(Counters(CPU, log_seconds=60), 3)
        count(Counters(CPU, log_seconds=0), 3)
        assert caplog.text == ""
        count(Counters(CPU, log_seconds=1e-9))
    assert "1 rounds" in caplog.text


def test_a_rank_that_counts_the_same_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters = Counters(CPU, log_seconds=1e-9, stats=tmp_path / "stats.json")
    counters.silence()
    with caplog.at_level(logging.INFO, logger="vllm.specbench"):
        count(counters, 2)
        counters.report()
    assert caplog.text == ""
    assert not (tmp_path / "stats.json").exists()


def metadata(longest: int) -> SimpleNamespace:
    return SimpleNamespace(
        query_start_loc_cpu=torch.tensor([0, 4, 8]),
        seq_lens_cpu_upper_bound=torch.tensor([20, longest]),
        is_prefilling=None,
        block_table_tensor=torch.zeros(2, 1),
    )


def test_a_batch_without_drafts_is_counted_if_it_was_too_long_for_them() -> None:
    counters = Counters(CPU)
    hub = Hub(tiny_config(), 2, 3, 64, torch.float32, CPU, counters, kernels=False)
    hub.begin(metadata(64))  # what vLLM captures with
    hub.begin(metadata(40))
    assert hub.take() is not None
    count(counters)
    assert hub.take() is None
    hub.begin(metadata(62))
    hub.begin(metadata(63))
    hub.begin(metadata(60))
    assert counters.skipped == 2
    hub.begin(metadata(61))
    assert counters.skipped == 2


def test_the_drafters_memory_is_what_it_allocates_and_grows_with_the_batch() -> None:
    shape, rows, gamma = tiny_config(), 8, 8
    hub = Hub(shape, rows, gamma, 64, torch.float32, CPU, Counters(CPU), kernels=False)
    parts = drafter_bytes(shape, rows, gamma, 64, 10, torch.float32)
    named = parts["the verification's queries"] + parts["the drafts' keys and values"]
    assert named == hub.nbytes
    twice = drafter_bytes(shape, 2 * rows, gamma, 64, 10, torch.float32)
    assert check_memory(parts, CPU) < check_memory(twice, CPU)
