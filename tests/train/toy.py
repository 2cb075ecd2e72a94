"""A tiny target, and text that it would write itself."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.config import DraftConfig
from specbench.train.config import TrainConfig
from specbench.train.corpus import Corpus
from specbench.train.trainer import Trainer
from tests.support.tiny import autoregressive, decode, prompts, tiny_model

CONTEXT = 200
# a prompt, what follows it, and the token after that: rows begin where requests do
ROW = 6 + 48 + 1
SETTINGS = {
    "short_len": ROW,
    "short_batch": 8,
    "short_steps": 300,
    "short_lr": 1e-2,
    "long_len": 96,
    "long_batch": 4,
    "long_steps": 0,
    "depth": 3,
    "window": 12,
    "device": "cpu",
    "dtype": "float32",
}


@dataclass
class Toy:
    """What a trainer takes."""

    target: Transformer
    token_ids: list[list[int]]
    corpus: Corpus


def toy(seed: int = 0) -> Toy:
    """A random target and its own greedy continuations of random prompts, token 0 between them."""
    target = tiny_model(seed, torch.float32, CONTEXT)
    token_ids = prompts(seed, [6] * 24)
    engine = Engine(target, rows=8, max_len=64)
    written = decode(engine, autoregressive(), token_ids, 48)
    lines = [[*ids, *written[i].output_ids, 0] for i, ids in enumerate(token_ids)]
    train = np.concatenate(lines).astype(np.uint32)
    return Toy(target, token_ids, Corpus(train, train[:200], 0, {"sha256": {}}))


def trainer(found: Toy, **changes: object) -> Trainer:
    """A trainer from the first step on."""
    config = TrainConfig(**(SETTINGS | changes))  # type: ignore[arg-type]
    shape = DraftConfig.of(found.target.config, config.window, config.depth)
    block = DraftBlock(shape, torch.float32, "cpu")
    block.randomise(config.seed)
    return Trainer(config, found.target, block, found.corpus, CONTEXT)


def text_folder(folder: Path) -> Path:
    """Files of words that a model of `write_tokenizer` knows."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(6):
        words = generator.choice(["red", "green", "blue"], 300)
        (folder / f"{number}.txt").write_text(" ".join(words))
    return folder
