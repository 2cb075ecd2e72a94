"""How right the outputs are: a bound on what a method may have broken, not a proof."""

from typing import ClassVar

import numpy as np

from specbench.results import stats
from specbench.results.cells import Cell, Group
from specbench.results.metrics import Metric, Row, Table


class TaskScore(Metric):
    """The mean score over prompts with its 95 % interval, looping outputs included.

    `score_prompts` is the n of the interval: repeats of a prompt are averaged first.
    `score_cut` is the share of scored outputs that ended at the length limit, which may have cut
    off the answer.
    """

    table: ClassVar[Table] = "scores"
    columns = (
        "score_name",
        "score",
        "score_low",
        "score_high",
        "score_prompts",
        "score_outputs",
        "score_cut",
    )

    def applies(self, cell: Cell) -> bool:
        return cell.measured and not cell.dummy and bool(cell.scores)

    def compute(self, cell: Cell, group: Group) -> Row:
        by_prompt: dict[int, list[float]] = {}
        for record in cell.scores:
            by_prompt.setdefault(record.index, []).append(record.score)
        values = np.array([np.mean(scores) for scores in by_prompt.values()], dtype=np.float64)
        scored = {(record.repeat, record.index) for record in cell.scores}
        cut = [r.finish_reason == "length" for r in cell.requests if (r.repeat, r.index) in scored]
        estimate = stats.mean(values)
        return {
            "score_name": cell.dataset.score,
            "score": estimate.value,
            "score_low": estimate.low,
            "score_high": estimate.high,
            "score_prompts": len(values),
            "score_outputs": len(cell.scores),
            "score_cut": sum(cut) / len(cut) if cut else None,
        }


SCORES: tuple[Metric, ...] = (TaskScore(),)
