"""The kinds of vector environments that ``from_vector_env`` takes, Gymnasium's and EnvPool's, with the same methods."""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

# What EnvPool adds to every info for its own use.
_POOL_BOOKKEEPING = {"env_id", "players", "elapsed_step"}

#: Infos of one environment.
Info = dict[str, Any]


class Source(ABC):
    """
    A vector environment. Observations are in the form of SB3, in arrays of our own. Single environments cannot be reached,
    unless a class overrides the last methods.
    """

    env: Any
    #: what observations become
    form: "ObservationForm"
    action_space: spaces.Space
    #: whether a step that ends an episode returns the first observation of the next one
    restarts_in_step: bool

    @abstractmethod
    def reset(self, seeds: list[int | None], options: list[dict[str, Any]]) -> tuple[VecEnvObs, list[Info]]:
        """
        Start all episodes.

        :param seeds: one for each environment
        :param options: one dictionary for each environment
        :return: first observations, and the infos of the resets
        """

    @abstractmethod
    def restart(self, ids: np.ndarray, cut: np.ndarray, actions: np.ndarray, observations: VecEnvObs) -> dict[int, Info]:
        """
        Start episodes of some environments.

        :param ids: numbers of these environments, at least one
        :param cut: whether an episode was cut, for the environment still goes on; shape (n_envs,)
        :param actions: of the last step, shape (n_envs, ...)
        :param observations: observations of all environments; rows ``ids`` become first observations
        :return: infos of the resets by number
        """

    @abstractmethod
    def split(self, infos: dict[str, Any], n: int) -> list[Info]:
        """
        Make a dictionary for each environment.

        :param infos: of ``n`` environments, see :func:`split_infos`
        :param n: number of environments
        :return: one dictionary for each
        """

    @abstractmethod
    def seeds(self, seed: int | None) -> Sequence[int | None] | None:
        """
        Say which seeds the environments have.

        :param seed: seed that is asked for
        :return: their seeds; ``None`` if they take those of the next reset
        """

    @abstractmethod
    def images(self) -> list[Any]:
        """Render all environments."""

    def has_attr(self, name: str) -> bool:
        """
        Tell whether all environments have an attribute or a method.

        :param name: its name
        """
        return hasattr(self.env, name)

    def get_attr(self, name: str, ids: Sequence[int]) -> list[Any]:
        """
        Get an attribute of some environments, or of the vector environment if it has no single ones.

        :param name: name of the attribute
        :param ids: numbers of these environments
        :return: a value for each
        :raises AttributeError: if there is none of this name
        """
        return [getattr(self.env, name)] * len(ids)

    def set_attr(self, name: str, value: Any, ids: Sequence[int]) -> None:
        """
        Set an attribute of some environments.

        :param name: name of the attribute
        :param value: value of all
        :param ids: numbers of these environments
        :raises NotImplementedError: if single environments cannot be reached
        """
        raise NotImplementedError(
            f"{type(self.env).__name__} has no attributes of single environments: set {name!r} where you make it"
        )

    def call(self, name: str, ids: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """
        Call a method of some environments.

        :param name: name of the method
        :param ids: numbers of these environments
        :param args: arguments of the method
        :param kwargs: keyword arguments of the method
        :return: an answer of each
        :raises NotImplementedError: if these environments cannot be reached
        """
        raise NotImplementedError(
            f"{type(self.env).__name__} has no methods of single environments, so not {name!r} either: use SyncVectorEnv"
        )

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], ids: Sequence[int]) -> list[bool]:
        """
        Tell whether some environments have a wrapper.

        :param wrapper_class: its class
        :param ids: numbers of these environments
        :return: an answer for each
        """
        return [False for _ in ids]


class ObservationForm:
    """
    The form of observations in SB3.

    :param space: space of one observation
    :param flatten: whether a Dict becomes one float32 vector
    :param must_copy: whether the environment uses its arrays again
    :raises ValueError: for a space that SB3 does not have, or that cannot be flattened
    """

    def __init__(self, space: spaces.Space, flatten: bool, must_copy: bool):
        # Paths to the parts of a Dict, in the order of the space. Those of an observation may come in another one.
        self._paths = list(_paths(space))
        self._flattens = flatten and isinstance(space, spaces.Dict)
        self._must_copy = must_copy
        #: space of the observations
        self.space = space
        if self._flattens:
            boxes = [_at(space, path) for path in self._paths]
            if not all(isinstance(box, spaces.Box) for box in boxes):
                raise ValueError(f"flatten=True takes a Dict of Boxes, not {space}")
            low, high = ([np.ravel(getattr(box, end)) for box in boxes] for end in ("low", "high"))
            self.space = spaces.Box(np.concatenate(low).astype(np.float32), np.concatenate(high).astype(np.float32))
        elif any(len(path) > 1 for path in self._paths):
            raise ValueError("SB3 has no nested Dict observations: use flatten=True")

    def of(self, raw: Any) -> VecEnvObs:
        """
        Bring observations of several environments into this form.

        :param raw: as the vector environment returns them
        :return: in arrays of our own
        """
        if self._flattens:
            parts = [np.asarray(_at(raw, path)) for path in self._paths]
            return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1, dtype=np.float32)
        if not self._must_copy:
            return {key: raw[key] for (key,) in self._paths} if isinstance(raw, dict) else raw
        return {key: np.array(raw[key]) for (key,) in self._paths} if isinstance(raw, dict) else np.array(raw)

    def of_one(self, raw: Any) -> Any:
        """
        Bring one observation into this form.

        :param raw: observation of one environment
        :return: the observation
        """

        def batch(part: Any) -> Any:
            return {key: batch(value) for key, value in part.items()} if isinstance(part, dict) else np.asarray(part)[None]

        return row_of(self.of(batch(raw)), 0)


class GymnasiumSource(Source):
    """
    A vector environment of Gymnasium of any class, see :class:`Source`.

    :param env: the environment
    :param flatten: see :class:`ObservationForm`
    :raises ValueError: for an environment whose episodes cannot be restarted one by one
    """

    def __init__(self, env: Any, flatten: bool):
        if "autoreset_mode" not in env.metadata:
            raise ValueError(f'{env} does not say how it resets: set env.metadata["autoreset_mode"]')
        self._mode = gym.vector.AutoresetMode(env.metadata["autoreset_mode"])
        self.env = env
        self.restarts_in_step = self._mode == gym.vector.AutoresetMode.SAME_STEP
        self.form = ObservationForm(env.single_observation_space, flatten, must_copy=True)
        self.action_space: spaces.Space = env.single_action_space

    def reset(self, seeds: list[int | None], options: list[dict[str, Any]]) -> tuple[VecEnvObs, list[Info]]:
        """See :class:`Source`."""
        if any(each != options[0] for each in options):
            raise NotImplementedError(f"A vector environment has the same options for all its environments, not {options}")
        raw, infos = self.env.reset(seed=self._seed_of(seeds), options=deepcopy(options[0]) or None)
        return self.form.of(raw), split_infos(infos, len(seeds))

    def _seed_of(self, seeds: list[int | None]) -> Any:
        """Choose what ``reset`` takes as its seed."""
        return seeds[0]

    def restart(self, ids: np.ndarray, cut: np.ndarray, actions: np.ndarray, observations: VecEnvObs) -> dict[int, Info]:
        """See :class:`Source`."""
        mask = np.zeros(len(cut), dtype=bool)
        mask[ids] = True
        raw, infos = self.env.reset(options={"reset_mask": mask})
        for now, before in zip(_arrays(self.form.of(raw)), _arrays(observations), strict=True):
            if now.shape != before.shape or now[~mask].tobytes() != before[~mask].tobytes():
                raise ValueError(
                    f'{self.env} resets other environments than those in options["reset_mask"], so SB3 cannot use it '
                    f"with autoreset mode {self._mode.name}: use AutoresetMode.SAME_STEP"
                )
            before[mask] = now[mask]
        split = split_infos(infos, len(cut))
        return {i: split[i] for i in ids.tolist()}

    def split(self, infos: dict[str, Any], n: int) -> list[Info]:
        """See :class:`Source`."""
        return split_infos(infos, n)

    def seeds(self, seed: int | None) -> None:
        """See :class:`Source`."""

    def images(self) -> list[Any]:
        """See :class:`Source`."""
        return list(self.env.render())


class _SinglesSource(GymnasiumSource):
    """A vector environment of Gymnasium that is made of single environments."""

    def _seed_of(self, seeds: list[int | None]) -> Any:
        return seeds

    def has_attr(self, name: str) -> bool:
        # Gymnasium's get_attr would call a method, without arguments.
        return all(self.env.unwrapped.call("has_wrapper_attr", name))

    def set_attr(self, name: str, value: Any, ids: Sequence[int]) -> None:
        n_envs = self.env.num_envs
        everywhere = len(set(ids)) == n_envs
        old = [None] * n_envs if everywhere else self.env.unwrapped.get_attr(name)
        self.env.unwrapped.set_attr(name, [value if i in ids else old[i] for i in range(n_envs)])

    def _require(self, name: str) -> None:
        """Refuse an attribute that is missing before a worker of AsyncVectorEnv ends with the error."""
        if not self.has_attr(name):
            raise AttributeError(f"The environments have no attribute {name!r}")


class _SyncSource(_SinglesSource):
    """A SyncVectorEnv, whose environments are in this process, see :class:`GymnasiumSource`."""

    def get_attr(self, name: str, ids: Sequence[int]) -> list[Any]:
        self._require(name)
        return [self.env.unwrapped.envs[i].get_wrapper_attr(name) for i in ids]

    def call(self, name: str, ids: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        return [self.env.unwrapped.envs[i].get_wrapper_attr(name)(*args, **kwargs) for i in ids]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], ids: Sequence[int]) -> list[bool]:
        return [is_wrapped(self.env.unwrapped.envs[i], wrapper_class) for i in ids]


class _AsyncSource(_SinglesSource):
    """An AsyncVectorEnv, whose environments are in other processes, see :class:`GymnasiumSource`."""

    def __init__(self, env: Any, flatten: bool):
        super().__init__(env, flatten)
        # There a worker forgets that it was reset, and resets again at the next step (Gymnasium 1.4).
        if not env.unwrapped.shared_memory and self._mode == gym.vector.AutoresetMode.NEXT_STEP:
            raise ValueError(
                "AsyncVectorEnv(shared_memory=False) cannot restart one episode in its autoreset mode NEXT_STEP: "
                "use shared_memory=True or autoreset_mode=AutoresetMode.SAME_STEP"
            )

    def get_attr(self, name: str, ids: Sequence[int]) -> list[Any]:
        self._require(name)
        values = self.env.unwrapped.get_attr(name)
        return [values[i] for i in ids]

    def call(self, name: str, ids: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        if sorted(ids) != list(range(self.env.num_envs)):
            raise NotImplementedError(
                f"AsyncVectorEnv calls a method of all environments, not {name!r} of {ids} alone: "
                "use SyncVectorEnv, or SubprocVecEnv of SB3 without from_vector_env"
            )
        self._require(name)
        answers = self.env.unwrapped.call(name, *args, **kwargs)
        return [answers[i] for i in ids]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], ids: Sequence[int]) -> list[bool]:
        # Wrappers live in other processes, but print their names.
        names = self.env.unwrapped.call("__str__")
        return [f"<{wrapper_class.__name__}<" in names[i] for i in ids]


def gymnasium_source(env: gym.vector.VectorEnv, flatten: bool) -> GymnasiumSource:
    """
    Take a vector environment of Gymnasium, which may have wrappers.

    :param env: the environment
    :param flatten: see :class:`ObservationForm`
    :return: it, as its class wants to be used
    :raises ValueError: see :class:`GymnasiumSource`
    """
    if isinstance(env.unwrapped, SyncVectorEnv):
        return _SyncSource(env, flatten)
    return (_AsyncSource if isinstance(env.unwrapped, AsyncVectorEnv) else GymnasiumSource)(env, flatten)


class EnvPoolSource(Source):
    """
    An EnvPool, see :class:`Source`.

    :param env: the EnvPool
    :param flatten: see :class:`ObservationForm`
    :raises TypeError: for one that was not made for Gymnasium
    :raises ValueError: for one that does not step all environments together, or with several players
    """

    restarts_in_step = False

    def __init__(self, env: Any, flatten: bool):
        if "autoreset_mode" not in getattr(env, "metadata", {}):
            raise TypeError('Make the EnvPool with env_type="gymnasium"')
        if env.is_async:
            raise ValueError("Make the EnvPool without batch_size: SB3 steps all environments together")
        if env.config.get("max_num_players", 1) > 1:
            raise ValueError("SB3 has one player in an environment; this EnvPool has several")
        self.env = env
        with _without_warnings_of_bounds():
            # EnvPool's arrays are new ones in each step, and need no copy.
            self.form = ObservationForm(_with_true_bounds(env.single_observation_space), flatten, must_copy=False)
            self.action_space: spaces.Space = env.single_action_space

    def reset(self, seeds: list[int | None], options: list[dict[str, Any]]) -> tuple[VecEnvObs, list[Info]]:
        """See :class:`Source`."""
        if any(options):
            raise NotImplementedError("EnvPool has no options of reset: pass them to envpool.make")
        raw, infos = self.env.reset()
        return self.form.of(raw), self.split(infos, len(seeds))

    def restart(self, ids: np.ndarray, cut: np.ndarray, actions: np.ndarray, observations: VecEnvObs) -> dict[int, Info]:
        """See :class:`Source`."""
        found: dict[int, Info] = {}
        for chosen, is_cut in ((ids[~cut[ids]], False), (ids[cut[ids]], True)):
            if len(chosen) == 0:
                continue
            chosen = chosen.astype(np.int32)
            if is_cut:
                raw, infos = self.env.reset(chosen)
            else:
                # An ended environment is reset in its next step. `reset(ids)` would do, but for Atari games whose episodes are
                # lives: it starts a new game (EnvPool 1.2.5).
                raw, _, _, _, infos = self.env.step(actions[chosen], chosen)
            for now, all_rows in zip(_arrays(self.form.of(raw)), _arrays(observations), strict=True):
                all_rows[chosen] = now
            found.update(zip(chosen.tolist(), self.split(infos, len(chosen)), strict=True))
        return found

    def split(self, infos: dict[str, Any], n: int) -> list[Info]:
        """See :class:`Source`."""
        columns = {key: value for key, value in infos.items() if key not in _POOL_BOOKKEEPING}
        if not columns:
            return [{} for _ in range(n)]
        if any(isinstance(value, dict) or value.ndim > 1 for value in columns.values()):
            return split_infos(columns, n)
        return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]

    def seeds(self, seed: int | None) -> Sequence[int | None]:
        """See :class:`Source`. Warn of a seed that EnvPool was not made with."""
        made_with = self.env.config["seed"]
        if seed is not None and seed != made_with:
            warnings.warn(
                f"EnvPool takes its seed when it is made, and has {made_with}: seed({seed}) does not change it. "
                f"Use envpool.make(..., seed={seed}).",
                stacklevel=3,
            )
        return [made_with + i for i in range(self.env.num_envs)]

    def images(self) -> list[Any]:
        """See :class:`Source`."""
        return list(self.env.render(np.arange(self.env.num_envs)))


def split_infos(infos: dict[str, Any], n_envs: int) -> list[dict[str, Any]]:
    """
    Make a dictionary for each environment from the one of a vector environment.

    :param infos: ``info[key]`` has a value for each environment; ``info["_" + key]``, if there is one, is True where it counts
    :param n_envs: number of environments
    :return: one dictionary for each environment
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


def row_of(observations: VecEnvObs, i: int) -> Any:
    """
    Copy the observation of one environment.

    :param observations: of several environments
    :param i: number of the environment
    :return: its observation
    """
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
