"""Outputs on record are scored once, and a resumed run scores only what is missing."""

from pathlib import Path
from typing import Any

from specbench.bench.scoring import Scorer, score_outputs
from specbench.bench.workload import Workload
from specbench.datasets import get_dataset
from specbench.datasets.base import Item
from specbench.results.reading import read_folder
from specbench.results.store import RunStore
from tests.support.records import AR, make_request, make_run


class Words:
    """A tokenizer of four words that counts its work."""

    words = ("The correct answer is", "(A)", "(B)", "</think>")

    def __init__(self) -> None:
        self.calls = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        self.calls += 1
        return " ".join(self.words[i] for i in ids)


def workload(tokenizer: Any) -> Workload:
    info = make_run(datasets=("longbench-v2",)).datasets[0]
    items = [Item("x", {"answer": "B"}), Item("y", {"answer": "A"})]
    return Workload(info, [], [], Scorer(get_dataset("longbench-v2"), items, tokenizer))


def test_each_output_is_scored_once(tmp_path: Path) -> None:
    run = make_run(datasets=("longbench-v2",))
    outputs = {(AR, 0): [0, 2], ("vegas", 0): [0, 2], (AR, 1): [0, 1, 3, 0, 2]}
    words = Words()
    with RunStore.create(tmp_path / "run", run) as store:
        for (arm, index), ids in outputs.items():
            steps = [1] * (len(ids) - 1)
            store.append_request(
                make_request(arm, index, steps, output_ids=ids, dataset="longbench-v2")
            )
        score_outputs([workload(words)], store)
        assert words.calls == 2
        score_outputs([workload(words)], store)
        assert words.calls == 2
    scores = {(s.arm, s.index): s.score for s in read_folder(tmp_path / "run").scores}
    # prompt 1 answers B after having thought of A, which is right
    assert scores == {(AR, 0): 1.0, ("vegas", 0): 1.0, (AR, 1): 0.0}


def test_what_cannot_be_scored_leaves_no_record(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", make_run()) as store:
        store.append_request(make_request(AR, 0, [1]))
        score_outputs([Workload(make_run().datasets[0], [], [])], store)
    assert read_folder(tmp_path / "run").scores == []
    assert not (tmp_path / "run" / "scores.jsonl").exists()
