"""What vLLM said of a pass, checked, and turned into records."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.engine.generate import Generated, Request
from specbench.methods.vllm.process import VllmError
from specbench.results.records import RequestTimes, ServedRecord, SpecCounters, StepTimes

# How vLLM calls the ends that a request may have here: an end token, the length limit.
_ENDS = ("stop", "length")


def to_generated(
    request: Request,
    event: Mapping[str, Any],
    filled: Mapping[str, Any],
    segment: int,
    vocabulary: int,
) -> Generated:
    """The completed request that an event of the worker tells of, and the one of its fill.

    Raises
    ------
    VllmError
        It cannot be what the request asked for; the message names the request and what is wrong.
    """
    wrong = _wrong(request, event, vocabulary)
    if wrong:
        raise VllmError(f"vLLM's output of request {request.item_id!r} {wrong}")
    committed: list[int] = event["committed"]
    prefill_s: float = filled["seconds"]
    times = RequestTimes(
        segment=segment,
        queue_s=None,
        reused_tokens=filled["cached"],
        prefill_s=prefill_s,
        ttft_s=prefill_s,
        e2e_s=prefill_s + event["decode_s"],
        steps=StepTimes(
            step_s=event["step_s"],
            draft_s=None,
            verify_s=None,
            selection_s=None,
            sampling_s=None,
            running=event["running"],
        ),
    )
    return Generated(
        request=request,
        output_ids=event["output_ids"],
        finish_reason="eos" if event["reason"] == "stop" else "length",
        drafted=None,
        accepted=[count - 1 for count in committed],
        committed=committed,
        times=times,
    )


def _wrong(request: Request, event: Mapping[str, Any], vocabulary: int) -> str | None:
    """What is wrong with an output; None where nothing is."""
    ids: list[int] = event["output_ids"]
    if event["reason"] not in _ENDS:
        return f"ended with {event['reason']!r} after {len(ids)} tokens"
    if not ids:
        return "holds no token"
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        token = next(token for token in ids if not 0 <= token < vocabulary)
        return f"holds token {token}, outside the vocabulary of {vocabulary}: its logits were NaN?"
    if event["reason"] == "length" and len(ids) != request.max_new_tokens:
        return f"ended after {len(ids)} of {request.max_new_tokens} tokens without an end token"
    first = len(ids) - sum(event["committed"])
    if first != 1:
        return f"began with {first} tokens at once: its steps cannot be told apart"
    return None


def to_served(
    about: Mapping[str, Any],
    counts: Sequence[Mapping[str, Any]],
    prompt_tokens: int,
    speculates: bool,
) -> ServedRecord:
    """What vLLM's counters say of a pass: differences, summed over its groups."""
    counters = _Counters(counts)
    return ServedRecord(
        version=f"{about['package']} {about['version']}",
        settings={k: v for k, v in about.items() if k not in ("package", "version")},
        prompt_tokens=prompt_tokens,
        fill_cache_hits=sum(event["fill_hits"] for event in counts),
        decode_cache_hits=sum(event["decode_hits"] for event in counts),
        preemptions=counters.total("num_preemptions"),
        spec_decode=_spec_counters(counters) if speculates else None,
    )


def _spec_counters(counters: "_Counters") -> SpecCounters | None:
    """The counters of speculation; None where one is missing or they contradict each other."""
    drafts = counters.total("spec_decode_num_drafts")
    tokens = counters.total("spec_decode_num_draft_tokens")
    accepted = counters.total("spec_decode_num_accepted_tokens")
    places = counters.columns("spec_decode_num_accepted_tokens_per_pos")
    if drafts is None or tokens is None or accepted is None or places is None:
        return None
    falling = [drafts, *places]
    if falling != sorted(falling, reverse=True) or not sum(places) == accepted <= tokens:
        return None
    return SpecCounters(
        num_drafts=drafts,
        draft_tokens=tokens,
        accepted_tokens=accepted,
        accepted_per_position=places,
    )


class _Counters:
    """What counters moved by over the groups of a pass; None where one is missing or fell."""

    def __init__(self, counts: Sequence[Mapping[str, Any]]) -> None:
        self._counts = counts

    def total(self, name: str) -> int | None:
        """A number's."""
        found = self.columns(name)
        return None if found is None else found[0]

    def columns(self, name: str) -> list[int] | None:
        """A list's; of a number a list of one."""
        moved = [_moved(event["before"], event["after"], f"vllm:{name}") for event in self._counts]
        known = [values for values in moved if values is not None]
        if not known or len(known) < len(moved):
            return None
        sums = [sum(column) for column in zip(*known, strict=True)]
        return sums if min((n for values in known for n in values), default=0) >= 0 else None


def _moved(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> list[int] | None:
    if name not in after:
        return None
    new = after[name] if isinstance(after[name], list) else [after[name]]
    old = before.get(name, [0] * len(new))
    return [b - a for a, b in zip(old if isinstance(old, list) else [old], new, strict=True)]
