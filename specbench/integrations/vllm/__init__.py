"""Vegas and MagicDec's `stream` as a plug-in of stock vLLM (docs/vllm.md)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench.integrations.vllm.proposer import VegasProposer

__all__ = ["VegasProposer"]


def __getattr__(name: str) -> Any:
    """The proposer that ``--speculative-config`` names, imported when vLLM asks for it."""
    if name == "VegasProposer":
        from specbench.integrations.vllm.proposer import VegasProposer

        return VegasProposer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
