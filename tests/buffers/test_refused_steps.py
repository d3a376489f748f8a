"""For every kind of buffer, a refused step changes nothing, and a step that SB3 accepts is accepted."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_per import (
    PrioritizedReplayBuffer,
    Proportional,
)
from tests.helpers.buffers import make_buffer, stock_like
from tests.helpers.steps import BOX, KINDS, N_ENVS, N_ROWS, OPTIMIZE_MEMORY, filled, make, step_of


def wrong_values(buffer: Any, kind: str) -> list[tuple[str, Any]]:
    """Make several wrong values of every argument."""
    good = step_of(buffer)
    wrong: list[tuple[str, Any]] = []
    for name in ("obs", "next_obs"):
        if isinstance(good[name], dict):
            for key, part in good[name].items():
                wrong += [(name, {**good[name], key: value}) for value in wrong_arrays(part)]
                wrong.append((name, {other: value for other, value in good[name].items() if other != key}))
            wrong += [(name, np.zeros((N_ENVS, 3))), (name, None)]
        else:
            wrong += [(name, value) for value in [*wrong_arrays(good[name]), {"image": good[name]}]]
    for name in ("action", "reward", "done"):
        wrong += [(name, value) for value in wrong_arrays(good[name])]
    wrong += [("reward", value) for value in rewards_that_are_not_finite()]
    if "optimize_memory" not in kind and "without" not in kind:
        wrong += [("infos", value) for value in (good["infos"][:0], [{}] * 3, [None, {}], [{}, 5], None, 5)]
        wrong += [("infos", [{"TimeLimit.truncated": value}, {}]) for value in ("no", None)]
        wrong.append(("infos", [{"TimeLimit.truncated": np.zeros(2)}, {}]))
    if "her, infos" in kind:
        wrong += [("infos", value) for value in ([{}] * 3, [{}, None])]
    wrong += [("td_errors", value) for value in (np.ones(3), np.ones((2, 0)), [np.nan, 1.0], [1.0, np.inf], ["a", "b"], 1.0)]
    if "sequences" in kind:
        wrong += [("episode_starts", np.zeros(3, bool)), ("states", [np.zeros((1, N_ENVS, 4))]), ("states", [])]
        wrong.append(("states", [np.full((1, N_ENVS, 3), "a")]))
        wrong.append(("states", [th.zeros((1, N_ENVS, 3), dtype=th.complex64)]))
    return wrong


def rewards_that_are_not_finite() -> list[Any]:
    """The last one is finite, but not as the float32 that is stored; the sum of the two before is none."""
    rewards = [[np.nan, 1.0], [1.0, np.inf], [-np.inf, np.inf], [1e300, -1e39]]
    return [*map(np.array, rewards), np.array([0.0, np.nan], np.float16), *rewards, [[-np.inf], [0.0]]]


def wrong_arrays(good: np.ndarray) -> list[Any]:
    shaped = [np.zeros((5, *good.shape[1:])), np.zeros((*good.shape, 7)), np.zeros(0)]
    return [
        *shaped,
        np.full(good.shape, "a"),
        np.full(good.shape, {}),
        np.full(good.shape, None),
        object(),
        "a",
        [[1], [1, 2]],
    ]


#: Every way in which a step is checked and stored; the other kinds combine them.
CHECKED = (
    "td errors",
    "discrete",
    "optimize_memory",
    "dict, frames",
    "her, infos",
    "her, infos without timeouts",
    "sequences, dict",
)


@pytest.mark.parametrize("kind", CHECKED)
def test_a_refused_add_changes_nothing(kind):
    buffer = filled(kind, 6 if "dict" in kind else 9)
    before = pickle.dumps(buffer)
    for name, value in wrong_values(buffer, kind):
        with pytest.raises(ValueError, match=name):
            buffer.add(**{**step_of(buffer), name: value})
        assert pickle.dumps(buffer) == before, (name, value)
    good = step_of(buffer, 3)
    steps = {name: [part, part] for name, part in good.items()}
    for name, value in wrong_values(buffer, kind):
        if name not in good:
            continue
        with pytest.raises((ValueError, TypeError)):
            buffer.extend(**{**steps, name: [good[name], value]})
        assert pickle.dumps(buffer) == before, (name, value)
    buffer.add(**good)


def test_every_finite_reward_is_stored():
    """Sums and squares of large rewards may be infinite; the rewards are not."""
    largest = float(np.finfo(np.float32).max)
    for n_envs, dtype, most in (
        (1, np.float16, 65504.0),
        (40, np.float32, largest),
        (2, np.float64, largest),
        (40, np.int64, 2**63 - 1),
        (2, np.bool_, 1),
    ):
        buffer = make_buffer(3, n_envs, "discrete", "discrete")
        zeros = np.zeros((n_envs, 1), np.int64)
        for reward in (most, -most, 0, 1):
            rewards = np.full(n_envs, reward).astype(dtype)
            buffer.add(zeros, zeros, zeros, rewards, np.zeros(n_envs), [{}] * n_envs)
            np.testing.assert_array_equal(buffer.rewards[buffer.pos - 1], rewards.astype(np.float32))


def test_a_reward_that_is_not_finite_is_named():
    """One environment and many, where the check takes different ways."""
    for n_envs, env, wrong in ((1, 0, np.nan), (2, 1, np.inf), (40, 17, -np.inf), (40, 39, 1e39)):
        buffer = make_buffer(3, n_envs)
        zeros, rewards = np.zeros((n_envs, 3)), np.zeros(n_envs)
        rewards[env] = wrong
        with pytest.raises(ValueError, match=rf"reward\[{env}\] must be a finite number, not {re.escape(str(wrong))}"):
            buffer.add(zeros, zeros, zeros[:, :2], rewards, np.zeros(n_envs), [{}] * n_envs)
        assert buffer.size() == 0


def test_demonstrations_with_rewards_that_are_not_finite_are_refused():
    """Those of another buffer too: SB3's stores any reward."""
    for bad in rewards_that_are_not_finite()[:4]:
        buffer, stock = filled("plain"), stock_like(filled("plain"))
        steps = {name: [part] * 3 for name, part in step_of(buffer).items()}
        with np.errstate(over="ignore"):
            stock.add(**{**step_of(buffer), "reward": bad})
        before = pickle.dumps(buffer)
        for demonstrate in (
            lambda buffer=buffer, steps=steps, bad=bad: buffer.add_demonstrations(
                **{**steps, "reward": [steps["reward"][0], bad, bad]}
            ),
            lambda buffer=buffer, stock=stock: buffer.add_demonstrations_from(stock),
        ):
            with pytest.raises(ValueError, match=r"rewards\[\d, \d\] must be a finite number"):
                demonstrate()
            assert pickle.dumps(buffer) == before
        stock.rewards[0] = 1.0
        buffer.add_demonstrations_from(stock)


@pytest.mark.parametrize("kind, method", [("dict", "add_demonstrations"), ("her", "extend")])
def test_extend_and_add_demonstrations_need_one_entry_per_step(kind, method):
    """NumPy would silently repeat a single entry."""
    buffer = filled(kind)
    steps = {name: [part] * 3 for name, part in step_of(buffer).items()}
    before = pickle.dumps(buffer)
    for name, part in steps.items():
        with pytest.raises(ValueError, match=name):
            getattr(buffer, method)(**{**steps, name: part[:1]})
        assert pickle.dumps(buffer) == before, name
    getattr(buffer, method)(**steps)


def test_a_step_whose_mass_is_not_finite_is_refused():
    """A user's scheme may return NaN; without this check, every later draw would fail."""

    class Wild(Proportional):
        def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
            return np.where(abs_td_errors > 1.0, np.nan, 1.0)

    buffer = make(PrioritizedReplayBuffer, BOX, scheme=Wild(), initial_priority="td_error")()
    with pytest.raises(ValueError, match="nan"):
        buffer.add(**step_of(buffer), td_errors=np.full(N_ENVS, 2.0))
    assert buffer.size() == 0


# ---- steps that SB3 accepts

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4).map(tuple)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.bool_, object, "U3"])
ARRAYS = st.builds(lambda shape, dtype: np.ones(shape, dtype), SHAPES, DTYPES)


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["discrete", "optimize_memory", "dict, frames", "sequences"])
def test_steps_that_sb3_accepts_are_stored_as_in_sb3(kind, data):
    """Our buffers store every shape and type that SB3 broadcasts or reshapes, with the same result."""
    buffer = KINDS[kind]()
    kwargs = OPTIMIZE_MEMORY if kind == "optimize_memory" else {}
    arguments = (N_ROWS * N_ENVS, buffer.observation_space, buffer.action_space, "cpu", N_ENVS)
    stock = (DictReplayBuffer if "dict" in kind else ReplayBuffer)(*arguments, **kwargs)
    step = step_of(buffer)
    name = data.draw(st.sampled_from(["obs", "next_obs", "action", "reward", "done"]))
    value = data.draw(ARRAYS)
    if isinstance(step[name], dict):
        key = data.draw(st.sampled_from(["image", "num"]))
        step[name] = {**step[name], key: value, "more": None}
    else:
        step[name] = value
    try:
        stock.add(**{key: dict(part) if isinstance(part, dict) else part for key, part in step.items()})
    except (ValueError, TypeError):
        try:
            buffer.add(**step)  # our buffers accept more forms than SB3, such as one number for all environments
        except ValueError as error:
            assert name in str(error)
        return
    buffer.add(**step)
    for array in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        expected = getattr(stock, array, None)
        if expected is not None:
            actual = getattr(buffer, array)
            for key in expected if isinstance(expected, dict) else [...]:
                np.testing.assert_array_equal(np.asarray(actual[key]), expected[key])


@pytest.mark.parametrize("kind", ["dict, frames", "her, infos", "sequences, dict"])
def test_all_forms_of_a_step_are_stored_alike(kind):
    """Lists, tensors, numbers, tuples and iterators are stored like the equivalent arrays."""
    plain, other = filled(kind), filled(kind)
    for i in range(3):
        step = step_of(plain, i)
        step["reward"], step["done"] = np.full(N_ENVS, 2.0), np.full(N_ENVS, i == 1)
        step["infos"] = [{"TimeLimit.truncated": i == 1}] * N_ENVS
        as_list = {name: each if isinstance(each, dict) else each.tolist() for name, each in step.items() if name != "infos"}
        forms = [
            dict(as_list, infos=tuple(step["infos"])),
            dict(step, reward=2.0, done=i == 1, infos=step["infos"] if "without" in kind else iter(step["infos"])),
            dict(step, reward=th.full((N_ENVS,), 2.0), done=[i == 1], infos=step["infos"][:1]),
        ]
        plain.add(**step)
        other.add(**forms[i])
    for actual, expected in zip(vars(other).values(), vars(plain).values(), strict=True):
        if isinstance(expected, np.ndarray) and expected.dtype != object:
            np.testing.assert_array_equal(actual, expected)
    for buffer in (plain, other):
        np.random.seed(0)
        buffer.batch = buffer.sample(6)
    np.testing.assert_array_equal(other.batch.indices, plain.batch.indices)
    for name in ("observations", "rewards", "actions", "dones") + ("next_observations",) * ("sequences" not in kind):
        for actual, expected in zip(*(parts_of(getattr(each.batch, name)) for each in (other, plain)), strict=True):
            assert th.equal(actual, expected), name


def test_add_neither_changes_nor_keeps_the_arrays_of_the_caller():
    for kind in ("plain", "discrete", "frames", "dict", "dict, frames", "optimize_memory", "her"):
        buffer, twin = filled(kind), filled(kind)
        first, second = step_of(buffer, 1), step_of(buffer, 2)
        twin.add(**pickle.loads(pickle.dumps(first)))
        before = pickle.dumps(first)
        buffer.add(**first)
        assert pickle.dumps(first) == before
        for array in [first["action"], first["reward"], *(v for n in ("obs", "next_obs") for v in parts_of(first[n]))]:
            array[...] = 0
        for each in (twin, buffer):
            each.add(**second)
            np.random.seed(0)
            each.batch = each.sample(20)
        np.testing.assert_array_equal(buffer.batch.indices, twin.batch.indices)
        for name in ("observations", "next_observations", "rewards", "actions"):
            for actual, expected in zip(*(parts_of(getattr(each.batch, name)) for each in (buffer, twin)), strict=True):
                assert th.equal(actual, expected), (kind, name)


def parts_of(obs: Any) -> list[Any]:
    return list(obs.values()) if isinstance(obs, dict) else [obs]
