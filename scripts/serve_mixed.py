"""Mixed requests through vLLM's OpenAI server, each checked against its solo run.

usage: serve_mixed.py MODEL PROMPTS_JSONL OUTPUT_JSON --requests 200 --concurrency 32
           -- ARGUMENTS OF vllm serve

Plain vLLM answers every greedy request alone, then all of them at the concurrency asked for (the
control: what batching alone changes in bf16); then vLLM with the given arguments answers all. Of
greedy requests, the first token that differs from the solo run's must be
about as likely there: its log-probability may fall short of the solo token's by no more than the
control's largest gap, or by `FLOOR`. Of sampled requests the number of tokens is checked. Some
requests are cancelled after their first tokens. The exit status is 1 where something is lost, stuck
or beyond that gap.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PORT, START_SECONDS, REQUEST_SECONDS = 8123, 900, 600
URL = f"http://127.0.0.1:{PORT}"
# natural logarithm; a tie in bf16 logits of about 20 is 0.125 wide
FLOOR = 0.25
NEAR = 5


def make_requests(
    prompts: Sequence[list[int]], count: int, longest: int, seed: int
) -> list[dict[str, Any]]:
    """Long and short prompts, one token to hundreds, greedy and sampled, some cancelled.

    Some end with the last token that the model may have, `longest`.
    """
    random_source = random.Random(seed)
    everything = [token for ids in prompts for token in ids]
    everything *= -(-longest // len(everything))
    made = []
    for index in range(count):
        ids, new = prompts[index % len(prompts)], random_source.choice([1, 2, 16, 64, 200])
        keep = random_source.choice([len(ids), len(ids) // 4, 2000, 300, 17, 1])
        if index % 40 == 7:
            ids, keep = everything, longest - new
        keep = max(1, min(keep, len(ids), longest - new))
        request = {
            "prompt": ids[-keep:],
            "max_tokens": new,
            "temperature": 0.0,
            "cancel": index % 23 == 11,
        }
        if index % 4 == 3:
            sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "presence_penalty": 0.5}
            request |= {"seed": index, **sampling}
        made.append(request)
    return made


def read_prompts(file: Path, model: str) -> list[list[int]]:
    """Token ids of the file's prompts."""
    from transformers import AutoTokenizer

    items = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [item.get("token_ids") or tokenizer(item["prompt"])["input_ids"] for item in items]


@contextlib.contextmanager
def server(model: str, arguments: Sequence[str], log: Path) -> Iterator[None]:
    """`vllm serve` until it answers, and its end."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--port", str(PORT), *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None:
                sys.exit(f"the server ended with status {process.returncode}; see {log}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{URL}/health", timeout=5)
                break
            if time.monotonic() > deadline:
                sys.exit(f"the server did not start in {START_SECONDS} s; see {log}")
            time.sleep(2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(model: str, request: dict[str, Any]) -> dict[str, Any]:
    """Tokens and log-probabilities of one request; an error is a result."""
    body = {k: v for k, v in request.items() if k != "cancel"}
    body |= {"model": model, "logprobs": NEAR, "ignore_eos": True, "return_token_ids": True}
    body |= {"stream": True} if request["cancel"] else {}
    asked = urllib.request.Request(
        f"{URL}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=REQUEST_SECONDS) as answer:
            if request["cancel"]:
                # the connection closes in the middle of the answer
                return {"cancelled": bool(answer.readline())}
            choice = json.load(answer)["choices"][0]
    except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
        return {"error": repr(error)}
    return {"ids": choice["token_ids"], "near": choice["logprobs"]["top_logprobs"]}


def ask_all(model: str, requests: Sequence[dict[str, Any]], concurrency: int) -> list[Any]:
    """All answers, in the requests' order."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda request: ask(model, request), requests))


def gap(solo: dict[str, Any], other: dict[str, Any]) -> float | None:
    """How much less likely the first token that differs was in the solo run; 0 for equal outputs.

    None where it was not among the `NEAR` best.
    """
    for at, (a, b) in enumerate(zip(solo["ids"], other["ids"], strict=True)):
        if a != b:
            near, name = solo["near"][at], f"token_id:{b}"
            return max(near.values()) - near[name] if name in near else None
    return 0.0


def judge(
    requests: Sequence[dict[str, Any]], solo: Sequence[Any], answers: Sequence[Any]
) -> dict[str, Any]:
    """Counts of what went wrong, and the gaps of greedy requests."""
    lost, short, gaps, far = [], [], [], []
    for index, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        if "error" in answer or answer.get("cancelled") is False:
            lost.append({"index": index, "answer": answer})
        elif request["cancel"]:
            continue
        elif len(answer["ids"]) != request["max_tokens"]:
            short.append(index)
        elif request["temperature"] == 0:
            found = gap(solo[index], answer)
            (far if found is None else gaps).append(index if found is None else found)
    return {
        "lost": lost,
        "short": short,
        "greedy": len(gaps) + len(far),
        "identical": sum(found == 0 for found in gaps),
        "largest_gap": max(gaps, default=0.0),
        "beyond_the_nearest": far,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=24832)
    parser.add_argument("--seed", type=int, default=0)
    options, arguments = parser.parse_known_args()
    arguments = [word for word in arguments if word != "--"]
    prompts = read_prompts(options.prompts, options.model)
    longest = options.max_model_len
    requests = make_requests(prompts, options.requests, longest, options.seed)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    log = options.output.with_suffix(".log")
    # not by what they spell, which need not be one token's alone
    common = ["--max-model-len", str(options.max_model_len), "--return-tokens-as-token-ids"]
    with server(options.model, common, log):
        greedy = [r | {"cancel": False} for r in requests]
        solo = [
            ask(options.model, r) if r["temperature"] == 0 else {"ids": [], "near": []}
            for r in greedy
        ]
        control = judge(requests, solo, ask_all(options.model, requests, options.concurrency))
    with server(options.model, [*common, *arguments], log):
        began = time.perf_counter()
        answers = ask_all(options.model, requests, options.concurrency)
        seconds = time.perf_counter() - began
    found = judge(requests, solo, answers)
    allowed = max(FLOOR, control["largest_gap"])
    good = not (found["lost"] or found["short"] or found["beyond_the_nearest"])
    good = good and found["largest_gap"] <= allowed
    report = {"passed": good, "allowed_gap": allowed, "seconds": seconds}
    report |= {"arguments": arguments, "control": control, "served": found}
    options.output.write_text(json.dumps(report, indent=1))
    print(json.dumps({key: report[key] for key in ("passed", "allowed_gap", "served")}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
