"""Use a vector environment of Gymnasium or EnvPool as a VecEnv of Stable-Baselines3."""

import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

# What EnvPool adds to every info for its own use.
POOL_BOOKKEEPING = {"env_id", "players", "elapsed_step"}
# Where Gymnasium has the last step of episodes that were restarted in the same step.
FINAL = {"final_obs", "_final_obs", "final_info", "_final_info"}


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
    """
    if not hasattr(gym.vector, "AutoresetMode"):
        raise ImportError(
            f"from_vector_env needs Gymnasium 1.1 or newer, found {gym.__version__}: pip install 'gymnasium>=1.1'"
        )
    is_pool = _is_pool(env)
    if not is_pool and not isinstance(env, gym.vector.VectorEnv):
        raise TypeError(
            "from_vector_env takes a gymnasium.vector.VectorEnv, such as SyncVectorEnv or AsyncVectorEnv, or an EnvPool of "
            f'envpool.make(..., env_type="gymnasium"); got {env!r}'
        )
    if not is_pool and _is_pool(env.unwrapped):
        raise TypeError(f"from_vector_env takes an EnvPool without wrappers of Gymnasium; got {env!r}")
    if stagger is not None and (isinstance(stagger, bool) or not isinstance(stagger, int | np.integer) or stagger < 1):
        raise ValueError(f"stagger is a whole number of steps, 1 or more, or None; got {stagger!r}")
    return (FromEnvPool if is_pool else FromVectorEnv)(env, stagger, flatten)


def _is_pool(env: Any) -> bool:
    """Tell whether an environment is an EnvPool, without importing EnvPool. It makes a class for each task."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(env).__mro__)


class FromVectorEnv(VecEnv):
    """A vector environment of Gymnasium as a VecEnv. Use :func:`from_vector_env`."""

    def __init__(self, env: Any, stagger: int | None, flatten: bool):
        self.env = env
        self._closed = False
        self._check()
        self._refuse_if_closed()
        space = self._single_space()
        # Paths to the parts of a Dict, in the order of the space. Those of an observation may come in another one.
        self._paths = list(_paths(space))
        self._flattens = flatten and isinstance(space, spaces.Dict)
        self._actions: Any = None
        n_envs = env.num_envs
        self._returns = np.zeros(n_envs)
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        # Lengths at which the first episodes are cut. No length equals 0.
        ends = np.arange(1, n_envs + 1) * (0 if stagger is None else stagger)
        self._stagger = -(-ends // n_envs)
        self._limits = self._stagger.copy()
        self._begun = time.time()
        super().__init__(n_envs, self._observation_space(space), self._action_space())

    # What differs between Gymnasium and EnvPool

    def _check(self) -> None:
        if "autoreset_mode" not in self.env.metadata:
            raise ValueError(f'{self.env} does not say how it resets: set env.metadata["autoreset_mode"]')
        self._mode = gym.vector.AutoresetMode(self.env.metadata["autoreset_mode"])
        base = self.env.unwrapped
        # There a worker forgets that it was reset, and resets again at the next step (Gymnasium 1.4).
        if isinstance(base, AsyncVectorEnv) and not base.shared_memory and self._mode == gym.vector.AutoresetMode.NEXT_STEP:
            raise ValueError(
                "AsyncVectorEnv(shared_memory=False) cannot restart one episode in its autoreset mode NEXT_STEP: "
                "use shared_memory=True or autoreset_mode=AutoresetMode.SAME_STEP"
            )

    def _single_space(self) -> spaces.Space:
        return self.env.single_observation_space

    def _action_space(self) -> spaces.Space:
        return self.env.single_action_space

    def _start(self) -> tuple[Any, dict[str, Any]]:
        """Start all episodes, with the seeds and options that were set."""
        if any(options != self._options[0] for options in self._options):
            raise NotImplementedError("A vector environment has the same options for all its environments; got different ones")
        one_by_one = isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        return self.env.reset(seed=self._seeds if one_by_one else self._seeds[0], options=deepcopy(self._options[0]) or None)

    def _restart(self, ids: np.ndarray, cut: np.ndarray, observations: VecEnvObs) -> None:
        """
        Start episodes of some environments, and keep the infos of these resets.

        :param ids: numbers of these environments, at least one
        :param cut: whether an episode was cut, for the environment still goes on; shape (n_envs,)
        :param observations: observations of all environments; rows ``ids`` become first observations
        """
        mask = np.zeros(self.num_envs, dtype=bool)
        mask[ids] = True
        raw, vector_infos = self.env.reset(options={"reset_mask": mask})
        for now, before in zip(_arrays(self._converted(raw)), _arrays(observations), strict=True):
            if now.shape != before.shape or now[~mask].tobytes() != before[~mask].tobytes():
                raise ValueError(
                    f'{self.env} resets other environments than those in options["reset_mask"], so SB3 cannot use it '
                    f"with autoreset mode {self._mode.name}: use AutoresetMode.SAME_STEP"
                )
            before[mask] = now[mask]
        infos = self._infos(vector_infos)
        for i in ids:
            self.reset_infos[i] = infos[i]

    def _infos(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        return split_infos(infos, self.num_envs)

    # Spaces and observations

    def _observation_space(self, space: spaces.Space) -> spaces.Space:
        if self._flattens:
            boxes = [_at(space, path) for path in self._paths]
            if not all(isinstance(box, spaces.Box) for box in boxes):
                raise ValueError(f"flatten=True takes a Dict of Boxes, got {space}")
            low, high = ([np.ravel(getattr(box, end)) for box in boxes] for end in ("low", "high"))
            return spaces.Box(np.concatenate(low).astype(np.float32), np.concatenate(high).astype(np.float32))
        if any(len(path) > 1 for path in self._paths):
            raise ValueError("SB3 has no nested Dict observations: use flatten=True")
        return space

    def _converted(self, raw: Any) -> VecEnvObs:
        """Bring observations of all environments into the form of SB3, in arrays of our own."""
        if self._flattens:
            parts = [np.asarray(_at(raw, path)) for path in self._paths]
            return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1, dtype=np.float32)
        return {key: np.array(raw[key]) for (key,) in self._paths} if isinstance(raw, dict) else np.array(raw)

    # The interface of SB3

    def reset(self) -> VecEnvObs:
        """Start all episodes."""
        self._refuse_if_closed()
        raw, infos = self._start()
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = self._infos(infos)
        self._returns[:], self._lengths[:], self._limits[:] = 0, 0, self._stagger
        return self._converted(raw)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions of the next step."""
        self._refuse_if_closed()
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments, and start the next episode of those that ended."""
        raw, *rest, vector_infos = self.env.step(self._actions)
        rewards, terminated, truncated = (np.asarray(array) for array in rest)
        observations = self._converted(raw)
        self._returns += rewards
        self._lengths += 1
        ended = terminated | truncated
        cut = (self._lengths == self._limits) & ~ended
        dones = ended | cut

        # Keep what episodes ended with, before their environments start the next ones.
        last = {i: _row(observations, i) for i in np.flatnonzero(dones).tolist()}
        infos = self._infos({key: value for key, value in vector_infos.items() if key not in FINAL})
        if self._mode == gym.vector.AutoresetMode.SAME_STEP and ended.any():
            if "final_obs" not in vector_infos:
                raise ValueError(f'{self.env} does not tell the last observations of episodes: infos["final_obs"] is missing')
            final_infos = self._infos(vector_infos.get("final_info", {}))
            for i in np.flatnonzero(ended).tolist():
                last[i] = self._converted_one(vector_infos["final_obs"][i])
                self.reset_infos[i], infos[i] = infos[i], final_infos[i]
        restarts = cut if self._mode == gym.vector.AutoresetMode.SAME_STEP else dones
        if restarts.any():
            self._restart(np.flatnonzero(restarts), cut, observations)

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

    def _converted_one(self, observation: Any) -> Any:
        def batch(part: Any) -> Any:
            return {key: batch(value) for key, value in part.items()} if isinstance(part, dict) else np.asarray(part)[None]

        return _row(self._converted(batch(observation)), 0)

    def close(self) -> None:
        """Close all environments. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.env.close()

    def _refuse_if_closed(self) -> None:
        if self._closed or getattr(self.env.unwrapped, "closed", False):
            raise RuntimeError("The environments are closed: make new ones, and call from_vector_env again")

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Render all environments."""
        return list(self.env.render())

    def has_attr(self, attr_name: str) -> bool:
        """Tell whether all environments have an attribute or a method."""
        base = self.env.unwrapped
        if isinstance(base, SyncVectorEnv | AsyncVectorEnv):
            # Gymnasium's get_attr would call a method, without arguments.
            return all(base.call("has_wrapper_attr", attr_name))
        return super().has_attr(attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get an attribute of each environment, or of the vector environment if it has no single ones."""
        ids = self._get_indices(indices)
        base = self.env.unwrapped
        if not isinstance(base, SyncVectorEnv | AsyncVectorEnv):
            value = getattr(self.env, attr_name)
            return [value for _ in ids]
        self._require(attr_name)
        if isinstance(base, SyncVectorEnv):
            return [base.envs[i].get_wrapper_attr(attr_name) for i in ids]
        values = base.get_attr(attr_name)
        return [values[i] for i in ids]

    def _require(self, name: str) -> None:
        """Refuse an attribute that is missing before a worker of AsyncVectorEnv ends with the error."""
        if not self.has_attr(name):
            raise AttributeError(f"The environments have no attribute {name!r}")

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of environments where they have it, else of the outermost wrapper."""
        ids = set(self._get_indices(indices))
        base = self.env.unwrapped
        if not isinstance(base, SyncVectorEnv | AsyncVectorEnv):
            raise NotImplementedError(
                f"{type(self.env).__name__} has no attributes of single environments: set {attr_name!r} where you make it"
            )
        everywhere = len(ids) == self.num_envs
        old = [None] * self.num_envs if everywhere else base.get_attr(attr_name)
        base.set_attr(attr_name, [value if i in ids else old[i] for i in range(self.num_envs)])

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of environments. An EnvPool has no single environments, so none of their methods."""
        ids = list(self._get_indices(indices))
        base = self.env.unwrapped
        if isinstance(base, SyncVectorEnv):
            return [base.envs[i].get_wrapper_attr(method_name)(*method_args, **method_kwargs) for i in ids]
        if isinstance(base, AsyncVectorEnv):
            if sorted(ids) != list(range(self.num_envs)):
                raise NotImplementedError(
                    f"AsyncVectorEnv calls a method of all environments, not {method_name!r} of {ids} alone: "
                    "use SyncVectorEnv, or SubprocVecEnv of SB3 without from_vector_env"
                )
            self._require(method_name)
            answers = base.call(method_name, *method_args, **method_kwargs)
            return [answers[i] for i in ids]
        raise NotImplementedError(
            f"{type(self.env).__name__} has no methods of single environments, so not {method_name!r} either: "
            "use SyncVectorEnv"
        )

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Tell whether environments have a wrapper. ``Monitor`` counts as one, since its work is done here."""
        ids = self._get_indices(indices)
        # evaluate_policy asks for it, and warns without one.
        if wrapper_class is Monitor:
            return [True for _ in ids]
        base = self.env.unwrapped
        if isinstance(base, SyncVectorEnv):
            return [is_wrapped(base.envs[i], wrapper_class) for i in ids]
        if isinstance(base, AsyncVectorEnv):
            # Wrappers live in other processes, but print their names.
            names = base.call("__str__")
            return [f"<{wrapper_class.__name__}<" in names[i] for i in ids]
        return [False for _ in ids]


class FromEnvPool(FromVectorEnv):
    """An EnvPool as a VecEnv. Use :func:`from_vector_env`."""

    def _check(self) -> None:
        self._mode = gym.vector.AutoresetMode.NEXT_STEP
        if "autoreset_mode" not in getattr(self.env, "metadata", {}):
            raise TypeError('Make the EnvPool with env_type="gymnasium"')
        if self.env.is_async:
            raise ValueError("Make the EnvPool without batch_size: SB3 steps all environments together")
        if self.env.config.get("max_num_players", 1) > 1:
            raise ValueError("SB3 has one player in an environment; this EnvPool has several")

    def _start(self) -> tuple[Any, dict[str, Any]]:
        if any(self._options):
            raise NotImplementedError("EnvPool has no options of reset: pass them to envpool.make")
        return self.env.reset()

    def _restart(self, ids: np.ndarray, cut: np.ndarray, observations: VecEnvObs) -> None:
        for chosen, start in ((ids[~cut[ids]], self._next_step), (ids[cut[ids]], self.env.reset)):
            if len(chosen) == 0:
                continue
            raw, vector_infos = start(chosen.astype(np.int32))
            for now, all_rows in zip(_arrays(self._converted(raw)), _arrays(observations), strict=True):
                all_rows[chosen] = now
            for i, info in zip(chosen, self._infos(vector_infos, len(chosen)), strict=True):
                self.reset_infos[i] = info

    def _next_step(self, ids: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """
        Let ended environments alone make their next step, in which EnvPool resets them.

        ``reset(ids)`` would do, but for Atari games whose episodes are lives: it starts a new game (EnvPool 1.2.5).
        """
        raw, _, _, _, infos = self.env.step(self._actions[ids], ids)
        return raw, infos

    def _infos(self, infos: dict[str, Any], n: int | None = None) -> list[dict[str, Any]]:
        n = self.num_envs if n is None else n
        columns = {key: value for key, value in infos.items() if key not in POOL_BOOKKEEPING}
        if not columns:
            return [{} for _ in range(n)]
        if any(isinstance(value, dict) or value.ndim > 1 for value in columns.values()):
            return split_infos(columns, n)
        return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]

    def _single_space(self) -> spaces.Space:
        with _without_warnings_of_bounds():
            return _with_true_bounds(self.env.single_observation_space)

    def _action_space(self) -> spaces.Space:
        with _without_warnings_of_bounds():
            return self.env.single_action_space

    def _converted(self, raw: Any) -> VecEnvObs:
        if self._flattens:
            return super()._converted(raw)
        # EnvPool's arrays are new ones in each step, and need no copy.
        return {key: raw[key] for (key,) in self._paths} if isinstance(raw, dict) else raw

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Return the seeds that EnvPool has, and warn if others are asked for."""
        made_with = self.env.config["seed"]
        if seed is not None and seed != made_with:
            warnings.warn(
                f"EnvPool takes its seed when it is made, and has {made_with}: seed({seed}) does not change it. "
                f"Use envpool.make(..., seed={seed}).",
                stacklevel=2,
            )
        return [made_with + i for i in range(self.num_envs)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Render all environments."""
        return list(self.env.render(np.arange(self.num_envs)))


def split_infos(infos: dict[str, Any], n_envs: int) -> list[dict[str, Any]]:
    """
    Make a dictionary for each environment from the one of a vector environment.

    :param infos: ``info[key]`` has a value for each environment; ``info["_" + key]``, if there is one, is True where it counts
    :param n_envs: number of environments
    """
    rows: list[dict[str, Any]] = [{} for _ in range(n_envs)]
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}")
        ids: Iterable[int] = range(n_envs) if present is None else np.flatnonzero(present)
        if isinstance(value, dict):
            value = split_infos(value, n_envs)
        elif np.ndim(value) == 0 or len(value) != n_envs:
            value = [value] * n_envs
        for i in ids:
            rows[i][key] = value[i]
    return rows


def _paths(space: spaces.Space, path: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """Go through the keys that lead to the parts of a Dict; of another space, the empty path is all."""
    if not isinstance(space, spaces.Dict):
        yield path
        return
    for key, part in space.items():
        yield from _paths(part, (*path, key))


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _arrays(observations: VecEnvObs) -> list[Any]:
    return list(observations.values()) if isinstance(observations, dict) else [observations]


def _row(observations: VecEnvObs, i: int) -> Any:
    """Copy the observation of one environment."""
    if isinstance(observations, dict):
        return {key: value[i].copy() for key, value in observations.items()}
    return observations[i].copy()


@contextlib.contextmanager
def _without_warnings_of_bounds() -> Iterator[None]:
    """Make spaces of EnvPool, whose bounds are float64 where the space is float32: Gymnasium warns of each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        yield


def _with_true_bounds(space: Any) -> Any:
    """Replace the smallest positive number by -inf: EnvPool has it as the lower bound of what is unbounded (1.2)."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _with_true_bounds(part) for key, part in space.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    info = np.finfo(space.dtype)
    low = np.where(space.low == info.tiny, -np.inf, space.low)
    high = np.where(space.high == info.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)
