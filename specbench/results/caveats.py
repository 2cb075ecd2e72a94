"""What a reader of the tables must know before trusting a figure."""

from collections import Counter
from collections.abc import Sequence

from specbench.results.cells import Cell, Group
from specbench.results.invariants import unaccounted
from specbench.results.protocol import versions
from specbench.results.reading import RunData
from specbench.results.records import Status
from specbench.results.sources import Source
from specbench.results.stats import MIN_REPEATS

_UNACCOUNTED = 0.1
_USELESS_AL = 1.1


def collect_warnings(data: RunData, groups: list[Group]) -> list[str]:
    """Warnings of the run itself, then of each dataset, then of each arm; no line twice."""
    lines = [*data.run.warnings, *_run_warnings(data)]
    for group in groups:
        if group.cells:
            lines += _dataset_warnings(group)
        for cell in group.cells:
            where = f"{cell.arm.name} on {cell.dataset.name}"
            lines += [f"{where}: {line}" for line in _cell_warnings(cell)]
    return list(dict.fromkeys(lines))


def merged_warnings(sources: Sequence[Source]) -> list[str]:
    """What must be known of runs that are reported together: of all at once, then of each."""
    lines = []
    named = dict.fromkeys(versions(source.run) for source in sources)
    if len(named) > 1:
        lines.append(f"the runs were made with different versions: {'; '.join(named)}")
    served = [any(group.vllm for group in source.groups) for source in sources]
    if any(served) and not all(served):
        without = [s.label for s, found in zip(sources, served, strict=True) if not found]
        lines.append(
            f"no vLLM arm in {', '.join(without)}: speed-ups over vLLM are paired or unknown"
        )
    for source in sources:
        own = collect_warnings(source.data, source.groups)
        lines += [f"{source.label}: {line}" for line in own]
    return lines


def _run_warnings(data: RunData) -> list[str]:
    lines = [f"{entry.name}: {entry.status}: {entry.message}" for entry in data.run.refused]
    if data.run.model.get("dummy"):
        lines.append(
            "dummy weights: acceptance, and the throughput of arms that draft, mean nothing "
            "and are not shown; read step times only"
        )
    if data.run.config.get("ignore_eos"):
        lines.append("--ignore-eos: outputs run past their end; read step times only")
    repeats = data.run.config.get("repeats")
    if isinstance(repeats, int) and repeats < MIN_REPEATS:
        lines.append(f"repeats {repeats}: no interval below {MIN_REPEATS}; read acceptance only")
    eager = dict.fromkeys(p.arm for p in data.passes if p.graph_mode == "eager")
    if eager and data.run.config.get("device") == "cuda":
        lines.append(
            f"without CUDA graphs: {', '.join(eager)}; the host's launches are part of their times"
        )
    segments = {record.times.segment for record in data.requests}
    if len(segments) > 1:
        lines.append(f"resumed: the records come from {len(segments)} processes")
    return lines


def _dataset_warnings(group: Group) -> list[str]:
    cell = group.cells[0]
    dataset, name, prompts = cell.dataset, cell.dataset.name, len(cell.dataset.prompts)
    lines = []
    if cell.all_degenerate:
        lines.append(
            f"{name}: all {prompts} prompts gave looping output, which inflates acceptance; "
            "nothing was left to exclude them from"
        )
    elif cell.excluded:
        lines.append(
            f"{name}: {len(cell.excluded)} of {prompts} prompts gave looping output in some arm "
            "and are left out of every arm's figures"
        )
    truncated = sum(prompt.truncated for prompt in dataset.prompts)
    # the built-in sample is written longer than the context, to be cut like real data
    if truncated and dataset.source != "sample":
        lines.append(f"{name}: {truncated} of {prompts} prompts had their middle cut out to fit")
    for reason, count in dataset.skipped.items():
        if count:
            lines.append(f"{name}: {count} items left out: {reason}")
    modes = {record.graph_mode for member in group.cells for record in member.passes}
    if len(modes) > 1:
        lines.append(f"{name}: arms ran in different graph modes: {', '.join(sorted(modes))}")
    return lines + _unjudged_warnings(group) + _score_warnings(group)


def _unjudged_warnings(group: Group) -> list[str]:
    """Where a baseline that failed left outputs without a verdict, which a resume would give."""
    baseline = group.autoregressive
    if baseline is None or baseline.status is None or baseline.measured:
        return []
    return [
        f"{cell.arm.name} on {cell.dataset.name}: losslessness of {missing} requests unchecked: "
        "the autoregressive arm failed; --resume tries it again"
        for cell in group.cells
        if cell is not baseline and cell.arm.lossless and cell.measured
        if (missing := len(cell.requests) - len(cell.verdicts)) > 0
    ]


def _score_warnings(group: Group) -> list[str]:
    scored = {(s.arm, s.repeat, s.index) for cell in group.cells for s in cell.scores}
    outputs = [r for cell in group.cells for r in cell.requests]
    ends = [r.finish_reason for r in outputs if (r.arm, r.repeat, r.index) in scored]
    cut = ends.count("length")
    if not cut:
        return []
    name = group.cells[0].dataset.name
    return [f"{name}: {cut} of {len(ends)} scored outputs were cut at the length limit"]


def _cell_warnings(cell: Cell) -> list[str]:
    lines = []
    status = cell.status
    if status is None:
        done = f"{len(cell.passes)} of {cell.repeats} repeats"
        lines.append(f"unfinished, {done} ended; continue with --resume")
    failed = {p.message for p in cell.passes if p.status not in (Status.PASSED, Status.LOSSY)}
    lines += [f"{status}: {message}" for message in sorted(filter(None, failed))]
    if status is Status.LOSSY:
        wrong = [record for record in cell.verdicts if record.lossless is False]
        first = f", first at token {wrong[0].first_divergence} of prompt {wrong[0].index}"
        where = first if wrong and wrong[0].first_divergence is not None else ""
        lines.append(
            f"LOSSY: {len(wrong)} of {len(cell.verdicts)} outputs are not the target's{where}"
        )
    reasons = Counter(
        record.reason or "no reason on record"
        for record in cell.verdicts
        if record.lossless is None and record.tier != "agreement"
    )
    lines += [f"losslessness of {n} requests unchecked: {reason}" for reason, n in reasons.items()]
    lines += _served_warnings(cell)
    return lines + (_figure_warnings(cell) if cell.measured else [])


def _served_warnings(cell: Cell) -> list[str]:
    """Of an arm in another engine: where it parts from this one, and what disturbed its figures."""
    lines = []
    compared = [record for record in cell.verdicts if record.tier == "agreement"]
    parted = [r.top2_margin for r in compared if r.identical is False and r.top2_margin is not None]
    if parted:
        lines.append(
            f"{len(parted)} of {len(compared)} outputs part from the autoregressive arm's, where "
            f"the two best logits are {min(parted):.2g} to {max(parted):.2g} apart"
        )
    served = [record.served for record in cell.passes if record.served is not None]
    versions = sorted({record.version for record in served})
    if len(versions) > 1:
        lines.append(f"measured with different versions: {', '.join(versions)}")
    preemptions = sum(record.preemptions or 0 for record in served)
    if preemptions:
        lines.append(f"{preemptions} requests were preempted while decoding: the KV cache is small")
    if any(record.fill_cache_hits for record in served):
        lines.append("prompt tokens came from the prefix cache while filling: TTFT is understated")
    return lines + (_counter_warnings(cell) if cell.speculative and served else [])


def _counter_warnings(cell: Cell) -> list[str]:
    """Of an engine that speculates: what its counters lack, or where its outputs disagree."""
    counted = cell.counters
    if counted is None:
        return [
            "its counters of speculation are missing or contradict each other: acceptance rate, "
            "histogram and acceptance by position are unknown"
        ]
    silent = [p for p in cell.passes if p.served is None or p.served.spec_decode is None]
    if silent or len({record.times.segment for record in cell.requests}) > 1:
        return []  # the counters are of a part of the requests
    held = sum(sum(record.committed) - len(record.committed) for record in cell.requests)
    # drafts behind an end token or the length limit were accepted and never came out
    if 0 <= counted.accepted_tokens - held <= cell.gamma * len(cell.requests):
        return []
    return [
        f"its counters say {counted.accepted_tokens} accepted drafts, its outputs hold {held}: AL "
        "is of the outputs; acceptance rate, histogram and positions are of the counters"
    ]


def _figure_warnings(cell: Cell) -> list[str]:
    lines = []
    steps = [running for r in cell.healthy for running in r.times.steps.running]
    if cell.full_batch not in steps:
        lines.append(f"no step ran with the full batch of {cell.full_batch}: throughput unknown")
    if cell.shows_acceptance and steps:
        length = sum(sum(r.committed) for r in cell.healthy) / len(steps)
        drafted = any(r.drafted is None or any(r.drafted) for r in cell.healthy)
        if length < _USELESS_AL and not drafted:
            lines.append(f"AL {length:.2f}: no step had a draft to verify")
        elif length < _USELESS_AL:
            lines.append(f"AL {length:.2f}: the drafts are hardly ever accepted")
    for repeat in range(cell.repeats):
        share = unaccounted([r for r in cell.requests if r.repeat == repeat])
        if share is not None and share > _UNACCOUNTED:
            lines.append(
                f"repeat {repeat}: {share:.0%} of decode time is neither a step nor a prefill, "
                "so decode throughput is overstated"
            )
    return lines
