"""Records made by hand for the tests of `specbench.results`."""

from typing import Any

from specbench.results.records import (
    ArmInfo,
    ArmRecord,
    DatasetInfo,
    LosslessRecord,
    PromptInfo,
    RequestRecord,
    RequestTimes,
    RunRecord,
    Status,
    StepTimes,
)

AR = "autoregressive"


def make_run(
    prompts: int = 2,
    batch_size: int = 2,
    repeats: int = 1,
    gamma: int = 4,
    datasets: tuple[str, ...] = ("govreport",),
    arms: tuple[str, ...] = (AR, "vegas"),
    **changes: Any,
) -> RunRecord:
    """A run of `arms` on `prompts` prompts a dataset; `changes` override whole fields."""
    fields: dict[str, Any] = {
        "created": "2026-01-01T00:00:00Z",
        "config": {
            "model": "tiny",
            "batch_size": batch_size,
            "repeats": repeats,
            "max_new_tokens": 64,
            "temperature": 0.0,
            "device": "cpu",
            "dtype": "float32",
            "ignore_eos": False,
            "output": "out",
            "resume": False,
        },
        "choices": [],
        "environment": {"cpu": "Test CPU", "threads": 2, "versions": {"torch": "2.13.0"}},
        "model": {"spec": "tiny-llama", "dummy": False, "checkpoint_sha256": "ab"},
        "datasets": [
            DatasetInfo(
                name=name,
                source="sample",
                revision=None,
                template_sha256=None,
                token_ids_sha256="00",
                skipped={},
                context_len=100,
                max_new_tokens=64,
                thinking=False,
                cot=False,
                score=None,
                prompts=[
                    PromptInfo(
                        index=i,
                        item_id=f"item-{i}",
                        tokens=100,
                        original_tokens=100,
                        truncated=False,
                    )
                    for i in range(prompts)
                ],
            )
            for name in datasets
        ],
        "arms": [
            ArmInfo(
                name=name,
                method=name,
                parameters={"gamma": 0} if name in (AR, "vllm") else {"gamma": gamma},
                lossless=name != "vllm",
            )
            for name in arms
        ],
        "refused": [],
        "cells": None,
        "warnings": [],
    }
    return RunRecord(**(fields | changes))


def make_request(
    arm: str,
    index: int,
    committed: list[int],
    *,
    step_s: float | list[float] = 0.1,
    drafted: list[int] | None = None,
    accepted: list[int] | None = None,
    running: int | list[int] = 2,
    ttft_s: float = 0.5,
    e2e_s: float | None = None,
    queue_s: float = 0.0,
    split: tuple[float, float, float, float] | None = (0.0, 0.0, 0.0, 0.0),
    repeat: int = 0,
    dataset: str = "govreport",
    degenerate: bool = False,
    segment: int = 0,
    output_ids: list[int] | None = None,
) -> RequestRecord:
    """A request that committed `committed` tokens in each step after the first token."""
    steps = len(committed)
    seconds = step_s if isinstance(step_s, list) else [step_s] * steps
    draft, verify, selection, sampling = (
        (None,) * 4 if split is None else ([part] * steps for part in split)
    )
    return RequestRecord(
        arm=arm,
        dataset=dataset,
        repeat=repeat,
        index=index,
        item_id=f"item-{index}",
        prompt_tokens=100,
        output_ids=list(range(sum(committed) + 1)) if output_ids is None else output_ids,
        finish_reason="length",
        drafted=[0] * steps if drafted is None else drafted,
        accepted=[c - 1 for c in committed] if accepted is None else accepted,
        committed=committed,
        degenerate=degenerate,
        times=RequestTimes(
            segment=segment,
            queue_s=queue_s,
            prefill_s=0.4 * ttft_s / 0.5,
            ttft_s=ttft_s,
            e2e_s=ttft_s + sum(seconds) if e2e_s is None else e2e_s,
            steps=StepTimes(
                step_s=seconds,
                draft_s=draft,
                verify_s=verify,
                selection_s=selection,
                sampling_s=sampling,
                running=running if isinstance(running, list) else [running] * steps,
            ),
        ),
    )


def make_arm(arm: str, repeat: int = 0, status: Status = Status.PASSED, **fields: Any) -> ArmRecord:
    """How a pass ended."""
    defaults = {"dataset": "govreport", "graph_mode": "eager", "attention_backend": "reference"}
    return ArmRecord(arm=arm, repeat=repeat, status=status, **(defaults | fields))


def make_verdict(
    arm: str, index: int, lossless: bool | None = True, **fields: Any
) -> LosslessRecord:
    """A losslessness verdict of the exact tier, or unchecked."""
    defaults = {
        "dataset": "govreport",
        "repeat": 0,
        "tier": "unchecked" if lossless is None else "exact",
        "identical": lossless,
        "reason": "sampling" if lossless is None else None,
    }
    return LosslessRecord(arm=arm, index=index, lossless=lossless, **(defaults | fields))
