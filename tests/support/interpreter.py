"""Triton's interpreter, mended: bfloat16 as hardware has it, loaded loop bounds, cheap calls."""

from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_HALF = np.uint32(0x7FFF)


def mend_bfloat16() -> None:
    """Round to nearest even in casts, and multiply values in `tl.dot`.

    The interpreter of Triton 3.6 keeps bfloat16 as its 16 bits: casts truncate, and `tl.dot`
    multiplies the bits as integers.
    """
    original_cast, original_dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == tl.bfloat16 and target == tl.float32:
            return TensorHandle(_widen(src.data), target)
        if source == tl.float32 and target == tl.bfloat16:
            return TensorHandle(_narrow(src.data), target)
        return original_cast(self, src, dst_type)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        a, b = (
            TensorHandle(_widen(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x
            for x in (a, b)
        )
        return original_dot(self, a, b, *others)

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_dot = create_dot


def mend_loops() -> None:
    """Let a loop end at a number that the kernel has loaded or computed.

    The interpreter of Triton 3.6 turns it into an index by a conversion of arrays of one element
    that numpy 2.4 has removed (triton-lang/triton issue 9171).
    """
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def mend_calls() -> None:
    """Patch the language once a launch, not again in each call of a device function.

    The interpreter of Triton 3.6 spends a quarter of a launch on it.
    """
    launch, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched: set[Any] = set()

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(self, *args, **kwargs)

    @cache
    def languages(fn: Any) -> frozenset[Any]:
        return frozenset(x for x in fn.__globals__.values() if x is tl or x is tl.core)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not patched.issuperset(languages(self.fn)):
            patch(self.fn)
            patched.update(languages(self.fn))
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.GridExecutor.__call__ = first
    interpreter.InterpretedFunction.__call__ = call


def _widen(bits: Any) -> Any:
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _narrow(values: Any) -> Any:
    values = np.ascontiguousarray(values)
    bits = values.view(np.uint32)
    rounded = (bits + _HALF + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # adding to a NaN's bits could overflow them: a quiet NaN instead
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
