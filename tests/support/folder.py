"""A tiny Hugging Face model folder with weights and a tokenizer, and runs of the command line."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from specbench.engine.hf_config import to_hf
from specbench.engine.model import Transformer
from tests.support.tiny import tiny_model

SENTENCES = """
the report says that water costs rose in every county and the council will vote on it
system user assistant what is of a to for by with from summary question answer
"""
WORDS = SENTENCES.split()
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_model(folder: Path, seed: int = 0, context: int = 512, template: bool = True) -> Path:
    """A random Llama of 64 tokens in float32 with a word-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True)
    vocab = 64
    names = ["<unk>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", *dict.fromkeys(WORDS)]
    names += [f"word{i}" for i in range(vocab - len(names))]
    backend = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>"],
        chat_template=TEMPLATE if template else None,
    )
    tokenizer.save_pretrained(folder)
    return save_model(folder, tiny_model(seed, torch.float32, 64, vocab_size=vocab), context, (1,))


def save_model(folder: Path, model: Transformer, context: int, eos: tuple[int, ...] = ()) -> Path:
    """The weights and configuration of a model without biases, as Hugging Face has them."""
    from safetensors.torch import save_file

    c = replace(model.config, max_position_embeddings=context, eos_ids=eos)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_hf(c, model.dtype)))
    weights = {"model.embed_tokens.weight": model.embed, "lm_head.weight": model.head}
    weights["model.norm.weight"] = model.final_norm
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    for i, layer in enumerate(model.layers):
        parts = dict(zip(("q", "k", "v"), layer.qkv.split([q, kv, kv]), strict=True))
        gate, up = layer.gate_up.chunk(2)
        prefix = f"model.layers.{i}."
        weights |= {f"{prefix}self_attn.{n}_proj.weight": w for n, w in parts.items()}
        weights |= {
            f"{prefix}self_attn.o_proj.weight": layer.o,
            f"{prefix}mlp.gate_proj.weight": gate,
            f"{prefix}mlp.up_proj.weight": up,
            f"{prefix}mlp.down_proj.weight": layer.down,
            f"{prefix}input_layernorm.weight": layer.attn_norm,
            f"{prefix}post_attention_layernorm.weight": layer.mlp_norm,
        }
        if layer.qk_norm is not None:
            weights[f"{prefix}self_attn.q_norm.weight"] = layer.qk_norm[0]
            weights[f"{prefix}self_attn.k_norm.weight"] = layer.qk_norm[-1]
    contiguous = {name: w.detach().contiguous().clone() for name, w in weights.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_prompts(file: Path, lengths: list[int]) -> Path:
    """A JSONL of prompts of that many words."""
    with file.open("w") as out:
        for i, n in enumerate(lengths):
            text = " ".join(WORDS[(i * 7 + j * (i + 1)) % len(WORDS)] for j in range(n))
            out.write(json.dumps({"id": f"p{i}", "prompt": text}) + "\n")
    return file


def command(*arguments: object) -> list[str]:
    """The command line as a subprocess runs it."""
    return [sys.executable, "-m", "specbench", *map(str, arguments)]


def environment() -> dict[str, str]:
    """One thread and no hub, so that runs on a busy machine stay quick and alike."""
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "160"}


def specbench(
    *arguments: object, cwd: Path, timeout: float = 240
) -> "subprocess.CompletedProcess[str]":
    """Run the command line to its end."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment() | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
