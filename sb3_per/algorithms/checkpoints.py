"""Save and load a model, in a zip that the stock algorithm can load too, and its buffer."""

import copy
import functools
import io
import json
import pathlib
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import SelfOffPolicyAlgorithm
from stable_baselines3.common.save_util import data_to_json, json_to_data, open_path
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms.buffer_choice import BufferChoiceMixin
from sb3_per.buffers import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.settings import HER_ARGUMENTS, SCHEME_SETTINGS, SEQUENCE_ARGUMENTS, PrioritySettings
from sb3_per.persistence.atomic import make_directory, sync_directory, write_file
from sb3_per.persistence.buffer_files import SUFFIX, SavedBuffer, is_buffer_path, located
from sb3_per.sampling.schemes import make_scheme
from sb3_per.storage.mapped import Folder

# Modules with the policies of a single algorithm.
_OF_ONE_ALGORITHM = re.compile(r"(stable_baselines3|sb3_contrib|sbx|sb3_per)\.(?!common\b)")

#: What SB3 takes as the path of a file.
PathOrFile = str | pathlib.Path | io.BufferedIOBase

# Keyword arguments that SB3's buffers do not have.
_PRIORITIZED_SETTINGS = frozenset((*PrioritySettings.names(), *HER_ARGUMENTS, *SEQUENCE_ARGUMENTS))

# The attribute, and so the entry of the zip, that this package adds.
_ENTRY = "prioritized_replay"


class _Saved(NamedTuple):
    """
    What a zip says about the buffer of a model.

    :param policy_class: class of the policy; ``None`` if it cannot be read
    :param stock_settings: ``replay_buffer_kwargs`` that the stock algorithm knows
    :param own: what this package has added, settings and beta; ``None`` in a zip of the stock algorithm
    :param n_steps: number of steps of the algorithm
    """

    policy_class: type | None
    stock_settings: dict[str, Any]
    own: dict[str, Any] | None
    n_steps: int

    @property
    def beta(self) -> float:
        """Beta of the saved run; 0 for the zip of a stock algorithm."""
        return 0.0 if self.own is None else float(self.own["beta"])

    def buffer_settings(self) -> dict[str, Any]:
        """
        Join all settings of the buffer.

        :return: ``replay_buffer_kwargs`` of the saved model
        :raises ValueError: if they cannot be read, e.g. because the class of a scheme is missing
        """
        stock = dict(self.stock_settings)
        if self.n_steps > 1:  # SB3 has copied both from the attributes, which may have changed since
            stock.pop("n_steps", None)
            stock.pop("gamma", None)
        if self.own is None:
            return stock
        if "settings" not in self.own:
            raise ValueError(
                "The buffer settings of this zip cannot be read, perhaps because the class of its scheme is missing. Make the "
                "class importable under its old name, or pass replay_buffer_kwargs to load()"
            )
        settings = dict(self.own["settings"])
        if settings.get("storage_folder") is not None:
            try:
                Folder(settings["storage_folder"])  # released at once
            except (OSError, NotImplementedError) as error:
                # The run that holds the folder may continue while this model is evaluated.
                warnings.warn(f"The loaded model keeps its transitions in RAM: {error}")
                del settings["storage_folder"]
        return {**stock, **settings}


def _read_saved(path: PathOrFile, custom_objects: dict[str, Any] | None) -> _Saved:
    """
    Read what a zip says about the buffer, without its networks.

    :param path: path of the zip, or an open file, which is left as it was
    :param custom_objects: objects that replace objects of the zip
    :return: policy, settings and beta
    :raises ValueError: for a file that is no zip
    """
    file: Any = open_path(path, "r", suffix="zip")
    is_path = isinstance(path, (str, pathlib.Path))
    position = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            content = json.loads(archive.read("data")) if "data" in archive.namelist() else {}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a zip of a model") from error
    finally:
        if is_path:
            file.close()
        else:
            file.seek(position)  # SB3 reads it next
    names = ("policy_class", "replay_buffer_kwargs", _ENTRY, "n_steps")
    read = json_to_data(json.dumps({name: content[name] for name in names if name in content}), custom_objects)
    own = None if read.get(_ENTRY) is None else json_to_data(read[_ENTRY])
    return _Saved(read.get("policy_class"), read.get("replay_buffer_kwargs") or {}, own, read.get("n_steps", 1))


class CheckpointMixin(BufferChoiceMixin):
    """Save and load a model with a prioritized buffer, see :class:`~sb3_per.algorithms.base.PrioritizedOffPolicyMixin`."""

    # Whether the training progress is of this run. In a loaded model it is of the saved run until `learn` counts again.
    _progress_is_current = False

    # ---- the model

    def save(self, path: PathOrFile, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """
        Save the model. The stock algorithm can load the zip too, and ignores the settings of the buffer. A zip of the same
        name stays until this one is complete.

        :param path: path of the zip file
        :param exclude: names of further attributes to leave out
        :param include: names of attributes to save even if they are left out by default
        :warns UserWarning: if the stock algorithm refuses the zip, because of n-step returns that it does not support
        """
        checkpoint = copy.copy(self)
        excluded = {*(exclude or ()), "_buffer_continues", "_progress_is_current", "n_stale_updates"}
        if self.replay_buffer_class is self._default_buffer_class():
            excluded.add("replay_buffer_class")
        settings = {k: v for k, v in self.replay_buffer_kwargs.items() if k in _PRIORITIZED_SETTINGS}
        if self.replay_buffer_class is PrioritizedHerReplayBuffer:
            checkpoint.replay_buffer_class = HerReplayBuffer
        elif self.n_steps > 1 and (isinstance(self.observation_space, spaces.Dict) or self.optimize_memory_usage):
            what = "optimize_memory_usage" if self.optimize_memory_usage else "Dict observations"
            lack = f"which has no n-step returns (n_steps={self.n_steps}) with {what}"
            warnings.warn(f"This zip loads as {type(self).__name__}, but not as the stock algorithm, {lack}")
        checkpoint.replay_buffer_kwargs = {k: v for k, v in self.replay_buffer_kwargs.items() if k not in settings}
        # SB3 allows users to delete the buffer, to save RAM.
        beta = float(getattr(getattr(self, "replay_buffer", None), "beta", 0.0))
        # As one string: SB3 would unpickle a scheme object, which fails without this package.
        vars(checkpoint)[_ENTRY] = data_to_json({"settings": settings, "beta": beta})
        save = super(CheckpointMixin, checkpoint).save
        if isinstance(path, (str, pathlib.Path)):
            path = pathlib.Path(path)
            # SB3's rule for the suffix; resolved, so that a link stays a link.
            path = (path if path.suffix else path.with_name(f"{path.name}.zip")).resolve()
            make_directory(path.parent)
            write_file(path, lambda file: save(file, excluded, include))  # type: ignore[arg-type]
            sync_directory(path.parent)
        else:
            save(path, excluded, include)

    @classmethod
    def load(
        cls: type[SelfOffPolicyAlgorithm],
        path: PathOrFile,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfOffPolicyAlgorithm:
        """
        Load a model from a zip of this class or of the stock algorithm, see SB3.

        :param path: path of the zip file
        :param env: environment to continue with
        :param device: device of the networks
        :param custom_objects: objects that replace objects of the zip
        :param print_system_info: print the system info of the zip and the current one
        :param force_reset: reset the environment before training
        :param kwargs: attributes to change
        :return: the model
        """
        if kwargs.get("replay_buffer_class", cls) is None:
            del kwargs["replay_buffer_class"]  # take the class of the zip, so that HER stays HER
        saved = _read_saved(path, custom_objects)
        if saved.policy_class is not None:
            cls._require_own_policy(saved.policy_class)  # type: ignore[attr-defined]
        replaced = {*kwargs, *(custom_objects or {})}
        beta = 0.0
        if "replay_buffer_kwargs" not in replaced:
            # SB3 sets keyword arguments as attributes before it makes the buffer. An `n_steps` or `gamma` given here wins.
            outdated = replaced & cls.buffer_arguments.keys()  # type: ignore[attr-defined]
            settings = saved.buffer_settings()
            kwargs["replay_buffer_kwargs"] = {name: value for name, value in settings.items() if name not in outdated}
            beta = saved.beta
        model: Any = super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)
        vars(model).pop(_ENTRY, None)
        model.replay_buffer.beta = max(model.replay_buffer.beta, beta)
        return model

    @classmethod
    def _require_own_policy(cls, policy_class: type) -> None:
        """
        Check by the policy that a zip is one of this algorithm. A policy that is entirely the user's may be of any.

        :param policy_class: class of the policy in the zip
        :raises ValueError: for the zip of another algorithm
        """
        own = tuple(cls.policy_aliases.values())
        known = (base for base in policy_class.__mro__ if base in own or _OF_ONE_ALGORITHM.match(base.__module__))
        found = next(known, None)
        if found is None or found in own or not own:
            return
        name = cls.__name__
        is_jax = found.__module__.startswith("sbx.")
        if is_jax != own[0].__module__.startswith("sbx."):
            networks, package, own_package = (
                ("JAX", "sb3_per.sbx", "sb3_per") if is_jax else ("PyTorch", "sb3_per", "sb3_per.sbx")
            )
            raise ValueError(
                f"This zip holds networks of {networks}, which {name} of {own_package} cannot load: import the class from "
                f"{package}. A saved replay buffer loads in both"
            )
        raise ValueError(
            f"This zip is not one of {name}: its policy is {found.__name__}, and {name} has {own[0].__name__}. Load it "
            "with the class that saved it, or with the prioritized class of the same algorithm, e.g. PERSAC for SAC"
        )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "saved_buffers"]

    # ---- the buffer

    @functools.cached_property
    def saved_buffers(self) -> dict[pathlib.Path, SavedBuffer]:
        """Directories that the buffer was saved to or loaded from, by path. The next save to one writes only what is new."""
        return {}

    def save_replay_buffer(self, path: PathOrFile, full: bool = False, keep: int = 2) -> None:
        """
        Save the buffer to a directory, ``NAME.buffer``, or to a pickle as SB3 does.

        Each save adds the new transitions to the directory. A kill at any moment leaves the last complete save. Loading a
        directory runs no code.

        :param path: path of the directory or of the pickle
        :param full: directory only: write everything again, e.g. because stored observations were changed by hand
        :param keep: directory only: number of generations to keep, at least 1
        :raises ValueError: for a ``keep`` below 1, or what a directory cannot hold, e.g. infos
        :raises OSError: e.g. on a full disk; the directory then keeps its last complete save
        """
        if isinstance(path, (str, pathlib.Path)) and pathlib.Path(path).suffix == SUFFIX:
            assert self.replay_buffer is not None, "The replay buffer is not defined"
            directory, _ = located(path)
            saved = self.saved_buffers.setdefault(directory, SavedBuffer(directory))
            saved.save(self.replay_buffer, self.num_timesteps, full, keep)
        else:
            super().save_replay_buffer(path)

    def load_replay_buffer(self, path: PathOrFile, truncate_last_traj: bool = True) -> None:
        """
        Load the buffer from a directory, ``NAME.buffer``, or from a pickle.

        From a directory, load the newest complete generation, without running code. Class, spaces, scheme and settings are
        the model's. With another ``buffer_size``, load the newest transitions that fit. With another scheme, give all
        transitions the largest priority.

        A pickle of a prioritized buffer keeps priorities, ids, beta and the largest priority. A buffer of SB3 becomes
        prioritized without a copy of its data, unless this model stores them in another form. If ``n_steps``, ``gamma`` or a
        setting in ``replay_buffer_kwargs`` differs, the model's value wins, with a warning. If the scheme differs, all
        transitions get the largest priority.

        :param path: path of the directory, of the manifest of one of its generations, or of a pickle. **Unpickling runs code
            from the file**
        :param truncate_last_traj: HER only: whether to end the last episode, see SB3
        :raises ValueError: for a damaged buffer, or one with another shape, number of environments or kind. Nothing changes
            then
        :raises FileNotFoundError: if there is no such file or directory
        """
        live = getattr(self, "replay_buffer", None)
        beta = 0.0 if live is None else live.beta
        if isinstance(path, (str, pathlib.Path)) and is_buffer_path(pathlib.Path(path)):
            directory, generation = located(path)
            saved = self.saved_buffers.setdefault(directory, SavedBuffer(directory))
            loaded = saved.load(self._make_buffer() if live is None else live, generation)
            if truncate_last_traj and isinstance(loaded, HerReplayBuffer):
                loaded.truncate_last_trajectory()
            if live is not None and live.size() == 0:
                live.take_over(loaded)
                loaded = live
        else:
            loader = copy.copy(self)  # so that nothing changes here if the buffer does not fit
            try:
                super(CheckpointMixin, loader).load_replay_buffer(path, truncate_last_traj)
            except pickle.UnpicklingError as error:
                raise ValueError(
                    f"{path} is damaged, or is the zip of a model, not a replay buffer: load it with load(), and give "
                    "load_replay_buffer() what save_replay_buffer() wrote"
                ) from error
            loaded = self._with_own_settings(loader.replay_buffer)
            if isinstance(loaded, HerReplayBuffer) and not self._has_her:
                self.replay_buffer_class = type(loaded)
        loaded.beta = max(loaded.beta, beta)
        self.replay_buffer = loaded

    def _with_own_settings(self, buffer: PrioritizedReplayBuffer) -> PrioritizedReplayBuffer:
        """
        Give a loaded buffer the settings of this model.

        :param buffer: prioritized buffer from a file
        :return: prioritized buffer with the same transitions and the settings of this model
        """
        self._require_fit(buffer)
        changed = self._contradictions(buffer)
        own_class = self.replay_buffer_class
        assert own_class is not None
        if own_class is not type(buffer) and issubclass(own_class, type(buffer)):
            # The class of this model, e.g. a user's, stores more, or elsewhere.
            arguments = {k: v for k, v in self._buffer_kwargs().items() if k in own_class.extra_arguments}
            return own_class.from_replay_buffer(buffer, **{**arguments, **changed})
        return type(buffer).from_replay_buffer(buffer, **changed) if changed else buffer

    def _contradictions(self, buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
        """
        Compare the settings of a loaded buffer with the model's, and warn if they differ.

        :param buffer: prioritized buffer from a file
        :return: settings of this model that differ
        """
        wanted, have = self._buffer_kwargs(), buffer.settings_without(())
        of_scheme = {name: wanted.pop(name) for name in SCHEME_SETTINGS if wanted.get(name) is not None}
        changed = {name: value for name, value in wanted.items() if name in have and have[name] != value}
        described = [
            f"{name}={have[name]!r} (this model: {value!r})"
            for name, value in changed.items()
            if name != "gamma" or wanted["n_steps"] > 1  # only n-step returns use gamma
        ]
        asked_for = make_scheme(**of_scheme)
        # Missing settings do not matter. A scheme object brings all of its settings.
        named = asked_for.settings if asked_for is of_scheme.get("scheme") else of_scheme
        is_other = "scheme" in of_scheme and type(asked_for) is not type(buffer.scheme)
        if is_other or any(named.get(name, value) != value for name, value in buffer.scheme.settings.items()):
            changed.update(of_scheme)
            described.append(f"scheme={buffer.scheme!r} (this model: {asked_for!r}, all priorities become the largest)")
        if described:
            warnings.warn(f"The loaded buffer has other settings. Those of this model count: {', '.join(described)}")
        return changed
