"""The entry point of the group ``vllm.general_plugins``, which every vLLM process calls."""

import logging

BACKEND = "specbench.integrations.vllm.backend.SpecbenchBackend"


def register() -> None:
    """Name the attention backend of ``--attention-backend CUSTOM``; imports nothing of it.

    vLLM calls this in all its processes, those that do not use specbench included, and would end
    with whatever it raises. So nothing leaves it: where vLLM cannot be told, the log says why, and
    ``--attention-backend CUSTOM`` ends in vLLM's own message.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    except Exception as error:  # the process's boundary
        logging.getLogger("vllm.specbench").warning(
            "specbench's backend is unknown here: %r", error
        )
