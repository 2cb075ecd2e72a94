"""A tokenizer file small enough to write in a test."""

import json
from pathlib import Path


def write_tokenizer(folder: Path, words: tuple[str, ...] = ("hello", "world")) -> None:
    """A word-level tokenizer.json in `folder`."""
    vocabulary = {word: index for index, word in enumerate(("[UNK]", *words))}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    generic = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(generic))
