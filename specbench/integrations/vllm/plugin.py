"""The entry point of the group ``vllm.general_plugins``, which every vLLM process calls."""

BACKEND = "specbench.integrations.vllm.backend.SpecbenchBackend"


def register() -> None:
    """Name the attention backend of ``--attention-backend CUSTOM``; imports nothing of it.

    vLLM calls this in all its processes, those that do not use specbench included, and an
    exception would end them: a vLLM without this registry is left alone. Asked to speculate, the
    proposer then says what is wrong.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    except (ImportError, AttributeError, TypeError):
        return
