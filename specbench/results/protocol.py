"""What figures were measured on and how, in three lines: for tables, plots and the page."""

from collections.abc import Iterable, Sequence
from typing import Any

from specbench.results.records import RunRecord

_SHOWN_VERSIONS = ("torch", "triton", "vllm")


def device_name(run: RunRecord) -> str:
    """The accelerator, or the processor and its threads on a CPU run."""
    environment = run.environment
    if run.config.get("device") == "cuda":
        names = [str(gpu["name"]) for gpu in environment.get("gpus") or []]
        return " + ".join(names) or "CUDA device"
    cpu = environment.get("cpu") or "CPU"
    threads = run.config.get("threads") or environment.get("threads")
    return f"{cpu}, {threads} threads" if threads else str(cpu)


def model_name(run: RunRecord) -> str:
    """The model as the user named it, random weights said."""
    model = str(run.model.get("spec") or run.config.get("model"))
    return f"{model} (dummy weights)" if run.model.get("dummy") else model


def sampling(run: RunRecord) -> str:
    """``greedy``, or temperature and what was cut off."""
    temperature = run.config.get("temperature")
    if not temperature:
        return "greedy"
    top_k, top_p = run.config.get("top_k"), run.config.get("top_p", 1)
    cut = f", top-k {top_k}, top-p {top_p}" if top_k or top_p < 1 else ""
    return f"T {temperature}{cut}"


def versions(run: RunRecord) -> str:
    """specbench with its commit, torch, and what else took part."""
    environment = run.environment
    git = environment.get("git") or {}
    commit = f" ({git['commit'][:7]}{'+' if git.get('dirty') else ''})" if git.get("commit") else ""
    known = environment.get("versions") or {}
    facts = [f"specbench {environment.get('specbench') or 'unknown'}{commit}"]
    facts += [f"{name} {known[name]}" for name in _SHOWN_VERSIONS if known.get(name)]
    facts += [f"driver {environment['driver']}"] if environment.get("driver") else []
    return " · ".join(facts)


def protocol_lines(runs: RunRecord | Sequence[RunRecord]) -> list[str]:
    """Model, type and device; batch, lengths, sampling and repeats; versions.

    Where runs that are reported together differ in a fact, its values are joined by "or".
    """
    runs = [runs] if isinstance(runs, RunRecord) else runs
    datasets = [entry for run in runs for entry in run.datasets]
    new = [str(entry.max_new_tokens) for entry in datasets]
    facts = [
        f"batch {_joined(run.config.get('batch_size') for run in runs)}",
        _lengths(runs),
        f"{_span(list(map(int, new)))} new tokens at most" if new else None,
        _joined(map(sampling, runs)),
        f"repeats {_joined(run.config.get('repeats') for run in runs)}",
        "EOS ignored" if any(run.config.get("ignore_eos") for run in runs) else None,
    ]
    what = (
        _joined(map(model_name, runs)),
        _joined(run.config.get("dtype") for run in runs),
        _joined(map(device_name, runs)),
    )
    return [
        " · ".join(what),
        " · ".join(fact for fact in facts if fact),
        _joined(map(versions, runs)),
    ]


def _joined(values: Iterable[Any]) -> str:
    distinct: list[Any] = list(dict.fromkeys(values))
    if all(isinstance(value, int) for value in distinct):
        distinct.sort()
    return " or ".join(map(str, distinct))


def _lengths(runs: Sequence[RunRecord]) -> str:
    # the same prompts in several runs are counted once
    lists = {
        (entry.name, entry.token_ids_sha256): [prompt.tokens for prompt in entry.prompts]
        for run in runs
        for entry in run.datasets
    }
    tokens = [count for counts in lists.values() for count in counts]
    return f"{len(tokens)} prompts of {_span(tokens)} tokens" if tokens else "no prompts"


def _span(values: Sequence[int]) -> str:
    return " to ".join(map(str, dict.fromkeys((min(values), max(values)))))
