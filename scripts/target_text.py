"""Text that a target writes itself, to train its draft on beside text of others.

Beginnings of documents are continued, or with --chat given to the model as a user's message under
one of a few instructions. Rows of the JSONL hold prompt and answer. A call that is cut off goes on
where it stopped.

    python scripts/target_text.py MODEL text/train/code.jsonl text/train/own.jsonl --minutes 5
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

INSTRUCTIONS = (
    "Summarize the following text.",
    "Explain step by step what the following is about.",
    "List the most important points of the following text.",
    "Answer in detail: what does the following do, and how could it be improved?",
)


def main(argv: list[str] | None = None) -> None:
    """Generate until the documents or the minutes are over."""
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("model")
    parser.add_argument("documents", type=Path, help="JSONL with a field 'text'")
    parser.add_argument("output", type=Path)
    parser.add_argument("--chat", action="store_true", help="ask instead of continuing")
    parser.add_argument("--prompt-tokens", type=int, default=384)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args(argv)

    import torch

    from specbench.engine.engine import Engine
    from specbench.engine.generate import Request, generate
    from specbench.engine.loader import load_model
    from specbench.engine.sampling import Sampling
    from specbench.methods.autoregressive import Autoregressive

    deadline = time.monotonic() + options.minutes * 60
    longest = options.prompt_tokens + 128 + options.new_tokens  # a template around the prompt
    loaded = load_model(
        options.model,
        device=options.device,
        dtype=getattr(torch, options.dtype),
        max_len=longest,
    )
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise SystemExit(f"{options.model} has no tokenizer")

    def requests() -> Iterator[Request]:
        done = numbers_of(options.output)
        for number, text in enumerate(pieces(options.documents, options.prompt_tokens * 4)):
            if number in done:
                continue
            if options.chat:
                asked = f"{INSTRUCTIONS[number % len(INSTRUCTIONS)]}\n\n{text}"
                chat = [{"role": "user", "content": asked}]
                ids = tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, return_dict=False
                )
            else:
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                ids = ids[: options.prompt_tokens]
            if 0 < len(ids) <= longest - options.new_tokens:
                yield Request(number, str(number), list(ids), options.new_tokens)

    engine = Engine(
        loaded.model, rows=options.batch_size, max_len=longest, max_new_tokens=options.new_tokens
    )
    engine.use(Autoregressive(Autoregressive.parameters_type()), Sampling(options.temperature))
    waiting = requests()
    written = 0
    with options.output.open("a", encoding="utf-8") as file:
        # several times the batch, so that rows seldom wait for the last of them
        while time.monotonic() < deadline:
            some = list(islice(waiting, 4 * options.batch_size))
            if not some:
                break
            for outcome in generate(engine, some):
                whole = tokenizer.decode([*outcome.request.token_ids, *outcome.output_ids])
                row = {"number": outcome.request.index, "text": whole}
                file.write(json.dumps(row) + "\n")
                written += len(outcome.output_ids)
            file.flush()
    print(f"{written:,} tokens more in {options.output}")


def numbers_of(file: Path) -> set[int]:
    """The pieces that earlier calls have done; a last line that was cut off is taken away."""
    if not file.is_file():
        return set()
    text = file.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        file.write_text(complete, encoding="utf-8")
    return {json.loads(line)["number"] for line in complete.split("\n") if line}


def pieces(file: Path, characters: int) -> Iterator[str]:
    """Parts of documents, far apart, so that many of them take turns."""
    with file.open(encoding="utf-8") as opened:
        for line in opened:
            text = json.loads(line)["text"]
            for begin in range(0, max(len(text) - characters, 1), 8 * characters):
                yield text[begin : begin + characters]


if __name__ == "__main__":
    main()
