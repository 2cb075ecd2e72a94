"""Everything before the first step: choices, folder, text, target."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.redact import redact
from specbench.errors import DataError, UsageError
from specbench.files import write_atomically
from specbench.train.config import FREE, TrainConfig

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

    from specbench.engine.loader import LoadedModel
    from specbench.engine.model_config import ModelConfig
    from specbench.train.corpus import Corpus

RECORD = "train.json"


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and where it is written.

    Attributes
    ----------
    config : TrainConfig
        With everything chosen.
    folder : Path
    target : LoadedModel
    corpus : Corpus
    context : int
        Positions of the target.
    record : dict
        Configuration, environment, target and data.
    """

    config: TrainConfig
    folder: Path
    target: "LoadedModel"
    corpus: "Corpus"
    context: int
    record: dict[str, Any]


def prepare(config: TrainConfig, console: "Console", argv: Sequence[str]) -> Job | None:
    """Choose what was left open, encode the text and load the target; None where that was all.

    Raises
    ------
    SpecbenchError
        As `run_training`.
    """
    import torch

    from specbench.bench.environment import describe
    from specbench.engine.loader import load_model, read_model_config
    from specbench.engine.tokenizer import load_tokenizer

    if not config.data:
        raise UsageError("--data is missing: a folder or file of text or JSONL, or hub:OWNER/NAME")
    config, choices = _choose(config)
    for line in choices:
        console.print(line, markup=False, highlight=False)
    if config.threads:
        torch.set_num_threads(config.threads)
    folder = config.output or Path(f"runs/{datetime.now():%Y%m%d-%H%M%S}-train-longspec")
    record = {"config": _identity(config)}
    _check_folder(folder, config, record)
    spec, device = str(config.model), str(config.device)
    shape = read_model_config(spec, config.model_revision, config.rope_scaling)
    shape.check_context(max(config.short_len, config.long_len if config.long_steps else 0))
    tokenizer = load_tokenizer(spec, config.model_revision, config.trust_remote_code)
    if tokenizer is None:
        raise UsageError(f"--model {spec} has no tokenizer, so that no text can be encoded for it")
    corpus = _encode(config, folder, shape, tokenizer, console)
    if config.encode_only:
        return None
    target = load_model(
        spec,
        device=device,
        dtype=getattr(torch, str(config.dtype)),
        max_len=shape.context_length,
        revision=config.model_revision,
        rope_scaling=config.rope_scaling,
        trust_remote_code=config.trust_remote_code,
    )
    record |= {
        "target": target.provenance,
        "data": redact(corpus.record),
        "environment": describe(argv),
    }
    write_atomically(folder / RECORD, json.dumps(record, indent=2).encode())
    return Job(config, folder, target, corpus, shape.context_length, record)


def _choose(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    import torch

    from specbench.engine.catalog import default_model

    chosen: dict[str, str] = {}
    cuda = torch.cuda.is_available()
    if config.device is None:
        chosen["device"] = "cuda" if cuda else "cpu"
    elif config.device == "cuda" and not cuda:
        raise UsageError("--device cuda: CUDA is not available; 'specbench doctor' says why")
    device = config.device or chosen["device"]
    if config.model is None:
        chosen["model"] = default_model(device)
    if config.dtype is None:
        chosen["dtype"] = "bfloat16" if device == "cuda" else "float32"
    lines = [f"{name} {value}: the default here" for name, value in chosen.items()]
    return config.model_copy(update=chosen), lines


def _identity(config: TrainConfig) -> dict[str, Any]:
    """The options that the curve depends on."""
    values = config.model_dump(mode="json", exclude=set(FREE))
    return {name: redact(value) for name, value in values.items()}


def _check_folder(folder: Path, config: TrainConfig, record: dict[str, Any]) -> None:
    """Refuse to overwrite a training, or to go on with another one."""
    from specbench.engine.safetensors_folder import read_json
    from specbench.train.checkpoint import CHECKPOINT

    present = (folder / CHECKPOINT).is_file()
    if present and not config.resume:
        raise UsageError(
            f"{folder} holds a training: --resume continues it; another one needs another --output"
        )
    if config.resume and config.output is None:
        raise UsageError("--resume needs --output, the folder of the training to continue")
    if not present or not (folder / RECORD).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        return
    before = read_json(folder / RECORD).get("config", {})
    for name, value in record["config"].items():
        if before.get(name) != value:
            raise UsageError(
                f"--resume: the training in {folder} began with --{name.replace('_', '-')} "
                f"{before.get(name)!r}, not {value!r}; give the same options, or begin another one "
                "in another --output"
            )


def _encode(
    config: TrainConfig,
    folder: Path,
    shape: "ModelConfig",
    tokenizer: "PreTrainedTokenizerBase",
    console: "Console",
) -> "Corpus":
    import hashlib

    from specbench.train.text import documents
    from specbench.train.tokens import encode

    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    separator = _separator(shape, tokenizer)
    skipped: list[str] = []

    def texts(specs: tuple[str, ...]) -> Any:
        return (text for spec in specs for text in documents(spec, config.text_field, skipped))

    with console.status("encoding text") as status:
        done = 0

        def encoded(tokens: int) -> None:
            nonlocal done
            done += tokens
            status.update(f"encoding text: {done:,} tokens")

        corpus = encode(
            texts(config.data),
            None if config.eval_data is None else texts(config.eval_data),
            tokenizer,
            separator,
            shape.vocab_size,
            folder / "tokens",
            {
                "data": redact(list(config.data)),
                "eval_data": redact(list(config.eval_data or ())),
                "text_field": config.text_field,
                "vocabulary": hashlib.sha256(vocabulary).hexdigest(),
                "separator": separator,
            },
            encoded,
        )
    if skipped:
        shown = ", ".join(skipped[:3]) + (", …" if len(skipped) > 3 else "")
        line = f"{len(skipped)} files are no UTF-8 text and were left out: {shown}"
        console.print(line, markup=False, highlight=False)
    sizes = corpus.record["tokens"]
    console.print(
        f"{sizes['train']:,} tokens to train on, {sizes['evaluation']:,} held out",
        highlight=False,
    )
    return corpus


def _separator(shape: "ModelConfig", tokenizer: "PreTrainedTokenizerBase") -> int:
    """What parts documents: the token that did so in pre-training where its name is known."""
    known = tokenizer.get_vocab()
    for name in ("<|endoftext|>", "<|end_of_text|>"):
        if name in known:
            return int(known[name])
    found = tokenizer.eos_token_id
    if isinstance(found, int):
        return found
    if shape.eos_ids:
        return shape.eos_ids[0]
    raise DataError(f"{shape.name} has no token that ends a text, so none can part two")
