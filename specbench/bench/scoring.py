"""Task scores of the outputs on record, by each dataset's own measure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.datasets.base import Dataset, Item
from specbench.results.records import ScoreRecord
from specbench.results.store import RunStore, record_key

if TYPE_CHECKING:
    from specbench.bench.workload import Workload

_THOUGHT_ENDS = "</think>"


@dataclass(frozen=True)
class Scorer:
    """Scores outputs of one dataset.

    Attributes
    ----------
    dataset : Dataset
    items : list of Item
        By the prompt's place in the list.
    tokenizer : transformers tokenizer
    """

    dataset: Dataset
    items: list[Item]
    tokenizer: Any

    def __call__(self, index: int, output_ids: list[int]) -> float | None:
        """The score of one output, 0 to 1; what the model thought before its answer is left out."""
        text = self.tokenizer.decode(output_ids, skip_special_tokens=True)
        return self.dataset.score(self.items[index], text.rpartition(_THOUGHT_ENDS)[2])


def score_outputs(workloads: "Iterable[Workload]", store: RunStore) -> None:
    """Append the scores that are not on record yet; equal outputs are scored once."""
    scorers = {w.info.name: w.scorer for w in workloads if w.scorer is not None}
    known = {record_key(record) for record in store.load_scores()}
    scores: dict[tuple[str, int, tuple[int, ...]], float | None] = {}
    for request in store.load_requests():
        key = (request.arm, request.dataset, request.repeat, request.index)
        scorer = scorers.get(request.dataset)
        if scorer is None or key in known:
            continue
        output = (request.dataset, request.index, tuple(request.output_ids))
        if output not in scores:
            scores[output] = scorer(request.index, request.output_ids)
        score = scores[output]
        if score is not None:
            store.append_score(
                ScoreRecord(
                    arm=request.arm,
                    dataset=request.dataset,
                    repeat=request.repeat,
                    index=request.index,
                    score=score,
                )
            )
