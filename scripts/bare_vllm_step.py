"""vLLM's decode step without specbench: (long - short generation) / steps, prompts in its cache.

python scripts/bare_vllm_step.py MODEL 24832 bare.csv 1x24000 16x24000 64x8000
"""

import pathlib
import random
import statistics
import sys
import time

from vllm import LLM, SamplingParams

SHORT, LONG, REPEATS = 32, 544, 15


def seconds(llm: LLM, prompts: list[dict[str, list[int]]], new: int) -> float:
    sampling = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    llm.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - began


def main(model: str, length: str, csv: str, *names: str) -> None:
    shapes = [tuple(map(int, name.split("x"))) for name in names]
    llm = LLM(model, max_model_len=int(length), dtype="bfloat16")
    rows = ["batch,context,step_ms,low,high"]
    for batch, context in shapes:
        prompts = [
            {"prompt_token_ids": random.choices(range(99_999), k=context)} for _ in range(batch)
        ]
        seconds(llm, prompts, SHORT)  # fills the prefix cache and warms
        steps = [
            1e3 * (seconds(llm, prompts, LONG) - seconds(llm, prompts, SHORT)) / (LONG - SHORT)
            for _ in range(REPEATS)
        ]
        rows.append(f"{batch},{context},{statistics.median(steps)},{min(steps)},{max(steps)}")
    pathlib.Path(csv).write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
