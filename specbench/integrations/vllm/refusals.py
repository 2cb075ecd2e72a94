"""What the plug-in does not run with, refused when vLLM starts, with the reason."""

from collections.abc import Iterator
from typing import Any

from specbench.errors import UsageError

OLDEST, NEWEST = (0, 25), (0, 33)
_KV_DTYPES = ("auto", "bfloat16", "float16", "float32")
MOST_GAMMA = 64


def check(vllm_config: Any, version: str) -> None:
    """Refuse a configuration that would be slow, wrong or untested.

    Parameters
    ----------
    vllm_config : VllmConfig
    version : str
        Of vLLM.

    Raises
    ------
    UsageError
        With every reason there is.
    """
    reasons = [*_version(version), *_model(vllm_config), *_engine(vllm_config)]
    if reasons:
        raise UsageError("specbench inside vLLM: " + "; ".join(reasons))


def _version(version: str) -> Iterator[str]:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers <= NEWEST:
        low, high = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        yield f"vLLM {version} is outside the tested versions {low} to {high}"


def _model(config: Any) -> Iterator[str]:
    model = config.model_config
    if getattr(model, "use_mla", False):
        yield "multi-head latent attention (MLA) keeps no keys that could be ranked"
    window = model.get_sliding_window() if hasattr(model, "get_sliding_window") else None
    # a window may be stated and not used
    if window and getattr(getattr(model, "hf_text_config", None), "use_sliding_window", True):
        yield f"the model has sliding-window attention (of {window} tokens)"
    if getattr(model, "quantization", None):
        yield f"weights quantised by {model.quantization} cannot be read by the drafter"
    if config.cache_config.cache_dtype not in _KV_DTYPES:
        yield f"the KV cache is {config.cache_config.cache_dtype}: use --kv-cache-dtype auto"
    if getattr(model, "enable_sleep_mode", False):
        yield "sleep mode would take the weights away: leave out --enable-sleep-mode"


def _engine(config: Any) -> Iterator[str]:
    parallel, speculative = config.parallel_config, config.speculative_config
    for field, words in _SIZES.items():
        size = getattr(parallel, field, 1) or 1
        if size > 1:
            yield f"{words} ({size} ranks)"
    for field, words in _FLAGS.items():
        if getattr(parallel, field, False):
            yield f"{words} (--{field.replace('_', '-')})"
    if getattr(config, "lora_config", None) is not None:
        yield "LoRA: the drafter knows the base weights alone"
    if offloaded(config):
        yield "weights are offloaded to the host"
    per_batch = getattr(speculative, "num_speculative_tokens_per_batch_size", None)
    if per_batch:
        yield "num_speculative_tokens_per_batch_size: gamma is fixed while vLLM runs"
    gamma = speculative.num_speculative_tokens
    if not 1 <= gamma <= MOST_GAMMA:
        yield f"num_speculative_tokens {gamma} is not between 1 and {MOST_GAMMA}"


_SIZES = {
    "pipeline_parallel_size": "pipeline parallelism: no rank has all layers",
    "decode_context_parallel_size": "context parallelism spreads a request's KV over ranks",
    "prefill_context_parallel_size": "context parallelism spreads a request's KV over ranks",
    "ubatch_size": "micro-batches split a batch's rows",
}
_FLAGS = {
    "enable_dbo": "dual batch overlap splits a batch's rows",
    "enable_eplb": "expert balancing moves weights",
}


def offloaded(config: Any) -> bool:
    """Whether some weights live in the host's memory."""
    cache, offload = config.cache_config, getattr(config, "offload_config", None)
    sizes = [
        getattr(cache, "cpu_offload_gb", 0),
        _nested(offload, "uva", "cpu_offload_gb"),
        _nested(offload, "prefetch", "offload_group_size"),
    ]
    return any(size and size > 0 for size in sizes)


def _nested(value: Any, *names: str) -> Any:
    for name in names:
        value = getattr(value, name, None)
    return value


def check_backend(layers: dict[str, Any]) -> None:
    """Refuse attention layers that the plug-in does not watch.

    Parameters
    ----------
    layers : dict
        vLLM's `static_forward_context`.

    Raises
    ------
    UsageError
        Another backend, or layers without keys and values of their own.
    """
    from vllm.platforms import current_platform

    from specbench.integrations.vllm.backend import SpecbenchImpl

    if not layers:
        raise UsageError("specbench inside vLLM: the model has no attention layers")
    for name, layer in layers.items():
        impl = getattr(layer, "impl", None)
        if not isinstance(impl, SpecbenchImpl):
            cure = "start vLLM with --attention-backend CUSTOM"
            if current_platform.is_cpu():
                cure = "a CUDA device is needed, vLLM for the CPU has one backend only"
            raise UsageError(f"specbench inside vLLM: {name} runs on {type(impl).__name__}: {cure}")
        if getattr(layer, "kv_sharing_target_layer_name", None):
            raise UsageError(f"specbench inside vLLM: {name} has no KV cache of its own")
