"""Compile kernels with numba, and give them a few instructions that numba does not have."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import config, njit, types
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("sb3_per needs numba's compiler, which NUMBA_DISABLE_JIT=1 switches off: unset it, or set it to 0")

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def kernel(function: _Kernel) -> _Kernel:
    """Compile a function at its first call, keep the machine code on disk, and release the GIL."""
    try:
        return cast(_Kernel, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no folder that can be written to: every process compiles
        return cast(_Kernel, njit(nogil=True)(function))


@cast(Callable[..., Callable[..., None]], intrinsic)
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """
    Start to load the cache line of an element, and do not wait for it. Call it in kernels: ``prefetch(array, index)``.

    It is a hint, not an access, so an index outside of the array does no harm. A loop that reads all over a large array has
    only a few loads under way at a time; a loop of prefetches before it starts many more.

    :param array: contiguous 1-D array
    :param index: unsigned position
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
        byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature_of_hint = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], signature_of_hint)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
        # To read; into the nearest cache; data, not instructions.
        builder.call(hint, [address, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate
