"""The methods, by name."""

from typing import TYPE_CHECKING

from specbench.registry import Registry

if TYPE_CHECKING:
    from specbench.methods.base import Method

METHODS: "Registry[type[Method]]" = Registry("method", "specbench.methods")
METHODS.register_lazy("autoregressive", "specbench.methods.autoregressive:Autoregressive")
METHODS.register_lazy("longspec", "specbench.methods.longspec.method:LongSpec")
METHODS.register_lazy("lookup", "specbench.methods.lookup:Lookup")
METHODS.register_lazy("magicdec", "specbench.methods.magicdec.method:MagicDec")
METHODS.register_lazy("vegas", "specbench.methods.vegas:Vegas")
METHODS.register_lazy("vllm", "specbench.methods.vllm.method:Vllm")
