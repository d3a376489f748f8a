"""Use a vector environment of Gymnasium or EnvPool as a VecEnv of Stable-Baselines3."""

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_per.integrations.vector_sources import EnvPoolSource, Source, gymnasium_source, row_of
from sb3_per.utils.checks import check_argument, integer

# Where Gymnasium has the last step of episodes that were restarted in the same step.
_FINAL = {"final_obs", "_final_obs", "final_info", "_final_info"}

_CLOSED = "The environments are closed: make new ones, and call from_vector_env again"


def from_vector_env(
    env: Any,
    stagger: int | None = None,
    flatten: bool = False,
) -> "FromVectorEnv":
    """
    Make a VecEnv of Stable-Baselines3 (SB3) from a vector environment.

    ::

        env = from_vector_env(envpool.make("ReacherHard-v1", env_type="gymnasium", num_envs=32), stagger=1000, flatten=True)
        env = from_vector_env(gymnasium.make_vec("Pendulum-v1", num_envs=4))

    The result behaves as ``DummyVecEnv`` around environments with a ``Monitor``, whatever the autoreset mode of ``env``:
    a step that ends an episode returns the first observation of the next one, and no reset becomes a transition.

    :param env: a ``gymnasium.vector.VectorEnv`` of any autoreset mode, or an EnvPool of
        ``envpool.make(..., env_type="gymnasium")``
    :param stagger: number of steps over which the ends of the first episodes are spread, e.g. the length of an episode.
        Environment i ends its first episode after ``stagger * (i + 1) / num_envs`` steps at most, as a truncation. Then
        episodes of equal length do not end together. These first episodes have no ``infos[i]["episode"]``.
    :param flatten: make one float32 vector of a Dict observation, in the order of the names, as Gymnasium's FlattenObservation
    :return: the VecEnv
    :raises ImportError: with Gymnasium before 1.1
    :raises TypeError: for another kind of environment
    :raises ValueError: for a ``stagger`` below 1, and for an environment whose episodes cannot be restarted one by one
    :raises RuntimeError: if the environments are closed
    """
    if not hasattr(gym.vector, "AutoresetMode"):
        raise ImportError(
            f"from_vector_env needs Gymnasium 1.1 or newer, found {gym.__version__}: pip install 'gymnasium>=1.1'"
        )
    is_pool = _is_pool(env)
    if not is_pool and not isinstance(env, gym.vector.VectorEnv):
        raise TypeError(
            "from_vector_env takes a gymnasium.vector.VectorEnv, such as SyncVectorEnv or AsyncVectorEnv, or an EnvPool of "
            f'envpool.make(..., env_type="gymnasium"), not {env!r}'
        )
    if not is_pool and _is_pool(env.unwrapped):
        raise TypeError(f"from_vector_env takes an EnvPool without wrappers of Gymnasium, not {env!r}")
    check_argument("stagger", stagger, integer(), or_none=True)
    source: Source = EnvPoolSource(env, flatten) if is_pool else gymnasium_source(env, flatten)
    if getattr(env.unwrapped, "closed", False):
        raise RuntimeError(_CLOSED)
    return FromVectorEnv(source, stagger)


def _is_pool(env: Any) -> bool:
    """Tell whether an environment is an EnvPool, without importing EnvPool. It makes a class for each task."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(env).__mro__)


class FromVectorEnv(VecEnv):
    """
    A vector environment as a VecEnv. Use :func:`from_vector_env`.

    :param source: the vector environment
    :param stagger: see :func:`from_vector_env`
    """

    def __init__(self, source: Source, stagger: int | None):
        self.env = source.env
        self._source = source
        self._closed = False
        self._actions: Any = None
        n_envs = self.env.num_envs
        self._returns = np.zeros(n_envs)
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        # Lengths at which the first episodes are cut. No length equals 0.
        ends = np.arange(1, n_envs + 1) * (0 if stagger is None else stagger)
        self._stagger = -(-ends // n_envs)
        self._limits = self._stagger.copy()
        self._begun = time.time()
        super().__init__(n_envs, source.form.space, source.action_space)

    # ---- steps

    def reset(self) -> VecEnvObs:
        """Start all episodes."""
        self._refuse_if_closed()
        observations, infos = self._source.reset(self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = infos
        self._returns[:], self._lengths[:], self._limits[:] = 0, 0, self._stagger
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions of the next step."""
        self._refuse_if_closed()
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments, and start the next episode of those that ended."""
        source = self._source
        raw, *rest, vector_infos = self.env.step(self._actions)
        rewards, terminated, truncated = (np.asarray(array) for array in rest)
        observations = source.form.of(raw)
        self._returns += rewards
        self._lengths += 1
        ended = terminated | truncated
        cut = (self._lengths == self._limits) & ~ended
        dones = ended | cut

        # Keep what episodes ended with, before their environments start the next ones.
        last = {i: row_of(observations, i) for i in np.flatnonzero(dones).tolist()}
        infos = source.split({key: value for key, value in vector_infos.items() if key not in _FINAL}, self.num_envs)
        if source.restarts_in_step and ended.any():
            if "final_obs" not in vector_infos:
                raise ValueError(f'{self.env} does not tell the last observations of episodes: infos["final_obs"] is missing')
            final_infos = source.split(vector_infos.get("final_info", {}), self.num_envs)
            for i in np.flatnonzero(ended).tolist():
                last[i] = source.form.of_one(vector_infos["final_obs"][i])
                self.reset_infos[i], infos[i] = infos[i], final_infos[i]
                # A wrapper around all environments adds what it counted to the infos of the reset.
                if "episode" in self.reset_infos[i]:
                    infos[i].setdefault("episode", self.reset_infos[i].pop("episode"))
        restarts = cut if source.restarts_in_step else dones
        if restarts.any():
            for i, info in source.restart(np.flatnonzero(restarts), cut, self._actions, observations).items():
                self.reset_infos[i] = info

        for info in infos:
            info["TimeLimit.truncated"] = False
        for i, observation in last.items():
            infos[i]["TimeLimit.truncated"] = not terminated[i]
            infos[i]["terminal_observation"] = observation
            # A first episode that was cut says nothing about the policy, and is not counted.
            if not cut[i] and "episode" not in infos[i]:
                seconds = round(time.time() - self._begun, 6)
                infos[i]["episode"] = {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": seconds}
            self._returns[i], self._lengths[i], self._limits[i] = 0.0, 0, 0
        return observations, rewards.astype(np.float32), dones, infos

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """See SB3. An EnvPool has the seeds that it was made with, and warns of others."""
        seeds = self._source.seeds(seed)
        return super().seed(seed) if seeds is None else seeds

    def close(self) -> None:
        """Close all environments. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.env.close()

    def _refuse_if_closed(self) -> None:
        if self._closed or getattr(self.env.unwrapped, "closed", False):
            raise RuntimeError(_CLOSED)

    # ---- single environments

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Render all environments."""
        return self._source.images()

    def has_attr(self, attr_name: str) -> bool:
        """Tell whether all environments have an attribute or a method."""
        return self._source.has_attr(attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get an attribute of each environment, or of the vector environment if it has no single ones."""
        return self._source.get_attr(attr_name, list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of environments where they have it, else of the outermost wrapper."""
        self._source.set_attr(attr_name, value, list(self._get_indices(indices)))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of environments. An EnvPool has no single environments, so none of their methods."""
        return self._source.call(method_name, list(self._get_indices(indices)), method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Tell whether environments have a wrapper. ``Monitor`` counts as one, since its work is done here."""
        ids = list(self._get_indices(indices))
        # evaluate_policy asks for it, and warns without one.
        return [True for _ in ids] if wrapper_class is Monitor else self._source.is_wrapped(wrapper_class, ids)
