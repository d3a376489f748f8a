"""
The amount of Python work in `sample` and `update_priorities` does not depend on the batch size, and `add` spends little on the
steps that environments give.
"""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per.buffers import inputs
from tests.helpers.buffers import fill, make_buffer, normalizer, python_work
from tests.helpers.steps import KINDS, step_of


def test_python_work_counts_a_loop_over_the_batch():
    """The next test relies on this: one instruction or one call per row is counted."""
    loops = python_work(lambda: [i + 1 for i in range(10)]), python_work(lambda: [i + 1 for i in range(20)])
    assert loops[0][0] < loops[1][0]
    calls = python_work(lambda: list(map(abs, range(10)))), python_work(lambda: [abs(i) for i in range(20)])
    assert calls[0][1] < calls[1][1]


@pytest.mark.parametrize(
    "obs_space, normalize, kwargs",
    [
        ("box", False, dict(scheme="rank")),
        ("box", True, dict(recency=0.999, recency_min=30, scheme="lap")),
        ("image", False, dict(n_envs=3, frames=2)),
        ("dict", False, dict(n_steps=3, n_envs=2)),
        ("box", False, dict(optimize_memory_usage=True, handle_timeout_termination=False)),
    ],
)
def test_sample_and_update_run_no_python_loop_over_the_batch(obs_space, normalize, kwargs):
    """Every batch size takes the same number of Python instructions and calls."""
    buffer = make_buffer(n_rows=50, obs_space=obs_space, **kwargs)
    fill([buffer], 60)
    env = normalizer(buffer.observation_space, buffer.action_space) if normalize else None
    work = []
    for batch_size in (2, 20, 2, 200):  # the first batch size also compiles the kernels, so it is not compared
        td_errors = th.randn(batch_size, 2)

        def cycle(batch_size=batch_size, td_errors=td_errors) -> None:
            buffer.update_priorities(buffer.sample(batch_size, env=env).indices, td_errors)

        cycle()
        # A kernel that few batches need may be loaded in one of the cycles; a loop over the batch is in all.
        work.append(min(python_work(cycle) for _ in range(3)))
    assert work[1] == work[2] == work[3]


@pytest.mark.parametrize("kind", ["discrete", "optimize_memory", "frames", "her, infos", "sequences"])
def test_steps_of_environments_take_the_short_check_alone(kind, monkeypatch):
    """A discrete action comes without its last axis, and a flag may be NumPy's."""
    buffer = KINDS[kind]()
    step: dict[str, Any] = step_of(buffer)
    step["infos"][1]["TimeLimit.truncated"] = np.True_
    forms = [step, {**step, "action": step["action"].reshape(-1)}]
    monkeypatch.setattr(inputs, "checked_step", None)
    for form in forms:
        buffer.add(**form)
    assert buffer.size() == len(forms)
