"""How kernels are compiled, and what they need that numba does not have. Knows nothing of trees or transitions."""

import functools
import pickle
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import config, njit, types
from numba.core.caching import FunctionCache
from numba.core.cgutils import create_struct_proxy, raw_memcpy
from numba.extending import intrinsic

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("sb3_per needs numba's compiler, which NUMBA_DISABLE_JIT=1 switches off: unset it, or set it to 0")

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


class _Cache(FunctionCache):
    """Machine code on disk. It saves time and nothing else, so a disk that is full or damaged does not stop a run."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._warn("read", error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._warn("write", error)

    def _warn(self, verb: str, error: Exception) -> None:
        warnings.warn(
            f"Cannot {verb} the machine code in {self.cache_path} ({type(error).__name__}: {error}): it is compiled in every "
            "process, which takes seconds. NUMBA_CACHE_DIR names another folder"
        )


def kernel(function: _Kernel) -> _Kernel:
    """Compile at the first call, keep the machine code on disk, release the GIL."""
    compiled: Any = njit(nogil=True)(function)
    try:
        compiled._cache = _Cache(function)  # what `cache=True` does, with numba's own class
    except (RuntimeError, OSError):
        pass  # No folder for the machine code can be written to: compile in every process.
    return cast(_Kernel, compiled)


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


@cast(Callable[..., Callable[..., None]], intrinsic)
def copy_from_address(typing_context: Any, array: Any, index: Any, address: Any, n_bytes: Any) -> Any:
    """
    ``copy_from_address(array, index, address, n_bytes)``, in kernels: ``array[index:] = `` the bytes at an address.

    For memory in several pieces, which a kernel cannot be given as arrays. Nothing is checked.

    :param array: contiguous, 1-D, uint8
    :param index: unsigned position
    :param address: of the first byte, uint64
    :param n_bytes: how many, uint64
    """
    return types.void(array, index, address, n_bytes), functools.partial(_copy, to_array=True)


@cast(Callable[..., Callable[..., None]], intrinsic)
def copy_to_address(typing_context: Any, array: Any, index: Any, address: Any, n_bytes: Any) -> Any:
    """``copy_to_address(array, index, address, n_bytes)``: the other direction of :func:`copy_from_address`."""
    return types.void(array, index, address, n_bytes), functools.partial(_copy, to_array=False)


def _copy(context: Any, builder: Any, signature: Any, arguments: Any, to_array: bool) -> Any:
    data = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
    in_array = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
    elsewhere = builder.inttoptr(arguments[2], ir.IntType(8).as_pointer())
    target, source = (in_array, elsewhere) if to_array else (elsewhere, in_array)
    raw_memcpy(builder, target, source, arguments[3], 1)
    return context.get_dummy_value()
