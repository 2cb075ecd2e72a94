"""One part of a training: from the last checkpoint to the end, or to the end of its minutes."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from specbench.errors import DataError
from specbench.files import write_atomically
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.config import DraftConfig
from specbench.methods.longspec.weights import save
from specbench.train.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from specbench.train.curves import EVALUATION, LOSS, Curve, draw_curves
from specbench.train.evaluate import Score, evaluate, places_of
from specbench.train.interrupt import Interrupt
from specbench.train.trainer import StepLog, Trainer

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.train.prepare import Job

INTERRUPTED = 130
# an evaluation and a checkpoint may follow the last step that fits
_RESERVE_SECONDS = 2.0


class Session:
    """Trains, evaluates, writes; everything that the next part needs is in the folder.

    Parameters
    ----------
    job : Job
    console : Console
    began : float
        ``time.monotonic()`` when this part began, loading included.
    """

    def __init__(self, job: "Job", console: "Console", began: float) -> None:
        self.job, self.console, self.began = job, console, began
        config, target = job.config, job.target.model
        shape = DraftConfig.of(job.target.config, config.window, config.depth)
        self.block = DraftBlock(shape, torch.float32, str(config.device))
        self.block.randomise(config.seed)
        self.trainer = Trainer(config, target, self.block, job.corpus, job.context)
        self.state: dict[str, Any] = {"step": 0, "tokens": 0, "seconds": 0.0}
        if config.resume and (job.folder / CHECKPOINT).is_file():
            self.state = load_checkpoint(job.folder, self.block, self.trainer.optimizer)
            if self.state["data"] != job.corpus.record["sha256"]:
                raise DataError(
                    f"the text is not that of the training in {job.folder}: its tokens differ"
                )
        self.state["data"] = job.corpus.record["sha256"]
        self.losses = Curve(job.folder / "loss.csv", LOSS, self.state["step"])
        self.scores = Curve(job.folder / "eval.csv", EVALUATION, self.state["step"])
        longest = min(config.long_len, job.context)
        self.places = places_of(
            job.corpus, config.short_len, longest, job.context, config.eval_tokens
        )
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def run(self) -> int:
        """Train to the end, or as long as there is time; returns the exit status.

        Ctrl-C ends it after a step, with a checkpoint.
        """
        steps = self.trainer.steps
        task = self.progress.add_task(
            "training", total=steps, completed=self.state["step"], shown=""
        )
        longest = 0.0
        with Interrupt() as interrupt:
            while self.state["step"] < steps and self._has_time(longest) and not interrupt.asked:
                longest = max(longest, self._step(task))
        self._save()
        self._finish()
        return INTERRUPTED if interrupt.asked else 0

    def _step(self, task: TaskID) -> float:
        """One step with what is due after it; returns its seconds."""
        config, steps = self.job.config, self.trainer.steps
        start = time.monotonic()
        log = self.trainer.step(self.state["step"])
        seconds = time.monotonic() - start
        self._note(log, seconds)
        step = self.state["step"]
        self.progress.update(
            task,
            completed=step,
            description=f"{log.stage} stage",
            shown=f"loss {log.loss:.3f} · {log.tokens / seconds:,.0f} tokens/s",
        )
        if step % config.eval_every == 0 or step == steps:
            self._evaluate()
        if step % config.save_every == 0 and step < steps:
            self._save()
        return time.monotonic() - start

    def _has_time(self, longest: float) -> bool:
        limit = self.job.config.max_minutes
        spent = time.monotonic() - self.began
        return limit is None or spent + longest + _RESERVE_SECONDS < limit * 60

    def _note(self, log: StepLog, seconds: float) -> None:
        state = self.state
        state["tokens"] += log.tokens
        state["seconds"] += seconds
        self.losses.append(
            state["step"],
            log.stage,
            state["tokens"],
            log.lr,
            log.lag,
            log.loss,
            log.accuracy,
            log.grad_norm,
            state["seconds"],
        )
        state["step"] += 1

    def _evaluate(self) -> None:
        config, found = self.job.config, dict[str, list[Score]]()
        for score in evaluate(
            self.job.target.model, self.block, self.places, config.depth, config.micro_tokens
        ):
            # the step whose weights these are, as in loss.csv
            self.scores.append(
                self.state["step"] - 1, score.place, score.lag, score.loss, score.accuracy
            )
            found.setdefault(score.place, []).append(score)
        words = [
            f"{place} {sum(s.loss for s in scores) / len(scores):.3f} (AL ≈ {chained(scores):.2f})"
            for place, scores in found.items()
        ]
        if words:
            self.console.print(
                f"step {self.state['step']}: held-out loss {', '.join(words)}",
                markup=False,
                highlight=False,
            )

    def _save(self) -> None:
        save_checkpoint(self.job.folder, self.block, self.trainer.optimizer, self.state)

    def _finish(self) -> None:
        job, state = self.job, self.state
        record = {**job.record, "trained": {k: state[k] for k in ("step", "tokens", "seconds")}}
        save(self.block, job.folder / "draft", record=record)
        title = f"LongSpec draft for {job.target.config.name}"
        write_atomically(job.folder / "loss.png", draw_curves(job.folder, title))
        done = state["step"] == self.trainer.steps
        self.console.print(
            f"{state['step']:,} of {self.trainer.steps:,} steps, {state['tokens']:,} tokens, "
            f"{state['seconds'] / 60:.1f} minutes of training; the draft is in "
            f"{job.folder / 'draft'}" + ("" if done else "; --resume continues"),
            markup=False,
            highlight=False,
        )


def chained(scores: list[Score]) -> float:
    """Acceptance length of a chain if accepting a draft were as likely as hitting the text's token.

    An estimate for the eye, from accuracies at the lags 1, 2, …; `specbench run` measures it.
    """
    length, product = 1.0, 1.0
    for score in sorted(scores, key=lambda score: score.lag):
        product *= score.accuracy
        length += product
    return length
