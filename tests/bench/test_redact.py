"""Secrets and foreign paths never reach a record."""

from pathlib import Path

import pytest

from specbench.bench.redact import redact, redact_argv, redact_text

CWD = Path("/home/me/project")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--hf-token", "abc", "--seed", "1"], ["--hf-token", "***", "--seed", "1"]),
        (["--token=abc"], ["--token=***"]),
        (["--api-key", "abc"], ["--api-key", "***"]),
        (["--vllm-arg", "api_key=abc"], ["--vllm-arg", "api_key=***"]),
        (["HF_TOKEN=abc"], ["HF_TOKEN=***"]),
        (["--source", "hf_abcdefghijklmnopqrstuv"], ["--source", "***"]),
        (["--storage", "postgresql://u:pw@host/db"], ["--storage", "postgresql://***@host/db"]),
        (["--hf-token", "--seed", "1"], ["--hf-token", "--seed", "1"]),
    ],
)
def test_secrets_are_hidden(argv: list[str], expected: list[str]) -> None:
    assert redact_argv(argv, CWD) == expected


def test_counts_of_tokens_are_no_secrets() -> None:
    argv = ["--max-new-tokens", "128", "--min-tokens=16"]
    assert redact_argv(argv, CWD) == argv
    assert redact({"eos_token": "</s>", "min_tokens": 3}, CWD) == {
        "eos_token": "</s>",
        "min_tokens": 3,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/opt/models/a.gguf", "a.gguf"),
        ("/home/me/project/runs/a", "runs/a"),
        ("/home/me/project-two/a", "a"),
        ("../shared/data/x.jsonl", "x.jsonl"),
        ("runs/../../secret/x.jsonl", "x.jsonl"),
        ("runs/a", "runs/a"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("file:/data/x.jsonl", "file:x.jsonl"),
        ("dummy:/data/config", "dummy:config"),
        ("dummy:qwen3-8b", "dummy:qwen3-8b"),
        ("--output=/data/runs/a", "--output=a"),
        ("--dataset=aime25,file:/data/x.jsonl", "--dataset=aime25,file:x.jsonl"),
        ("sqlite:////data/study.db", "sqlite://study.db"),
        ("yarn:4", "yarn:4"),
        ("0.07", "0.07"),
        ("", ""),
    ],
)
def test_foreign_paths_lose_their_folders(text: str, expected: str) -> None:
    assert redact_text(text, CWD) == expected


def test_the_home_folder_is_foreign() -> None:
    assert redact_text("~/models/m.gguf", CWD) == "m.gguf"


def test_nested_values_are_redacted() -> None:
    value = {
        "model": "/models/m.gguf",
        "output": Path("/tmp/out"),
        "dataset": ("aime25", "file:/data/x.jsonl"),
        "hf_token": "abc",
        "api_key": None,
        "gamma": 6,
    }
    assert redact(value, CWD) == {
        "model": "m.gguf",
        "output": "out",
        "dataset": ["aime25", "file:x.jsonl"],
        "hf_token": "***",
        "api_key": None,
        "gamma": 6,
    }
