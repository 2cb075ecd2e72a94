"""Long prompts of real text for measurements, in disjoint splits; made anew from named sources.

    python scripts/prompt_lists.py make MODEL DATA OUT       candidates of `measure` and `heldout`
    python scripts/prompt_lists.py freeze CANDIDATES RUN OUT  what the screening run RUN leaves
    python scripts/prompt_lists.py pick CANDIDATES IDS OUT    a frozen list again, by its .ids.yaml
    python scripts/prompt_lists.py long MODEL OUT            four of code, of about 100,000 tokens

MODEL gives the tokenizer, DATA is a folder with govreport.jsonl. Code comes from installed
packages, whose versions constraints.txt pins. Screening drops what the paired baseline ends early
or loops on.
"""

import hashlib
import itertools
import json
import random
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

from specbench.engine.tokenizer import load_tokenizer

SEED = 20_251_129
SHORTEST, LONGEST = 13_000, 19_500
# a package is in one split only; the third, training, has all others
PACKAGES = {
    "measure": {"networkx": "3.6.1", "pandas": "3.1.1"},
    "heldout": {"matplotlib": "3.11.2"},
}
CODE, REPORTS = {"measure": 72, "heldout": 24}, {"measure": 8, "heldout": 4}
# of the measured list
WANTED = {"code": 48, "text": 16}
DOCUMENT = (
    "Document the following Python code class by class and function by function. For each, say "
    "what it does, what its parameters are, and give a usage example.\n\n"
)
SUMMARISE = "Summarise the following report in about 800 words.\n\n"
DISCUSS = (
    "\n\nOne of these passages comes from the summary of Report 2. Discuss each of them in turn "
    "and in detail, quoting the reports, and then say which one it is.\n\n"
)


def sources(package: str, version: str) -> Iterator[tuple[str, str]]:
    """Name and text of a package's modules, in order; tests and what is generated left out."""
    found = distribution(package)
    if found.version != version:
        raise SystemExit(f"{package} is {found.version}; the lists are made of {version}")
    for file in sorted(found.files or (), key=str):
        if file.suffix == ".py" and "tests" not in file.parts and "_version" not in file.stem:
            text = Path(str(file.locate())).read_text(encoding="utf-8")
            if len(text) > 4_000:
                yield str(file), text


def code_prompts(
    split: str, length: Any, shortest: int = SHORTEST, longest: int = LONGEST
) -> Iterator[dict[str, Any]]:
    """Modules put together until they fill a prompt; each stands in one prompt only."""
    for package, version in PACKAGES[split].items():
        held: list[tuple[str, str]] = []
        for name, text in sources(package, version):
            held.append((name, text))
            tokens = sum(length(part) for _, part in held)
            if tokens > longest:
                # too long by its last module: that one begins the next prompt, or is left out
                last = held.pop()
                tokens -= length(last[1])
                if tokens >= shortest:
                    yield chat(f"code-{package}-{held[0][0]}", DOCUMENT + listing(held))
                    held = []
                held = [last] if length(last[1]) <= longest else held


def listing(modules: list[tuple[str, str]]) -> str:
    """Modules under their names."""
    return "\n\n".join(f"# {name}\n{text}" for name, text in modules)


def text_prompts(
    split: str, reports: list[dict[str, str]], length: Any
) -> Iterator[dict[str, Any]]:
    """Reports to summarise, and pairs of them with a question, of reports of this split only."""
    own = reports[: REPORTS["measure"]] if split == "measure" else reports[REPORTS["measure"] :]
    for report in own:
        yield chat(f"report-{report['id']}", SUMMARISE + fit(report["report"], length, 16_000))
    draw = random.Random(SEED)
    for first, second in itertools.permutations(own, 2):
        choices = [report["summary"][:600] for report in draw.sample(own, min(4, len(own)))]
        if second["summary"][:600] not in choices:
            choices[draw.randrange(len(choices))] = second["summary"][:600]
        bodies = (fit(report["report"], length, 8_500) for report in (first, second))
        both = "\n\n".join(f"Report {i}:\n{body}" for i, body in enumerate(bodies, 1))
        passages = "\n\n".join(f"({'ABCD'[i]}) {choice}" for i, choice in enumerate(choices))
        yield chat(f"pair-{first['id']}-{second['id']}", both + DISCUSS + passages)


def fit(text: str, length: Any, most: int) -> str:
    """The beginning of `text`, about `most` tokens long."""
    return text[: len(text) * most // max(length(text), most)]


def chat(name: str, content: str) -> dict[str, Any]:
    """A row as `--dataset file:` takes it."""
    return {"id": name, "messages": [{"role": "user", "content": content}]}


def make(model: str, data: str, out: str) -> None:
    """Write OUT/measure.jsonl and OUT/heldout.jsonl, shuffled, code and text mixed."""
    length = measure_of(model)
    lines = (Path(data) / "govreport.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    Path(out).mkdir(parents=True, exist_ok=True)
    for split, most in CODE.items():
        code = list(code_prompts(split, length))
        text = list(text_prompts(split, reports, length))
        draw = random.Random(SEED)
        draw.shuffle(code)
        draw.shuffle(text)
        rows = code[:most] + text[: most // 2]
        draw.shuffle(rows)
        write(Path(out) / f"{split}.jsonl", rows)
        print(split, len(code), "code,", len(text), "text:", len(rows), "candidates")


def long(model: str, out: str) -> None:
    """Write four prompts of 85,000 to 99,000 tokens: no screening, one batch."""
    found = code_prompts("measure", measure_of(model), 85_000, 99_000)
    write(Path(out), list(itertools.islice(found, 4)))


def measure_of(model: str) -> Any:
    """What counts the tokens of a text."""
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise SystemExit(f"{model} has no tokenizer")
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def freeze(candidates: str, run: str, out: str) -> None:
    """Keep what ran to the length limit without looping; the list with its hash."""
    rows = [json.loads(line) for line in Path(candidates).read_text(encoding="utf-8").splitlines()]
    records = (Path(run) / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    screened = [r for r in map(json.loads, records) if r["arm"] == "autoregressive"]
    good = {
        r["item_id"] for r in screened if r["finish_reason"] == "length" and not r["degenerate"]
    }
    left, kept = dict(WANTED), []
    for row in rows:
        kind = "code" if row["id"].startswith("code") else "text"
        if row["id"] in good and left[kind]:
            left[kind] -= 1
            kept.append(row)
    # where too few texts pass, code fills up
    spare = [row for row in rows if row["id"] in good and row not in kept]
    kept += spare[: sum(left.values())]
    write(Path(out), kept)
    print(f"{len(good)} of {len(screened)} pass; kept {len(kept)}")


def pick(candidates: str, ids: str, out: str) -> None:
    """The frozen list that the file `ids` names, to the byte; without its screening run."""
    frozen = yaml.safe_load(Path(ids).read_text(encoding="utf-8"))
    lines = Path(candidates).read_text(encoding="utf-8").splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    missing = [name for name in frozen["ids"] if name not in rows]
    if missing:
        raise SystemExit(f"{candidates} lacks {len(missing)} of the prompts, first {missing[0]}")
    digest = write(Path(out), [rows[name] for name in frozen["ids"]])
    if digest != frozen["sha256"]:
        raise SystemExit(f"{out} has the hash {digest}, not {frozen['sha256']} as {ids} says")


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """The rows, and beside them their ids and the hash of all, which is returned."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    ids = "".join(f"- {row['id']}\n" for row in rows)
    path.with_suffix(".ids.yaml").write_text(f"sha256: {digest}\nids:\n{ids}", encoding="utf-8")
    return digest


if __name__ == "__main__":
    {"make": make, "freeze": freeze, "pick": pick, "long": long}[sys.argv[1]](*sys.argv[2:])
