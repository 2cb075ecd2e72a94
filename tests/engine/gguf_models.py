"""GGUF files made from tiny models of transformers, and transformers' own reading of them."""

from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    matrices: GGMLQuantizationType = GGMLQuantizationType.F32,
    output: GGMLQuantizationType | None = None,
    vocabulary: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    leave_out: str | None = None,
) -> Path:
    """Write `model` as a converter would.

    `output` stores the output matrix of a tied model as well, in that type; `metadata` holds
    further keys, in which `{family}` is replaced.
    """
    config, family = model.config, model.config.model_type
    writer = GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if family == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    else:
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key.format(family=family), value)
    add_tokenizer(writer, vocabulary or default_vocabulary(config.vocab_size))

    tied = config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and tied and output is None:
            continue
        key = gguf_name(name)
        if key == leave_out:
            continue
        kind = GGMLQuantizationType.F32 if weight.dim() == 1 else matrices
        if name == "lm_head.weight" and output is not None:
            kind = output
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            weight = interleaved(weight, heads)
        writer.add_tensor(key, quantize(weight.numpy(), kind), raw_dtype=kind)
    for key, values in (extra or {}).items():
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    outside = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outside:
        return outside[name]
    _, _, index, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{index}.{PARTS[part]}.{kind}"


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of the two halves of every head, put side by side in pairs."""
    halves = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def default_vocabulary(size: int) -> list[str]:
    """Three control tokens, the letters, one merge of two and made-up words."""
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "ab"]
    return words + [f"w{index}" for index in range(len(words), size)]


def add_tokenizer(writer: GGUFWriter, vocabulary: list[str]) -> None:
    """A byte-level BPE of the given tokens, those in angle brackets being control tokens."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary])
    writer.add_token_merges(["a b"] if "ab" in vocabulary else [])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def gguf_reference(path: Path) -> PreTrainedModel:
    """The float32 model that transformers' own reader makes of a GGUF file."""
    # it would read the file twice, and list a model's names once for each module
    once = {name: cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")}
    with patch.multiple(gguf, **once):
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        state = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing in ([], ["lm_head.weight"])
    model.tie_weights()
    return model.eval()
