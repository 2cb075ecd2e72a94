"""Loop bounds in Triton's interpreter under NumPy 2.4."""

from typing import Any


def mend_loop_bounds() -> None:
    """Let a tensor bound a loop.

    The interpreter of Triton 3.6 holds scalars in arrays of one element, and NumPy 2.4 turns only
    arrays without dimensions into an int.
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
