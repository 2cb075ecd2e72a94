"""Triton's interpreter, mended: bfloat16 as hardware has it, loaded loop bounds, cheap calls."""

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
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
    launch, patch_all = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched: set[Any] = set()
    patches: dict[Any, list[tuple[Any, str, Any]]] = {}

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(self, *args, **kwargs)

    @cache
    def languages(fn: Any) -> frozenset[Any]:
        return frozenset(x for x in fn.__globals__.values() if x is tl or x is tl.core)

    def patch(fn: Any) -> Any:
        found = languages(fn)
        if found not in patches:
            scope = patch_all(fn)
            patches[found] = [(x, name, getattr(x, name)) for x, name, _ in scope._changes]
            return scope
        scope = interpreter._LangPatchScope()
        for x, name, value in patches[found]:
            scope.set_attr(x, name, value)
        return scope

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not patched.issuperset(languages(self.fn)):
            patch(self.fn)
            patched.update(languages(self.fn))
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter._patch_lang = patch
    interpreter.GridExecutor.__call__ = first
    interpreter.InterpretedFunction.__call__ = call


def mend_types() -> None:
    """Describe each type of block once, and leave out what has no effect: half of a launch.

    The interpreter of Triton 3.6 builds the shape and the name of every result anew, and looks
    for integers that overflow in each sum and product, whose verdict it drops unless it debugs.
    """
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
    find_type, unwrap = interpreter._get_np_dtype, core._unwrap_if_constexpr
    types: dict[str, Any] = {}

    def numpy_type(of: Any) -> Any:
        if of.name not in types:
            types[of.name] = find_type(of)
        return types[of.name]

    def value_of(x: Any) -> Any:
        kind = x.__class__
        if kind is core.constexpr:
            return x.value
        return x if kind is int or kind is core.tensor else unwrap(x)

    def same(self: Any, other: Any) -> bool:
        if self is other:
            return True
        other = value_of(other)
        return isinstance(other, core.dtype) and self.name == other.name

    interpreter._get_np_dtype = numpy_type
    core._unwrap_if_constexpr = value_of
    core.dtype.__eq__ = same
    _mend_blocks()


def _mend_blocks() -> None:
    describe = core.block_type.__init__
    blocks: dict[Any, Any] = {}
    constants: dict[Any, Any] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([x.value if x.__class__ is core.constexpr else x for x in shape])
        key = element_ty.name, sizes
        known = blocks.get(key) if set(map(type, sizes)) == {int} else None
        if known is None:
            describe(self, element_ty, shape)
            self.sizes = sizes
            blocks[key] = self
        else:
            self.__dict__.update(known.__dict__)
            self.element_ty = element_ty

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        known = None if scalar_ty.is_ptr() else blocks.get((scalar_ty.name, self.sizes))
        return core.block_type(scalar_ty, self.shape) if known is None else known

    def tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = type.sizes if type.is_block() else ()
        if sizes not in constants:
            shape = core.tuple([core.constexpr(x) for x in sizes])
            constants[sizes] = shape, core.constexpr(prod(sizes))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = constants[sizes]

    core.block_type.__init__ = block_type
    core.block_type.with_element_ty = with_element_ty
    core.tensor.__init__ = tensor


def _widen(bits: Any) -> Any:
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _narrow(values: Any) -> Any:
    values = np.ascontiguousarray(values)
    bits = values.view(np.uint32)
    rounded = (bits + _HALF + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # adding to a NaN's bits could overflow them: a quiet NaN instead
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
