"""Runs the plug-in inside real vLLM on the CPU: a script for vLLM's own interpreter.

It reads a job as JSON from standard input and writes what was generated, step by step, as the last
line of standard output:

    {"model": folder, "runs": [{"gamma": 3, "settings": {...} or null, "args": {...},
      "requests": [{"ids": [...], "new": 20, "at": 0, "sampling": {...}, "cancel": null}]}]}

Settings of null stand for plain vLLM. A request comes at the engine's step `at` and is cancelled
after `cancel` steps.
"""

import gc
import json
import os
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "CUDA_VISIBLE_DEVICES": "",
}


def prepare() -> None:
    """Make the CPU build do what the plug-in needs of vLLM.

    Its rejection sampler has kernels for the CPU that 0.30 forgets to call; it repacks weights, which
    leaves none to read; and it has no CUSTOM backend, so the plug-in's stands in its own place.
    """
    import vllm._custom_ops
    from vllm.utils import cpu_triton_utils as cpu
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.sample import rejection_sampler as sampler

    for name in ("rejection_greedy_sample", "rejection_random_sample", "sample_recovered_tokens"):
        getattr(sampler, f"_{name}").kernel = getattr(cpu, f"{name}_kernel")
    sampler._expand.kernel = cpu.expand_kernel
    vllm._custom_ops._supports_onednn = False

    from specbench.integrations.vllm.plugin import BACKEND

    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)


def generate(model: str, run: dict[str, Any]) -> dict[str, Any]:
    """One engine from start to end: tokens of each step of each request, and the counters."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    more: dict[str, Any] = {}
    if run["settings"] is not None:
        more = {
            "speculative_config": {
                "model": "specbench.integrations.vllm.VegasProposer",
                "num_speculative_tokens": run["gamma"],
            },
            "additional_config": {"specbench": run["settings"]},
        }
    args = {"max_model_len": 256, "max_num_seqs": 4} | run.get("args", {})
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        seed=0,
        **args,
        **more,
    )
    engine, requests = llm.llm_engine, run["requests"]
    steps: dict[str, list[list[int]]] = {}
    waiting = sorted(enumerate(requests), key=lambda pair: pair[1].get("at", 0))
    now = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1].get("at", 0) <= now:
            index, request = waiting.pop(0)
            sampling = SamplingParams(
                max_tokens=request["new"],
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                **{"temperature": 0, **request.get("sampling", {})},
            )
            steps[str(index)] = []
            engine.add_request(str(index), {"prompt_token_ids": request["ids"]}, sampling)
        for output in engine.step():
            steps[output.request_id].append(list(output.outputs[0].token_ids))
        for index, request in enumerate(requests):
            if request.get("cancel") == now:
                engine.abort_request([str(index)])
        now += 1
    figures = None
    if run["settings"] is not None:
        figures = llm.collective_rpc(lambda worker: worker.model_runner.drafter.counters.figures())[0]
    preempted = sum(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions") if (
        args.get("disable_log_stats") is False
    ) else None
    del llm, engine
    gc.collect()
    return {"steps": [steps[str(i)] for i in range(len(requests))], "figures": figures, "preempted": preempted}


def main() -> None:
    """The job."""
    job = json.load(sys.stdin)
    prepare()
    done = []
    for run in job["runs"]:
        try:
            done.append(generate(job["model"], run))
        except Exception as error:  # a refusal is what some runs are about
            done.append({"error": str(error), "kind": type(error).__name__})
    print(json.dumps(done), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
