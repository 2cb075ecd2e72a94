"""What a run's figures were measured on and how, in two lines: for tables and plots."""

from specbench.results.records import RunRecord


def device_name(run: RunRecord) -> str:
    """The accelerator, or the processor and its threads on a CPU run."""
    environment = run.environment
    if run.config.get("device") == "cuda":
        names = [str(gpu["name"]) for gpu in environment.get("gpus") or []]
        return " + ".join(names) or "CUDA device"
    cpu = environment.get("cpu") or "CPU"
    threads = run.config.get("threads") or environment.get("threads")
    return f"{cpu}, {threads} threads" if threads else str(cpu)


def protocol_lines(run: RunRecord) -> list[str]:
    """Device, model and type; then batch, lengths, sampling and repeats."""
    config = run.config
    model = run.model.get("spec") or config.get("model")
    dummy = " (dummy weights)" if run.model.get("dummy") else ""
    lengths = _lengths([prompt.tokens for entry in run.datasets for prompt in entry.prompts])
    temperature = config.get("temperature")
    sampling = f"T {temperature}" if temperature else "greedy"
    if temperature and (config.get("top_k") or config.get("top_p", 1) < 1):
        sampling += f", top-k {config.get('top_k')}, top-p {config.get('top_p')}"
    facts = [
        f"batch {config.get('batch_size')}",
        lengths,
        f"{_range(run)} new tokens at most" if run.datasets else None,
        sampling,
        f"repeats {config.get('repeats')}",
        "EOS ignored" if config.get("ignore_eos") else None,
    ]
    return [
        f"{model}{dummy} · {config.get('dtype')} · {device_name(run)}",
        " · ".join(fact for fact in facts if fact),
    ]


def _lengths(tokens: list[int]) -> str:
    if not tokens:
        return "no prompts"
    shortest, longest = min(tokens), max(tokens)
    span = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    return f"{len(tokens)} prompts of {span} tokens"


def _range(run: RunRecord) -> str:
    counts = sorted({entry.max_new_tokens for entry in run.datasets})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
