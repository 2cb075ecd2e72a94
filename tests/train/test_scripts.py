"""Text from a machine's packages, two trainings compared, and recipes that can be read."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.config_build import build
from specbench.train.config import TrainConfig
from tests.engine.hf_models import save as hf_save
from tests.engine.hf_models import tiny_hf
from tests.engine.tokenizer_file import write_tokenizer

ROOT = Path(specbench.__file__).parents[1]


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / name))


def rows(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


def test_packages_train_or_evaluate_as_a_whole(tmp_path: Path) -> None:
    code = "x = 1\n" * 60
    root = tmp_path / "packages"
    for name in ("alpha", "beta"):
        (root / name / "__pycache__").mkdir(parents=True)
        for part in "ab":
            (root / name / f"{part}.py").write_text(f"# {name} {part}\n{code}")
        (root / name / "copy.py").write_text(f"# alpha a\n{code}")
        (root / name / "__pycache__" / "c.py").write_text(f"# cached {name}\n{code}")
        (root / name / "data.py").write_text("x" * 5000)
        (root / name / "blob.txt").write_bytes(b"\xff" * 300)
        (root / name / "short.py").write_text("x")
    (root / "alpha-1.dist-info").mkdir()
    (root / "alpha-1.dist-info" / "README.md").write_text(f"info\n{code}")
    (root / "single.py").write_text(f"# single\n{code}")
    out = tmp_path / "out"
    script("code_text.py")["main"](
        [str(out), "--root", str(root), "--hold-out", "beta", "--held-out-share", "1000000007"]
    )
    train, held = (rows(out / side / "code.jsonl") for side in ("train", "eval"))
    assert len(train) == 2
    assert len(held) == 1
    assert train[0].startswith("# alpha/a.py\n# alpha a\n")
    assert "# alpha/b.py\n# alpha b\n" in train[0]
    assert train[1].startswith("# single.py\n")
    assert held[0].count("\n# beta ") == 2
    assert "alpha" not in held[0], "the copy of a file that trains does not evaluate"
    assert not any(word in text for text in train + held for word in ("cached", "xxx", "info"))


def test_prompts_are_the_beginnings_of_long_held_out_documents(tmp_path: Path) -> None:
    root = tmp_path / "packages"
    for name in ("alpha", "beta"):
        (root / name).mkdir(parents=True)
        for part in range(4):
            (root / name / f"{part}.py").write_text(f"# {name} {part}\n" + "x = 1\n" * 20_000)
    argv = [str(tmp_path / "out"), "--root", str(root), "--hold-out", "beta", "--prompts", "3"]
    found = script("code_text.py")
    found["main"]([*argv, "--held-out-share", "1000000007"])
    lines = (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert len(prompts) == 1
    assert prompts[0].startswith("# beta/0.py\n# beta 0\n")
    assert len(prompts[0]) == found["PROMPT"]


def test_one_side_without_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    with pytest.raises(SystemExit, match="one side has no text"):
        script("code_text.py")["main"](
            [str(tmp_path / "out"), "--root", str(tmp_path / "packages")]
        )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([(10, 3.0), (20, 2.0), (30, 1.0)], [(10, 3.5), (20, 2.5), (30, 2.0)], 1.5),
        ([(10, 3.0), (20, 1.0)], [(10, 3.5), (30, 2.0)], 2.0),
        ([(10, 1.0)], [(10, 3.5), (30, 2.0)], 3.0),
        ([(10, 3.0), (20, 2.5)], [(10, 3.5), (30, 2.0)], None),
        ([(10, 3.0), (20, 2.0)], [(10, 2.0), (30, 2.5)], 0.5),
    ],
)
def test_the_ratio_of_steps(
    first: list[tuple[int, float]], second: list[tuple[int, float]], expected: float | None
) -> None:
    assert script("longspec_ablation.py")["steps_ratio"](first, second) == expected


def test_two_trainings_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, gain in (("with", 1.0), ("without", 0.5)):
        (tmp_path / name).mkdir()
        lines = ["step,place,lag,loss,accuracy"]
        for step in (9, 19, 29):
            lines += [f"{step},long,{lag},{9 + lag - gain * step / 10},0" for lag in (1, 2)]
        (tmp_path / name / "eval.csv").write_text("\n".join(lines) + "\n")
    folders = [str(tmp_path / name) for name in ("with", "without")]
    main = script("longspec_ablation.py")["main"]
    main([*folders, "--output", str(tmp_path / "out")])
    assert "with reaches the last loss of without at the place long in: 1.94 times fewer" in (
        capsys.readouterr().out
    )
    assert (tmp_path / "out" / "ablation.png").read_bytes()[:4] == b"\x89PNG"
    assert len((tmp_path / "out" / "ablation.csv").read_text().splitlines()) == 7
    # since step 10 the second fell by 1, and the first, which began 0.45 lower, was there in 5.5
    main([*folders, "--after", "10", "--output", str(tmp_path / "out")])
    assert "long in: 3.64 times fewer" in capsys.readouterr().out
    assert "with,long,0," in (tmp_path / "out" / "ablation.csv").read_text()
    ratio = (tmp_path / "out" / "ratio.csv").read_text()
    assert ratio.endswith("steps_ratio\nwith,without,long,10,3.636\n")
    with pytest.raises(SystemExit, match="no evaluation at the place 'far'"):
        main([*folders, "--place", "far", "--output", str(tmp_path / "out")])


def test_a_target_writes_text_in_parts(tmp_path: Path) -> None:
    model = hf_save(tiny_hf("llama"), tmp_path / "target")
    write_tokenizer(model, ("red", "green", "blue"))
    documents, output = tmp_path / "code.jsonl", tmp_path / "own.jsonl"
    texts = ["red green blue " * 5, "blue " * 9, "green " * 7]
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sizes = ("--prompt-tokens", "3", "--new-tokens", "4", "--batch-size", "2")
    argv = [str(model), str(documents), str(output), *sizes]
    argv += ["--device", "cpu", "--dtype", "float32"]
    main = script("target_text.py")["main"]
    main(argv)
    first = output.read_text()
    rows = [json.loads(line) for line in first.splitlines()]
    assert [row["number"] for row in rows] == [0, 1, 2]
    assert rows[1]["text"].startswith("blue")
    # the last row was cut off: it is written again, and nothing else
    output.write_text(first[:-5])
    main(argv)
    assert output.read_text() == first


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes" / "longspec").glob("*.yaml")))
def test_recipes_are_valid(recipe: Path) -> None:
    config = build(TrainConfig, {}, recipe)
    assert config.model is not None
    assert config.max_minutes is not None
    assert config.max_minutes <= 8
