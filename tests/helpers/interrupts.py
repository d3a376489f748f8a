"""Interrupt a call at any of the places where Python looks for signals."""

import dis
import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import stable_baselines3

import sb3_per

_PACKAGE = str(Path(sb3_per.__file__).parent)
_SB3 = str(Path(stable_baselines3.__file__).parent)


@functools.cache
def _places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which a signal may be handled: after a call, and at the start of the next round."""
    places, is_next = set(), False
    for instruction in dis.get_instructions(code):
        if is_next:
            places.add(instruction.offset)
        is_next = instruction.opname.startswith(("CALL", "JUMP_BACKWARD"))
    return frozenset(places)


def interrupted(call: Callable[[], Any], number: int | None = None) -> int:
    """
    Call a function, and raise a ``KeyboardInterrupt`` at one place in the code of this package, where Ctrl-C could do it.

    :param call: function
    :param number: of the place, in the order in which they are passed; ``None``: nothing is raised
    :return: number of places that were passed
    """
    n_passed = 0

    def pass_place() -> None:
        nonlocal n_passed
        n_passed += 1
        if n_passed - 1 == number:
            raise KeyboardInterrupt

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            pass_place()
        elif event == "opcode" and frame.f_lasti in _places(frame.f_code):
            pass_place()
        return trace

    before = sys.gettrace()
    gc.disable()  # finalizers of other objects are no places of this call
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        gc.enable()
    return n_passed


def interrupted_at_line(call: Callable[[], Any], number: int) -> bool:
    """
    Call a function, and raise a ``KeyboardInterrupt`` at one line of the code of this package or of Stable-Baselines3.

    :param call: function
    :param number: of the line, in the order in which they are passed
    :return: whether there is such a line
    """
    n_passed = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal n_passed
        if not frame.f_code.co_filename.startswith((_PACKAGE, _SB3)):
            return None
        if event == "line":
            n_passed += 1
            if n_passed - 1 == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
