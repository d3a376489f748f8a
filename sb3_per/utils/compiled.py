"""Compile kernels with numba, and give them a few instructions that numba does not have."""

import contextlib
import pickle
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import config, njit, types
from numba.core.caching import FunctionCache
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("sb3_per needs numba's compiler, which NUMBA_DISABLE_JIT=1 switches off: unset it, or set it to 0")

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


class _Cache(FunctionCache):
    """
    Keep machine code on disk, and continue without it if the disk is full or a file is damaged.

    With ``cache=True``, numba raises ``OSError`` on a full disk, even in the first call of a kernel.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        return self._tried("read", super().load_overload, sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        self._tried("write", super().save_overload, sig, data)

    def _tried(self, verb: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            warnings.warn(
                f"Cannot {verb} the machine code in {self.cache_path} ({type(error).__name__}: {error}). Every process "
                "compiles it anew, which takes seconds. Free some space, or set NUMBA_CACHE_DIR to another folder"
            )
            return None


def kernel(function: _Kernel) -> _Kernel:
    """Compile a function at its first call, keep the machine code on disk, and release the GIL."""
    compiled: Any = njit(nogil=True)(function)
    # Without a folder that can be written to, every process compiles.
    with contextlib.suppress(RuntimeError, OSError):
        compiled._cache = _Cache(function)  # `cache=True` does the same with numba's own class
    return cast(_Kernel, compiled)


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
