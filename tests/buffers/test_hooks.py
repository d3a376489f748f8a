"""A method of SB3's buffers that a user's class overrides is called as SB3 calls it."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per import PERDQN, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers import PrioritizedSequenceReplayBuffer
from sb3_per.buffers.slots import map_arrays
from tests.helpers.actors import local
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same_batches,
    batch_of,
    counting_env,
    fill,
    filled_buffer,
    make_buffer,
    normalizer,
)
from tests.helpers.demonstrations import demonstrations

pytestmark = [
    pytest.mark.filterwarnings("ignore:The newest episodes"),
    pytest.mark.filterwarnings("ignore:The loaded buffer has other settings"),
]

#: Methods of SB3's buffers that a class may override.
CALLED = (
    *("_get_samples", "_maybe_cast_dtype", "_normalize_obs", "_normalize_reward", "add", "extend", "reset", "sample", "size"),
    *("swap_and_flatten", "to_torch"),
)
CALLED_WITH_HINDSIGHT = (
    *("_compute_episode_length", "_get_real_samples", "_get_virtual_samples", "_sample_goals", "set_env"),
    "truncate_last_trajectory",
)


# ---- methods that are called


def scaled(factor: float, original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: map_arrays(lambda part: part * np.float32(factor), original(*args, **kwargs))


def with_larger_rewards(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda obs, next_obs, action, reward, done, infos: original(obs, next_obs, action, reward * 2 + 1, done, infos)


def with_extended_rewards(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda obs, next_obs, action, reward, *rest: original(obs, next_obs, action, [each + 5 for each in reward], *rest)


def with_other_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def sample(*args: Any, **kwargs: Any) -> Any:
        batch = original(*args, **kwargs)
        return batch._replace(rewards=batch.rewards * 3)

    return sample


#: What a user makes of each method: a function of the original.
CHANGES: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "_compute_episode_length": lambda original: lambda env_idx: original(env_idx),
    "_get_real_samples": with_other_batch,
    "_get_samples": with_other_batch,
    "_get_virtual_samples": with_other_batch,
    "_maybe_cast_dtype": lambda original: lambda dtype: np.float16,
    "_normalize_obs": lambda original: scaled(3.0, original),
    "_normalize_reward": lambda original: scaled(0.5, original),
    "_sample_goals": lambda original: lambda rows, envs: original(rows, envs) * 0 + np.float32(rows * 10 + envs)[:, None],
    "add": with_larger_rewards,
    "extend": with_extended_rewards,
    "reset": lambda original: lambda: original(),
    "sample": with_other_batch,
    "set_env": lambda original: lambda env: original(env),
    "size": lambda original: lambda: original() * 100,
    "swap_and_flatten": lambda original: lambda array: original(array) + 1,
    "to_torch": lambda original: lambda array, copy=True: original(array, copy).double(),
    "truncate_last_trajectory": lambda original: lambda: original(),
}

BOX, IMAGE = OBSERVATION_SPACES["box"], OBSERVATION_SPACES["image"]
SPACES = {"box": BOX, "dict": spaces.Dict({"vector": BOX, "image": IMAGE})}

PAIRS: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
    "plain": (ReplayBuffer, PrioritizedReplayBuffer, "box", {}),
    "dict": (DictReplayBuffer, PrioritizedDictReplayBuffer, "dict", {}),
    "n steps": (NStepReplayBuffer, PrioritizedReplayBuffer, "box", dict(n_steps=3, gamma=0.9)),
    "her": (HerReplayBuffer, PrioritizedHerReplayBuffer, "her", {}),
}


def with_mixin(cls: type, name: str, calls: list[str]) -> type:
    """A class whose mixin, left of the buffer, overrides one method."""

    class Mixin:
        pass

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return CHANGES[name](getattr(super(Mixin, self), name))(*args, **kwargs)

    setattr(Mixin, name, method)
    return type("Mine", (Mixin, cls), {})


def set_on_object(buffer: Any, name: str, calls: list[str]) -> None:
    changed = CHANGES[name](getattr(buffer, name))

    def method(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return changed(*args, **kwargs)

    setattr(buffer, name, method)


def use(cls: type, obs_space: str, name: str, on_object: bool, **kwargs: Any) -> tuple[list[Any], list[str]]:
    """Use a buffer with one changed method in all ways that SB3 has; list what it returned, and the calls of the method."""
    calls: list[str] = []
    env = counting_env(goals=True) if obs_space == "her" else None
    space = SPACES[obs_space] if env is None else env.observation_space
    action_space = ACTION_SPACES["box64"] if env is None else env.action_space
    buffer_class: Any = cls if on_object else with_mixin(cls, name, calls)
    own = {} if env is None else dict(env=env)
    buffer = buffer_class(20, space, action_space, device="cpu", n_envs=2, **own, **kwargs)
    if on_object:
        set_on_object(buffer, name, calls)
    fill([buffer], 8, p_end=0.4)
    obs = [batch_of(space, 2) for _ in range(3)]
    actions = np.stack([batch_of(action_space, 2) for _ in range(3)])
    buffer.extend(obs, obs, actions, np.ones((3, 2)), np.ones((3, 2)), [[{}, {}]] * 3)
    returned: list[Any] = [buffer.size(), buffer.swap_and_flatten(buffer.rewards)]
    np.random.seed(0)
    returned += [buffer.sample(30), buffer.sample(30, normalizer(copy.deepcopy(space), action_space))]
    if env is not None:
        buffer.env = None
        buffer.set_env(env)
        fill([buffer], 1, p_end=0.0)
        buffer.truncate_last_trajectory()
        returned.append(buffer.sample(30))
    buffer.reset()
    return [*returned, buffer.size()], calls


#: methods of all of SB3's buffers; that which is missing here is called in the constructor only
OF_ALL = [name for name in CALLED if name != "_maybe_cast_dtype"]


@pytest.mark.filterwarnings("ignore:The last trajectory")
@pytest.mark.parametrize(
    "kind, name, on_object",
    [
        # Each method in one kind of buffer, in a mixin and on an object in turn; SB3 calls one in the constructor only.
        *((("plain", "dict", "n steps")[i % 3], name, i % 2 == 1) for i, name in enumerate(OF_ALL)),
        ("plain", "_maybe_cast_dtype", False),
        *(("her", name, False) for name in CALLED_WITH_HINDSIGHT),
        *(("her", name, True) for name in ("_normalize_obs", "_sample_goals", "_get_real_samples")),
    ],
)
def test_an_overridden_method_is_called_and_its_result_used(kind, name, on_object):
    """The same change gives the same batches, bit for bit, as in SB3's own buffer."""
    stock, ours, obs_space, kwargs = PAIRS[kind]
    expected, _ = use(stock, obs_space, name, on_object, **kwargs)
    actual, calls = use(ours, obs_space, name, on_object, scheme="uniform", stratified=False, **kwargs)
    assert calls
    for one, other in zip(actual, expected, strict=True):
        if isinstance(other, tuple):
            assert_same_batches(one, other, [field for field in other._fields if field != "discounts" or kwargs])
        else:
            np.testing.assert_array_equal(one, other)


def test_overridden_methods_are_called_with_sequences():
    for name, of_observations, of_rewards in (
        ("_normalize_obs", 3.0, 1.0),
        ("_normalize_reward", 1.0, 0.5),
        ("to_torch", 1.0, 1.0),
        ("sample", 1.0, 3.0),
    ):
        calls: list[str] = []
        batches = []
        for cls in (PrioritizedSequenceReplayBuffer, with_mixin(PrioritizedSequenceReplayBuffer, name, calls)):
            buffer: Any = cls(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", sequence_length=2, burn_in=1)
            fill([buffer], 12)
            np.random.seed(0)
            batches.append(buffer.sample(10))
        plain, changed = batches
        assert calls
        assert th.equal(changed.observations, plain.observations * of_observations)
        assert th.equal(changed.prefix, plain.prefix * of_observations)
        assert th.equal(changed.rewards, plain.rewards * of_rewards)
        assert changed.rewards.dtype == (th.float64 if name == "to_torch" else th.float32)


def test_demonstrations_are_normalized_by_an_overridden_method():
    calls: list[str] = []
    cls: Any = with_mixin(PrioritizedReplayBuffer, "_normalize_obs", calls)
    buffer = cls(8, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", demonstration_fraction=0.5)
    ones = np.ones((6, 1, 3), np.float32)
    steps = (ones, ones, np.zeros((6, 1, 2)), np.zeros((6, 1)), np.zeros((6, 1)), [[{}]] * 6)
    buffer.add_demonstrations(*steps)
    buffer.extend(*steps)
    assert (buffer.sample(8).observations == 3.0).all() and (buffer.sample_observations(8) == 3.0).all()


def test_demonstrations_beside_hindsight_are_normalized_by_an_overridden_method():
    env = counting_env(goals=True)
    cls: Any = with_mixin(PrioritizedHerReplayBuffer, "_normalize_reward", [])
    buffer = cls(40, env.observation_space, env.action_space, env, "cpu", 2, demonstration_fraction=0.5)
    fill([buffer], 16, p_end=0.5)
    buffer.end_episodes()
    obs, next_obs, actions, *rest = demonstrations(buffer.observation_space, 6)
    buffer.add_demonstrations(obs, next_obs, actions[..., :1], *rest)
    batch = buffer.sample(8)
    rewards = batch.rewards.numpy()[batch.is_demonstration]
    assert len(rewards) == 4 and ((rewards >= 500.0) & (rewards < 506.0)).all()  # they were stored as 1000, 1001, ...


def test_a_batch_shares_no_memory_with_what_a_users_method_keeps():
    """As in SB3: tensors are copies."""

    class Constant(PrioritizedReplayBuffer):
        kept = np.ones((4, 3), np.float32)

        def _normalize_obs(self, obs: Any, env: Any = None) -> Any:  # type: ignore[override]
            return self.kept

    buffer = Constant(8, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu")
    fill([buffer], 8)
    buffer.sample(4).observations.zero_()
    assert (Constant.kept == 1.0).all()


def test_padding_of_windows_changes_no_array_of_a_user():
    """Also if it cannot be written to."""

    class Constant(PrioritizedSequenceReplayBuffer):
        def _normalize_obs(self, obs: Any, env: Any = None) -> Any:  # type: ignore[override]
            return np.broadcast_to(np.float32(1.0), obs.shape)

    buffer = Constant(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", sequence_length=3, burn_in=2)
    fill([buffer], 15, p_end=0.4)
    observations = buffer.sample(20).observations
    assert set(observations.unique().tolist()) == {0.0, 1.0}


def test_a_wrong_number_of_goals_is_refused():
    env = counting_env(goals=True)

    class TooFew(PrioritizedHerReplayBuffer):
        def _sample_goals(self, batch_indices: np.ndarray, env_indices: np.ndarray) -> np.ndarray:
            return super()._sample_goals(batch_indices, env_indices)[:3]

    buffer = TooFew(20, env.observation_space, env.action_space, env, "cpu", 2)
    fill([buffer], 8, p_end=0.5)
    with pytest.raises(ValueError, match="shape"):
        buffer.sample(10)


# ---- steps that come in another way than by `add`


class Clipped(PrioritizedReplayBuffer):
    """Changes what is stored."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
        super().add(obs, next_obs, action, np.clip(reward, -1, 1), *args, **kwargs)


def many_steps(n_envs: int = 1) -> tuple[Any, ...]:
    obs = np.zeros((4, n_envs, 3), np.float32)
    return obs, obs, np.zeros((4, n_envs, 2)), np.full((4, n_envs), 9.0), np.zeros((4, n_envs))


class ClippedDict(Clipped, PrioritizedDictReplayBuffer):
    """The same with dictionaries."""


def test_extend_calls_an_overridden_add():
    """Once a step, with dictionaries of arrays too."""
    obs, next_obs, *rest = many_steps()
    in_dictionary = {"vec": obs, "num": np.zeros((4, 1), np.int64)}
    for cls, space, given in ((Clipped, "box", (obs, next_obs)), (ClippedDict, "dict", (in_dictionary, in_dictionary))):
        buffer: Any = cls(8, OBSERVATION_SPACES[space], ACTION_SPACES["box"], "cpu")
        buffer.extend(*given, *rest, [[{}]] * 4)
        assert buffer.rewards[:4, 0].tolist() == [1.0] * 4
        with pytest.raises(NotImplementedError, match=f"add.., which {cls.__name__} overrides"):
            buffer.extend(*given, *rest, [[{}]] * 4, masses=np.ones((4, 1)))
        assert buffer.size() == 4


def test_demonstrations_do_not_bypass_an_overridden_add():
    class ClippedEverywhere(Clipped):
        def add_demonstrations(self, obs: Any, next_obs: Any, action: Any, reward: Any, *rest: Any) -> None:
            super().add_demonstrations(obs, next_obs, action, np.clip(reward, -1, 1), *rest)

    arguments = (8, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu")
    buffer = Clipped(*arguments)
    with pytest.raises(NotImplementedError, match=r"Clipped overrides add\(\).*override add_demonstrations\(\) too"):
        buffer.add_demonstrations(*many_steps(), [[{}]] * 4)
    assert len(buffer.demonstrations) == 0
    buffer = ClippedEverywhere(*arguments, demonstration_fraction=1.0)
    buffer.add_demonstrations(*many_steps(), [[{}]] * 4)
    assert (buffer.sample(8).rewards == 1.0).all()


class Halved(PrioritizedReplayBuffer):
    def _normalize_obs(self, obs: Any, env: Any = None) -> Any:  # type: ignore[override]
        return super()._normalize_obs(obs, env) * 0.5


def test_actors_do_not_bypass_an_overridden_normalization():
    env = local("CartPole-v1")
    with pytest.raises(NotImplementedError, match=r"Halved overrides _normalize_obs\(\).*initial_priorities='max'"):
        PERDQN("MlpPolicy", env, replay_buffer_class=Halved, buffer_size=50)
    env.close()
    env = local("CartPole-v1", initial_priorities="max")
    PERDQN("MlpPolicy", env, replay_buffer_class=Halved, buffer_size=50)
    env.close()


# ---- reads of other rows than those that were drawn


@pytest.mark.parametrize("n_envs", [1, 3])
def test_get_samples_reads_the_rows_that_it_is_given(n_envs):
    """Called by hand, and with other rows than `sample` has drawn; as in SB3, the environments are drawn at random."""

    class NewestRow(PrioritizedReplayBuffer):
        def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
            return super()._get_samples(np.full_like(batch_inds, self.pos - 1), env)

    buffer = NewestRow(12 * n_envs, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", n_envs)
    fill([buffer], 9)
    newest = set(buffer.rewards[8].tolist())
    assert set(buffer.sample(50).rewards.ravel().tolist()) == newest
    by_hand = PrioritizedReplayBuffer._get_samples(buffer, [-4, 8] * 25)
    assert set(by_hand.rewards.ravel().tolist()) == newest
    with pytest.raises(IndexError):
        PrioritizedReplayBuffer._get_samples(buffer, [12])


def test_an_equal_copy_of_the_drawn_rows_is_read_from_the_drawn_environments():
    class Copies(PrioritizedReplayBuffer):
        def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
            return super()._get_samples(np.array(batch_inds), env)

    buffer = Copies(12 * 4, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 4)
    fill([buffer], 9)
    batch = buffer.sample(50)
    np.testing.assert_array_equal(batch.rewards.numpy()[:, 0], buffer.rewards.reshape(-1)[batch.indices])


# ---- methods that are replaced in SB3's own classes


@pytest.mark.parametrize(
    "cls, name, kind",
    [
        (ReplayBuffer, "add", "plain"),
        (BaseBuffer, "_normalize_reward", "plain"),
        (BaseBuffer, "to_torch", "plain"),
        (DictReplayBuffer, "add", "dict"),
        (HerReplayBuffer, "_sample_goals", "her"),
    ],
)
def test_a_replaced_method_of_sb3_takes_effect(cls, name, kind, monkeypatch):
    original = vars(cls)[name]
    calls = []

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return getattr(original, "__func__", original)(*args, **kwargs)

    monkeypatch.setattr(cls, name, staticmethod(replaced) if isinstance(original, staticmethod) else replaced)
    buffer = filled_buffer(kind) if kind != "dict" else make_buffer(10, 2, "dict")
    fill([buffer], 8, p_end=0.4)
    calls.clear() if name != "add" else None
    buffer.sample(20)
    assert calls


@pytest.mark.parametrize(
    "cls, name, ours",
    [
        (ReplayBuffer, "_get_samples", PrioritizedReplayBuffer),
        (ReplayBuffer, "sample", PrioritizedReplayBuffer),
        (DictReplayBuffer, "_get_samples", PrioritizedDictReplayBuffer),
        (HerReplayBuffer, "_get_virtual_samples", PrioritizedHerReplayBuffer),
    ],
)
def test_a_replaced_method_of_sb3_that_would_never_be_called_is_refused(cls, name, ours, monkeypatch):
    def replaced(self: Any, *args: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(cls, name, replaced)
    env = counting_env(goals=True)
    own = dict(env=env) if ours is PrioritizedHerReplayBuffer else {}
    space = OBSERVATION_SPACES["box"] if ours is PrioritizedReplayBuffer else env.observation_space
    with pytest.raises(NotImplementedError, match=rf"{cls.__name__}\.{name} was replaced by .*override {name}\(\)"):
        ours(20, space, env.action_space, device="cpu", **own)
