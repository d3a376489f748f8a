"""How kernels are compiled, and what they need that numba does not have. Knows nothing of trees or transitions."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def kernel(function: _Kernel) -> _Kernel:
    """Compile at the first call, keep the machine code on disk, release the GIL."""
    try:
        return cast(_Kernel, njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No folder for the machine code can be written to: compile in every process.
        return cast(_Kernel, njit(nogil=True)(function))


@cast(Callable[..., Callable[..., None]], intrinsic)
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """
    ``prefetch(array, index)``, in kernels: start to load the cache line of an element, and do not wait for it.

    A hint, never an access: an index outside of the array does no harm. Where a loop reads from all over a large array, the
    processor has a handful of loads under way at a time; with a loop of prefetches before it, many more.

    :param array: contiguous, 1-D
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
