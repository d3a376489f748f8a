"""Small models on local actors, engines that record calls, and checks of what is stored."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

from sb3_per import PERDDPG, PERDQN, PERQRDQN, PERSAC, PERTD3, PERTQC, PERCrossQ
from sb3_per.distributed import ActorVecEnv, make_actors
from sb3_per.distributed.actor_pool import ActorSettings
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import LocalEngine
from sb3_per.distributed.environments import EnvRecipe
from tests.helpers.actor_envs import Tracked

SMALL: dict[str, Any] = dict(policy_kwargs=dict(net_arch=[8]), batch_size=8, learning_starts=20, buffer_size=200, seed=3)


def local(env: Any, n_actors: int = 2, **kwargs: Any) -> Any:
    return make_actors(env, n_actors=n_actors, engine="local", **{"chunk": 5, **kwargs})


def on_engine(
    engine: Any, n_actors: int = 2, n_envs: int = 1, seed: int | None = None, env: Any = Tracked, **settings: Any
) -> ActorVecEnv:
    """Make actors on an engine of the test."""
    defaults: dict[str, Any] = dict(
        chunk=5, exploration=None, initial_priorities="actor", in_flight=1, lockstep=True, max_restarts=10, timeout=60.0
    )
    recipe = EnvRecipe(dict(env_id=env, n_envs=n_envs, seed=seed))
    return ActorVecEnv(engine, n_actors, recipe, ActorSettings(**{**defaults, **settings}))


class Listening(LocalEngine):
    """Record all calls, and the chunks that answer them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, Any, Any]] = []
        self.chunks: list[Chunk] = []

    def ask(self, actor: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((actor, method, args))
        return super().ask(actor, method, *args, **kwargs)

    def answer(self, handle: Any) -> Any:
        answer = super().answer(handle)
        if isinstance(answer, Chunk):
            self.chunks.append(answer)
        return answer


def small(cls: Any, env: Any, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
    return cls(policy, env, **copy.deepcopy({**SMALL, **kwargs}))  # SB3 changes these dictionaries


def assert_same_run(actual: Any, expected: Any, is_synchronous: bool = False) -> None:
    """
    Check that weights, transitions and priorities are equal to the bit.

    :param actual: a model after a run
    :param expected: another one
    :param is_synchronous: whether it learned without actors, whose chunks end with truncations
    """
    for (name, a), b in zip(actual.policy.state_dict().items(), expected.policy.state_dict().values(), strict=True):
        assert th.equal(a, b), name
    buffers = actual.replay_buffer, expected.replay_buffer
    for name in ("actions", "rewards", "priorities", "transition_ids", *(() if is_synchronous else ("dones", "timeouts"))):
        np.testing.assert_array_equal(*(getattr(buffer, name).reshape(-1) for buffer in buffers), err_msg=name)
    np.testing.assert_array_equal(*((buffer.dones * (1 - buffer.timeouts)).reshape(-1) for buffer in buffers))
    for name in ("num_timesteps", "_n_updates", "_episode_num", "_n_calls"):
        assert getattr(actual, name, None) == getattr(expected, name, None), name


# Each algorithm once, and each setting that acting depends on.
CONFIGURATIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sac-sde": (PERSAC, "Pendulum-v1", dict(use_sde=True)),
    "td3-noise": (PERTD3, "Pendulum-v1", dict(action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)))),
    "ddpg-noise": (PERDDPG, "Pendulum-v1", dict(action_noise=OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.1 * np.ones(1)))),
    "tqc-n-steps": (PERTQC, "Pendulum-v1", dict(n_steps=3, learning_starts=0)),
    "crossq-ratio": (PERCrossQ, "Pendulum-v1", dict(train_freq=4, gradient_steps=-1)),
    "dqn-dict": (PERDQN, lambda: Tracked(is_dict=True, truncates=True), dict(policy="MultiInputPolicy", n_steps=2)),
    "qrdqn": (PERQRDQN, "CartPole-v1", dict(target_update_interval=7)),
}


class Follower(BaseCallback):
    """Record what callbacks see at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        names = ("rewards", "dones", "infos", "new_obs")
        self.seen.append({"num_timesteps": self.num_timesteps, **{name: self.locals[name] for name in names}})
        return True


class StopAt(BaseCallback):
    """Stop the run, or raise an error, after ``n_calls`` steps."""

    def __init__(self, n_calls: int, error: BaseException | None = None):
        super().__init__()
        self.stop_at, self.error = n_calls, error

    def _on_step(self) -> bool:
        if self.n_calls < self.stop_at:
            return True
        if self.error is not None:
            raise self.error
        return False


def assert_rows_hold(buffer: Any) -> int:
    """
    Check that each stored step continues the one before or comes after an end, and is stored once.

    :param buffer: of transitions of :class:`~tests.helpers.actor_envs.Tracked`
    :return: number of truncated steps whose next step is not stored: the newest of each environment, and those before a loss
    """
    n = buffer.size()
    rows = (buffer.pos - n + np.arange(n)) % buffer.buffer_size
    names = ("observations", "next_observations", "rewards", "dones", "timeouts")
    obs, next_obs, rewards, dones, timeouts = (getattr(buffer, name)[rows, 0] for name in names)
    np.testing.assert_array_equal(obs[:, :2], next_obs[:, :2])
    np.testing.assert_array_equal(next_obs[:, 2], obs[:, 2] + 1)
    np.testing.assert_array_equal(rewards, next_obs[:, 2])
    starts = Counter(map(tuple, obs.tolist()))
    assert max(starts.values()) == 1
    is_followed = (obs[1:] == next_obs[:-1]).all(axis=1)
    assert is_followed[dones[:-1] == 0].all() and dones[-1] == 1
    is_end = next_obs[:, 2] == 7
    np.testing.assert_array_equal(dones * (1 - timeouts), is_end)
    is_cut = (dones == 1) & ~is_end
    return sum(each not in starts for each in map(tuple, next_obs[is_cut].tolist()))
