"""Runs the plug-in inside real vLLM on the CPU: a module for vLLM's own interpreter.

It reads a job as JSON from standard input and writes what was generated, step by step, as JSON to
the file that it is given:

    {"model": folder, "runs": [{"gamma": 3, "settings": {...} or null, "args": {...},
      "requests": [{"ids": [...], "new": 20, "at": 0, "sampling": {...}, "cancel": null}]}]}

Settings of null stand for plain vLLM. A request comes at the engine's step `at` and is cancelled
at the step `cancel`.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def prepare() -> None:
    """Make the CPU build do what the plug-in needs of vLLM.

    Its rejection sampler has kernels for the CPU that 0.30 forgets to call; it repacks weights,
    which leaves none to read; and it knows one backend, in whose place the plug-in's is put.
    """
    import vllm._custom_ops
    from vllm.utils import cpu_triton_utils as cpu
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.sample import rejection_sampler as sampler

    for name in ("rejection_greedy_sample", "rejection_random_sample", "sample_recovered_tokens"):
        getattr(sampler, f"_{name}").kernel = getattr(cpu, f"{name}_kernel")
    sampler._expand.kernel = type(cpu.expand_kernel)(expand)
    vllm._custom_ops._supports_onednn = False

    from specbench.integrations.vllm.plugin import BACKEND

    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)


def expand(
    output: Tensor,
    input: Tensor,
    cu_num_tokens: Tensor,
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int = 0,  # noqa: N803 - as vLLM calls it
) -> None:
    """A request's value for each of its tokens; the CPU's own kernel takes integers alone."""
    counts = torch.diff(cu_num_tokens, prepend=torch.zeros_like(cu_num_tokens[:1]))
    value = torch.where(input == replace_from, torch.full_like(input, replace_to), input)
    output.copy_(value.repeat_interleave(counts))


def start(model: str, run: dict[str, Any]) -> Any:
    """An engine in this process."""
    from vllm import LLM

    more: dict[str, Any] = {}
    if run["settings"] is not None:
        more["speculative_config"] = {
            "model": "specbench.integrations.vllm.VegasProposer",
            "num_speculative_tokens": run["gamma"],
        }
        more["additional_config"] = {"specbench": run["settings"]}
    small = {"max_model_len": 256, "max_num_seqs": 4, "dtype": "float32", "enforce_eager": True}
    given = run.get("args", {})
    return LLM(model, skip_tokenizer_init=True, disable_log_stats=False, **(small | given), **more)


def generate(model: str, run: dict[str, Any]) -> dict[str, Any]:
    """One engine from start to end: tokens of each step of each request, and the counters."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm, requests = start(model, run), run["requests"]
    engine = llm.llm_engine
    steps: dict[str, list[list[int]]] = {str(index): [] for index in range(len(requests))}
    now, last = 0, max(request.get("at", 0) for request in requests)
    while now <= last or engine.has_unfinished_requests():
        for index, request in enumerate(requests):
            if request.get("at", 0) == now:
                sampling = SamplingParams(
                    max_tokens=request["new"],
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                    **({"temperature": 0} | request.get("sampling", {})),
                )
                engine.add_request(str(index), {"prompt_token_ids": request["ids"]}, sampling)
            if request.get("cancel") == now:
                engine.abort_request([str(index)])
        for output in engine.step():
            steps[output.request_id].append(list(output.outputs[0].token_ids))
        now += 1
    counted = {metric.name: metric for metric in llm.get_metrics()}
    figures = None
    if run["settings"] is not None:
        worker = engine.engine_core.engine_core.model_executor.driver_worker.worker
        figures = worker.model_runner.drafter.counters.figures()
    return {
        "steps": list(steps.values()),
        "figures": figures,
        "preempted": counted["vllm:num_preemptions"].value,
        "hits": counted["vllm:prefix_cache_hits"].value,
    }


def main(result: Path) -> None:
    """The job; what vLLM refuses is a result too."""
    job = json.load(sys.stdin)
    prepare()
    done = []
    for run in job["runs"]:
        try:
            done.append(generate(run.get("model", job["model"]), run))
        except Exception as error:  # the process's boundary: the test decides what it means
            done.append({"error": str(error)})
        gc.collect()
    result.write_text(json.dumps(done))
    # vLLM's threads would keep the process
    os._exit(0)


if __name__ == "__main__":
    os.environ |= VARIABLES
    main(Path(sys.argv[1]))
