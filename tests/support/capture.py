"""Whether code could be captured as a CUDA graph, as far as a CPU can tell."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# what reads a value on the host, or has a shape that depends on values
_FORBIDDEN = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
}


class _Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in _FORBIDDEN:
            raise AssertionError(f"{op} waits for the host")
        # an index that is a mask has as many entries as it has ones
        if op in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), f"{op} with a mask"
        return op(*args, **(kwargs or {}))


@contextmanager
def no_host_decisions() -> Iterator[None]:
    """Fail where a tensor's values are read by the host or decide a shape."""
    # no operation of its own
    tolist = torch.Tensor.tolist
    torch.Tensor.tolist = _refuse  # type: ignore[method-assign]
    try:
        with torch.inference_mode(False), torch.no_grad(), _Refuse():
            yield
    finally:
        torch.Tensor.tolist = tolist  # type: ignore[method-assign]


def _refuse(tensor: torch.Tensor) -> None:
    raise AssertionError("tolist waits for the host")
