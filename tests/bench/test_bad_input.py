"""What bad input gets: one clear message, exit status 2 or 3, and nothing written or lost."""

from pathlib import Path

import pytest

from specbench.cli import main
from tests.support.folder import write_model, write_prompts

MODEL = ("--model", "model")
PROMPTS = ("--dataset", "file:prompts.jsonl")
SHORT = ("--max-new-tokens", "4", "--context-len", "300")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and prompt files, good and bad."""
    root = tmp_path_factory.mktemp("inputs")
    write_model(root / "model", seed=3)
    write_model(root / "plain", seed=3, template=False)
    write_prompts(root / "prompts.jsonl", [40, 7])
    (root / "empty.jsonl").write_text("")
    (root / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (root / "unknown.jsonl").write_text('{"text": "a"}\n')
    (root / "wrong.yaml").write_text("gama: 3\n")
    problem = "water " * 400
    (root / "aime.jsonl").write_text(f'{{"id": "a", "problem": "{problem}", "answer": 1}}')
    (root / "busy").mkdir()
    (root / "busy" / "notes.txt").write_text("mine")
    return root


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((*MODEL, *PROMPTS, "--method", "vegs"), 2, "unknown method 'vegs'. Did you mean 'vegas'?"),
        ((*MODEL, "--dataset", "longbench"), 2, "Did you mean 'longbench-v2'?"),
        (("--model", "smollm", *PROMPTS), 2, "Did you mean 'smollm2-135m-instruct'?"),
        (("--model", "dummy:qwen3-8", *PROMPTS), 2, "Did you mean 'dummy:qwen3-8b'?"),
        (("--model", "Qwen/Qwen3-9B", *PROMPTS), 3, "cannot get Qwen/Qwen3-9B from the hub"),
        ((*MODEL, "--dataset", "aime25", "--source", "hub"), 3, "opencompass/AIME2025"),
        ((*MODEL, "--dataset", "file:absent.jsonl"), 2, "no file or folder 'absent.jsonl'"),
        ((*MODEL, "--dataset", "file:empty.jsonl"), 3, "empty.jsonl holds no rows"),
        ((*MODEL, "--dataset", "file:broken.jsonl"), 3, "broken.jsonl line 2 is not valid JSON"),
        ((*MODEL, "--dataset", "file:unknown.jsonl"), 3, "unknown.jsonl line 1"),
        (
            (*MODEL, "--dataset", "aime25", "--source", "aime.jsonl", *SHORT),
            3,
            "no prompt is left of 1 items (too long: 1",
        ),
        ((*MODEL, *PROMPTS, "--gamma", "-1"), 2, "--gamma '-1': input should be greater"),
        ((*MODEL, *PROMPTS, "--kept-ratio", "0"), 2, "--kept-ratio '0'"),
        ((*MODEL, *PROMPTS, "--kept-ratio", "1.5"), 2, "--kept-ratio '1.5'"),
        ((*MODEL, *PROMPTS, "--context-len", "600"), 2, "model holds 512 tokens, but 632"),
        ((*MODEL, *PROMPTS, "--output", "busy"), 2, "busy already holds other files"),
        ((*MODEL, *PROMPTS, "--output", "prompts.jsonl"), 2, "prompts.jsonl is a file"),
        ((*MODEL, *PROMPTS, "--resume", "--output", "absent"), 2, "absent holds no run"),
        ((*MODEL, *PROMPTS, "--resume"), 2, "--resume needs --output"),
        ((*MODEL, *PROMPTS, "--config", "wrong.yaml"), 2, "Did you mean 'gamma'?"),
        ((*MODEL, *PROMPTS, "--config", "absent.yaml"), 2, "absent.yaml"),
        (("--model", "plain", *PROMPTS), 2, "--no-chat-template"),
        (
            (*MODEL, *PROMPTS, "--method", "autoregressive", "--gamma", "4"),
            2,
            "--gamma is no setting of autoregressive",
        ),
        ((*MODEL, *PROMPTS, "--sinks", "40", "--window", "40"), 2, "exceed min_tokens"),
        ((*MODEL, *PROMPTS, "--bogus"), 2, "No such option: --bogus"),
    ],
)
def test_bad_input(
    folder: Path,
    arguments: tuple[str, ...],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert ended.value.code == status
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("specbench: error: ")
    assert "Traceback" not in said
    assert said.count("\n") == 1
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_debug_shows_the_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(["--debug", "run", *MODEL, *PROMPTS, "--context-len", "600"])
    assert ended.value.code == 2
    assert "Traceback" in capsys.readouterr().err
