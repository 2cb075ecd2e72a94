"""The prompts of a run: each dataset loaded, cut to the context and described for the records."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.bench.defaults import YARN, context_limit, may_extend, new_tokens
from specbench.bench.redact import redact_message
from specbench.bench.scoring import Scorer
from specbench.bench.status import classify
from specbench.config import RunConfig
from specbench.engine.generate import Request
from specbench.errors import DataError, SpecbenchError, UsageError
from specbench.results.records import DatasetInfo, PromptInfo, RefusedDataset

if TYPE_CHECKING:
    from specbench.datasets.base import Dataset
    from specbench.datasets.prompts import PromptList
    from specbench.engine.model_config import ModelConfig


@dataclass(frozen=True)
class Workload:
    """One dataset's requests.

    Attributes
    ----------
    info : DatasetInfo
        For `run.json`.
    requests : list of Request
    notes : list of str
        What was chosen or should be known.
    scorer : Scorer or None
        Scores the outputs, where the dataset can.
    """

    info: DatasetInfo
    requests: list[Request]
    notes: list[str]
    scorer: Scorer | None = None

    @property
    def max_len(self) -> int:
        """Prompt and new tokens of the longest request."""
        return max(len(r.token_ids) + r.max_new_tokens for r in self.requests)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know of the prompts."""
        count = len(self.requests)
        repeated = count - len({tuple(request.token_ids) for request in self.requests})
        if not repeated:
            return []
        return [
            f"{self.info.name}: {repeated} of {count} prompts repeat another one: they tell "
            "nothing new, so that intervals are too narrow"
        ]


def build_workloads(
    config: RunConfig, model: "ModelConfig", tokenizer: Any
) -> tuple[list[Workload], list[RefusedDataset]]:
    """The requests of every dataset that `config` names, and those that cannot be run.

    Parameters
    ----------
    config : RunConfig
        After `resolve_machine`.
    model : ModelConfig
    tokenizer : transformers tokenizer or None
        Without one (random weights) the prompts are random token ids.

    Raises
    ------
    UsageError, DataError
        An unknown dataset; or, of the only or of every dataset, data that cannot be read or a
        context beyond the model's.
    """
    from specbench.datasets import DATASETS, get_dataset

    names = DATASETS.names() if "all" in config.dataset else config.dataset
    datasets = [get_dataset(name) for name in names]
    known = [dataset.name for dataset in datasets]
    double = next((name for name in known if known.count(name) > 1), None)
    if double:
        raise UsageError(f"two datasets would be called {double!r} in the records: rename a file")
    workloads: list[Workload] = []
    refused: list[RefusedDataset] = []
    failures: list[SpecbenchError] = []
    for dataset in datasets:
        try:
            limit = _limits(config, model, dataset)
            if tokenizer is None and not dataset.name.startswith("file:"):
                workload = _random_ids(config, model, dataset.name, *limit)
            else:
                workload = _build(config, model, dataset, tokenizer, *limit)
            fit_context(config, model, [workload])
        except SpecbenchError as error:  # of many datasets, one that fails does not end the others
            status, message = classify(error)
            message = redact_message(message)
            refused.append(RefusedDataset(name=dataset.name, status=status, message=message))
            failures.append(error)
        else:
            workloads.append(workload)
    if not workloads:
        raise failures[0]
    return workloads, refused


def fit_context(
    config: RunConfig, model: "ModelConfig", workloads: list[Workload]
) -> tuple[RunConfig, "ModelConfig", str | None]:
    """Check the longest request against the model, and extend a model that may be extended.

    Returns
    -------
    config, model
        With YaRN where it was chosen.
    note : str or None
        What was chosen.

    Raises
    ------
    ContextTooLongError
        The model cannot hold the longest request.
    """
    longest = max(workload.max_len for workload in workloads)
    if longest > model.context_length and may_extend(config, model):
        extended = model.with_rope_scaling(YARN)
        extended.check_context(longest)
        note = f"rope-scaling {YARN}: {longest:,} tokens exceed the {model.context_length:,} native"
        return config.model_copy(update={"rope_scaling": YARN}), extended, note
    model.check_context(longest)
    return config, model, None


def _limits(
    config: RunConfig, model: "ModelConfig", dataset: "Dataset"
) -> tuple[int, int, list[str]]:
    count, said = new_tokens(config, dataset)
    limit, note = context_limit(config, model, dataset, count)
    return limit, count, [line for line in (note, said) if line]


def _build(
    config: RunConfig,
    model: "ModelConfig",
    dataset: "Dataset",
    tokenizer: Any,
    limit: int,
    new: int,
    notes: list[str],
) -> Workload:
    from specbench.datasets.loading import load_items
    from specbench.datasets.prompts import build_prompts

    loaded = load_items(
        dataset,
        config.source,
        config.revision,
        seed=config.seed,
        num=config.num_prompts,
        target_tokens=limit,
        tokenizer=tokenizer,
    )
    prompts = build_prompts(
        dataset,
        loaded.items,
        tokenizer,
        context_len=limit,
        num_prompts=config.num_prompts,
        chat_template=config.chat_template,
        thinking=config.thinking,
        vocab_size=model.vocab_size,
    )
    if prompts.note:
        notes = [*notes, prompts.note]
    scored = dataset.score_name is not None and tokenizer is not None
    scorer = Scorer(dataset, prompts.items, tokenizer) if scored else None
    return _workload(
        dataset.name, loaded.source, loaded.revision, prompts, limit, new, notes, scorer
    )


def _workload(
    name: str,
    source: str,
    revision: str | None,
    prompts: "PromptList",
    limit: int,
    new: int,
    notes: list[str],
    scorer: Scorer | None = None,
) -> Workload:
    info = DatasetInfo(
        name=name,
        source=source,
        revision=revision,
        template_sha256=prompts.template_sha256,
        token_ids_sha256=prompts.token_ids_sha256,
        skipped=prompts.skipped,
        context_len=limit,
        max_new_tokens=new,
        thinking=prompts.thinking,
        cot=prompts.cot,
        score=scorer.dataset.score_name if scorer else None,
        prompts=[
            PromptInfo(
                index=prompt.index,
                item_id=prompt.item_id,
                tokens=len(prompt.token_ids),
                original_tokens=prompt.original_tokens,
                truncated=prompt.truncated,
            )
            for prompt in prompts.prompts
        ],
    )
    requests = [Request(p.index, p.item_id, p.token_ids, new) for p in prompts.prompts]
    for request in requests:
        if not request.token_ids:
            raise DataError(f"{name}: prompt {request.item_id!r} has no tokens")
    return Workload(info, requests, notes, scorer)


def _random_ids(
    config: RunConfig, model: "ModelConfig", name: str, limit: int, new: int, notes: list[str]
) -> Workload:
    import torch

    from specbench.datasets.prompts import Prompt, PromptList, hash_token_ids

    generator = torch.Generator().manual_seed(config.seed)
    count = config.num_prompts or 1
    rows = torch.randint(model.vocab_size, (count, limit), generator=generator).tolist()
    prompts = PromptList(
        prompts=[Prompt(i, f"random-{i}", ids, limit, False, None) for i, ids in enumerate(rows)],
        items=[],
        skipped={},
        template_sha256=None,
        token_ids_sha256=hash_token_ids(rows),
        thinking=False,
        cot=False,
        note=None,
    )
    notes = [*notes, f"{name}: random token ids, since the model comes without a tokenizer"]
    return _workload(name, "random token ids", None, prompts, limit, new, notes)
