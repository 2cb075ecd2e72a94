"""One optimizer step of a draft, as a function of its number and of what was learnt before."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.model import Transformer
from specbench.errors import NumericalError
from specbench.methods.longspec.block import DraftBlock
from specbench.train.config import TrainConfig
from specbench.train.corpus import Corpus, cut
from specbench.train.objective import draft_loss, offset_positions, watch
from specbench.train.stages import Stage, noise_of, rows_of, stage_of, stages_of


@dataclass(frozen=True)
class StepLog:
    """What a step says of itself.

    Attributes
    ----------
    stage : str
    tokens : int
        Trained on in this step.
    lr : float
    lag : float
        Mean over its forwards.
    loss, accuracy, grad_norm : float
        The norm is that before clipping.
    """

    stage: str
    tokens: int
    lr: float
    lag: float
    loss: float
    accuracy: float
    grad_norm: float


class Trainer:
    """A frozen target, a draft in float32, and AdamW.

    Everything random depends on the seed and the step's number alone, so that a training that goes
    on from a checkpoint takes the same steps.

    Parameters
    ----------
    config : TrainConfig
    target : Transformer
    block : DraftBlock
        Its weights are trained in place.
    corpus : Corpus
    context : int
        Positions of the target, over which offsets are spread.
    """

    def __init__(
        self,
        config: TrainConfig,
        target: Transformer,
        block: DraftBlock,
        corpus: Corpus,
        context: int,
    ) -> None:
        self.config, self.target, self.block, self.corpus = config, target, block, corpus
        self.context = context
        self.stages = stages_of(config)
        self.steps = sum(stage.steps for stage in self.stages)
        # refused before the first step, whatever stage it concerns
        self.rows = {stage.name: corpus.rows(stage.length) for stage in self.stages}
        block.requires_grad_(True)
        matrices = [weight for weight in block.parameters() if weight.dim() > 1]
        vectors = [weight for weight in block.parameters() if weight.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
            fused=block.o.device.type == "cuda",
        )

    def step(self, number: int) -> StepLog:
        """Take step `number`.

        Raises
        ------
        NumericalError
            The loss or the gradient is not finite; the weights are those of the step before.
        """
        config, stage = self.config, stage_of(self.stages, number)
        rate = stage.rate(number, config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        lags, sums = [], torch.zeros(2, device=self.block.o.device)
        for lag, loss, accuracy in self._forwards(stage, number):
            loss.backward()
            lags.append(lag)
            sums += torch.stack([loss.detach(), accuracy])
        norm = torch.nn.utils.clip_grad_norm_(self.block.parameters(), config.clip)
        mean_loss, accuracy_mean, grad_norm = torch.cat([sums, norm[None]]).tolist()
        if not torch.isfinite(torch.tensor([mean_loss, grad_norm])).all():
            raise NumericalError(
                f"step {number}: the loss is {mean_loss} and the gradient's norm {grad_norm}; "
                f"lower --{stage.name}-lr ({stage.lr:g}), or use --dtype float32"
            )
        self.optimizer.step()
        return StepLog(
            stage.name,
            stage.batch * stage.length,
            rate,
            sum(lags) / len(lags),
            mean_loss,
            accuracy_mean,
            grad_norm,
        )

    def _forwards(self, stage: Stage, number: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Lag, loss and accuracy of each forward of a step, as shares of the step's mean."""
        config, device = self.config, self.block.o.device
        chosen = rows_of(stage, number, self.rows[stage.name], config.seed)
        size = max(1, config.micro_tokens // stage.length)
        for micro, begin in enumerate(range(0, len(chosen), size)):
            part = chosen[begin : begin + size]
            arrays = cut(self.corpus.train, self.corpus.separator, stage.length, part)
            tokens, labels = (torch.from_numpy(array).to(device) for array in arrays)
            noise = noise_of(config, number, micro, len(part), stage.length, self.context)
            offsets = torch.from_numpy(noise.offsets).to(device)
            seen = watch(self.target, tokens, offset_positions(offsets, stage.length))
            loss, accuracy = draft_loss(self.target, self.block, tokens, labels, seen, noise.lag)
            share = len(part) / len(chosen)
            yield noise.lag, loss * share, accuracy * share
