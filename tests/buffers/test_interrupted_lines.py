"""
A ``KeyboardInterrupt`` at any line of this package or of SB3's buffers leaves a buffer that works:

- each transition that SB3's attributes name has a mass, and no other slot has one: no row is lost from the draw
- a transition that an interrupted call has written has the mass of a new one, never that of the row that it overwrote
- all other masses are what they were
- more than a lap of further steps, draws and updates works
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_per import PrioritizedHerReplayBuffer
from tests.helpers.buffers import batch_of, counting_env, make_buffer
from tests.helpers.interrupts import interrupted_at_line

pytestmark = pytest.mark.filterwarnings("ignore")

N_ROWS, N_ENVS = 7, 2
KINDS = ("plain", "memory", "dict", "her")


def make(kind: str) -> Any:
    """Make an empty buffer."""
    settings: dict[str, Any] = dict(initial_priority="td_error")
    if kind == "her":
        env = counting_env(N_ENVS, goals=True)
        arguments = (N_ROWS * N_ENVS, env.observation_space, env.action_space, env, "cpu", N_ENVS)
        return PrioritizedHerReplayBuffer(*arguments, n_sampled_goal=3, **settings)
    if kind == "memory":
        settings.update(optimize_memory_usage=True, handle_timeout_termination=False)
    return make_buffer(N_ROWS, N_ENVS, "dict" if kind == "dict" else "box", **settings)


def step_of(buffer: Any, number: int) -> tuple[Any, ...]:
    """Make a step whose rewards are its number. Every third step ends an episode of one environment, or of both."""
    space = buffer.observation_space if hasattr(buffer, "ep_length") else copy.deepcopy(buffer.observation_space)
    space.seed(number)
    done = np.array([number % 3 == 2, number % 6 == 5], float)
    action = np.zeros((N_ENVS, buffer.action_dim), buffer.actions.dtype)
    return batch_of(space, N_ENVS), batch_of(space, N_ENVS), action, np.full(N_ENVS, float(number)), done, [{}] * N_ENVS


def copied(buffer: Any) -> Any:
    twin = copy.deepcopy(buffer)
    if hasattr(buffer, "env"):
        twin.set_env(buffer.env)
    return twin


def drawable(buffer: Any) -> np.ndarray:
    """Tell which slots can be drawn, by SB3's own attributes."""
    if hasattr(buffer, "ep_length"):
        return np.asarray(buffer.ep_length > 0)
    can = np.zeros((N_ROWS, N_ENVS), bool)
    can[: buffer.size()] = True
    if buffer.optimize_memory_usage and buffer.full:
        can[buffer.pos] = False
    return can


def check(before: Any, after: Any, name: str) -> None:
    """Compare a buffer with the same one before the interrupted call."""
    masses, old_masses = after.masses, before.masses
    ids, old_ids = after.transition_ids, before.transition_ids
    np.testing.assert_array_equal(masses > 0, drawable(after))
    is_new = (masses > 0) & ((ids != old_ids) | (old_masses == 0))
    is_allowed = masses == after.scheme.new_mass(after.max_priority)
    if name == "add with TD errors":
        is_allowed |= np.isclose(masses, (0.25 + 1e-6) ** 0.6)
    assert is_allowed[is_new].all()
    if name not in ("update", "reset"):  # where `reset` has begun, all transitions may be new
        stayed = (masses > 0) & ~is_new
        np.testing.assert_array_equal(masses[stayed], old_masses[stayed])
    held = ids[ids >= 0]
    assert len(np.unique(held)) == len(held)


def go_on(buffer: Any, number: int) -> None:
    """Use the buffer for more than a lap."""
    for i in range(N_ROWS + 3):
        buffer.add(*step_of(buffer, number + i))
        if i % 3 == 0 and (buffer.masses > 0).any():
            batch = buffer.sample(4)
            assert buffer.update_priorities(batch.indices, np.full(4, 0.5)) == 4
            if not hasattr(buffer, "ep_length"):
                np.testing.assert_array_equal(buffer.rewards.ravel()[batch.indices % (N_ROWS * N_ENVS)], batch.rewards[:, 0])
    np.testing.assert_array_equal(buffer.masses > 0, drawable(buffer))
    assert buffer.full


def past(kind: str, n_steps: int) -> Any:
    """Make a buffer with steps, draws and updates."""
    buffer = make(kind)
    for i in range(n_steps):
        buffer.add(*step_of(buffer, i))
        if i % 4 == 3 and (buffer.masses > 0).any():
            buffer.update_priorities(buffer.sample(6).indices, np.arange(6) + 0.5)
    return buffer


def calls_of(buffer: Any, n_steps: int) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """List buffers, and calls that are interrupted."""
    waits = copied(buffer)
    waits.add(*step_of(buffer, n_steps))  # a row waits for its mass
    ids = copied(buffer).sample(5).indices if (buffer.masses > 0).any() else np.empty(0, np.int64)
    steps = [list(part) for part in zip(*(step_of(buffer, n_steps + i) for i in range(2)), strict=True)]
    errors = np.full(N_ENVS, 0.25)
    return {
        "add": (buffer, lambda b: b.add(*step_of(b, n_steps))),
        "add with TD errors": (buffer, lambda b: b.add(*step_of(b, n_steps), td_errors=errors)),
        "add after add": (waits, lambda b: b.add(*step_of(b, n_steps + 1))),
        "extend": (buffer, lambda b: b.extend(*copy.deepcopy(steps))),
        "sample": (waits, lambda b: b.sample(5)),
        "update": (waits, lambda b: b.update_priorities(ids, np.full(len(ids), 0.5))),
        "reset": (buffer, lambda b: b.reset()),
    }


def assert_safe(kind: str, n_steps: int, names: tuple[str, ...], every: int) -> None:
    """
    Interrupt calls.

    :param n_steps: number of steps before
    :param names: of the calls
    :param every: stride of the lines at which they are interrupted
    """
    buffer = past(kind, n_steps)
    calls = calls_of(buffer, n_steps)
    for name in names:
        start, call = calls[name]
        for line in itertools.count(0, every):
            tried, reference = copied(start), copied(start)
            if not interrupted_at_line(lambda: call(tried), line):  # noqa: B023 - called at once
                break
            check(reference, tried, name)
            go_on(tried, n_steps)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_in_add_leaves_a_buffer_that_works(kind):
    """At every third line, where the first lap ends and in a full buffer."""
    for n_steps in (6, 16):
        assert_safe(kind, n_steps, ("add",), every=3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_in_a_draw_or_an_update_leaves_a_buffer_that_works(kind):
    assert_safe(kind, 16, ("sample", "update", "reset"), every=9)


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [6, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_line_leaves_a_buffer_that_works(kind, n_steps):
    names = ("add", "add with TD errors", "add after add", "extend", "sample", "update", "reset")
    assert_safe(kind, n_steps, names, every=1)
