"""What `sample` and `update_priorities` do in Python does not depend on the size of the batch."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch as th

from tests.utils import fill, make_buffer, normalizer


def python_work(function: Callable[[], Any]) -> tuple[int, int]:
    """Python instructions that a call executes, and functions that it calls, compiled ones too."""
    n_instructions = n_calls = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal n_instructions
        frame.f_trace_opcodes = True
        n_instructions += event == "opcode"
        return trace

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    previous = sys.gettrace(), sys.getprofile()
    gc.disable()  # finalizers of what other tests have left behind
    try:
        sys.settrace(trace)
        function()
        sys.settrace(previous[0])
        sys.setprofile(profile)
        function()
    finally:
        gc.enable()
        sys.settrace(previous[0])
        sys.setprofile(previous[1])
    return n_instructions, n_calls


def test_python_work_is_seen():
    """What the next test relies on: a pass over the batch in Python, or one call for each row, is counted."""
    loops = python_work(lambda: [i + 1 for i in range(10)]), python_work(lambda: [i + 1 for i in range(20)])
    assert loops[0][0] < loops[1][0]
    calls = python_work(lambda: list(map(abs, range(10)))), python_work(lambda: [abs(i) for i in range(20)])
    assert calls[0][1] < calls[1][1]


@pytest.mark.parametrize("scheme", ["proportional", "rank", "lap", "pal", "uniform"])
@pytest.mark.parametrize(
    "obs_space, normalize, kwargs",
    [
        ("box", False, {}),
        ("box", True, {}),
        ("image", False, dict(n_envs=3)),
        ("image", False, dict(n_envs=3, frames=2)),
        ("dict", False, {}),
        ("box", False, dict(n_steps=3)),
        ("dict", False, dict(n_steps=3, n_envs=2)),
        ("box", False, dict(optimize_memory_usage=True, handle_timeout_termination=False)),
    ],
)
def test_no_python_pass_over_the_batch(scheme, obs_space, normalize, kwargs):
    """Whatever the batch size, `sample` and `update_priorities` execute the same Python instructions and calls."""
    buffer = make_buffer(n_rows=50, obs_space=obs_space, scheme=scheme, **kwargs)
    fill([buffer], 60)
    env = normalizer(buffer.observation_space, buffer.action_space) if normalize else None
    work = []
    for batch_size in (2, 20, 2, 200):  # the first round compiles
        td_errors = th.randn(batch_size, 2)

        def cycle(batch_size=batch_size, td_errors=td_errors) -> None:
            buffer.update_priorities(buffer.sample(batch_size, env=env).indices, td_errors)

        cycle()
        work.append(python_work(cycle))
    assert work[1] == work[2] == work[3]
