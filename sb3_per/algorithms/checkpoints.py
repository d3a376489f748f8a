"""Save a model in a zip that the stock algorithm can load, too, and read such a zip."""

import io
import json
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium import spaces
from stable_baselines3.common.save_util import data_to_json, json_to_data, open_path
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import PrioritizedHerReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.files import MappedFile
from sb3_per.buffers.settings import HER_ARGUMENTS, SEQUENCE_ARGUMENTS, BufferSettings
from sb3_per.persistence.atomic import make_directory, sync_directory, write_file
from sb3_per.utils.origin import is_user_defined, package_of

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

#: What SB3 takes as the path of a file.
PathOrFile = str | pathlib.Path | io.BufferedIOBase

#: Name of the entry that this package adds to a zip. SB3 saves attributes as entries, so it is an attribute meanwhile.
ZIP_ENTRY = "prioritized_replay"

# Keyword arguments that SB3's buffers do not have.
_PRIORITIZED_SETTINGS = frozenset((*BufferSettings.names(), *HER_ARGUMENTS, *SEQUENCE_ARGUMENTS))


# ---- saving


@contextmanager
def stock_attributes(model: "PrioritizedAlgorithm") -> Iterator[None]:
    """
    Give a model, within a ``with`` block, attributes that the stock algorithm can load; all are as before after it. SB3 saves
    attributes as they are, and the stock algorithm knows neither our buffer classes nor our settings. These go into
    ``ZIP_ENTRY``, which it ignores.

    :param model: the algorithm
    :return: context in which SB3 may save the model
    """
    attributes = vars(model)
    buffer_class = attributes["replay_buffer_class"]
    kwargs = attributes["replay_buffer_kwargs"]
    # SB3 allows users to delete the buffer, to save RAM.
    buffer = attributes.get("replay_buffer")
    beta = 0.0 if buffer is None else float(buffer.beta)
    settings = {name: value for name, value in kwargs.items() if name in _PRIORITIZED_SETTINGS}
    try:
        # As one string: SB3 would unpickle a scheme object, which fails without this package.
        attributes[ZIP_ENTRY] = data_to_json({"settings": settings, "beta": beta})
        attributes["replay_buffer_kwargs"] = {name: value for name, value in kwargs.items() if name not in settings}
        if buffer_class is PrioritizedHerReplayBuffer:
            attributes["replay_buffer_class"] = HerReplayBuffer
        elif buffer_class is model._default_buffer_class():
            del attributes["replay_buffer_class"]  # the stock algorithm chooses its own
        yield
    finally:
        attributes["replay_buffer_class"] = buffer_class
        attributes["replay_buffer_kwargs"] = kwargs
        attributes.pop(ZIP_ENTRY, None)


def write_zip(path: PathOrFile, save: Callable[[Any], None]) -> None:
    """
    Write a zip. An older one of the same name stays until the new one is complete.

    :param path: path of the zip, with or without its suffix; or an open file, which is written at once
    :param save: function that writes the zip to an open file
    """
    if not isinstance(path, (str, pathlib.Path)):
        save(path)
        return
    path = pathlib.Path(path)
    if not path.suffix:
        path = path.with_name(f"{path.name}.zip")  # SB3's rule
    path = path.resolve()  # of the file behind a link, so that the link stays
    make_directory(path.parent)
    write_file(path, save)
    sync_directory(path.parent)


def warn_if_stock_refuses(model: "PrioritizedAlgorithm") -> None:
    """
    Warn of n-step returns that the stock algorithm does not have.

    :param model: algorithm that is to be saved
    :warns UserWarning: if the stock algorithm would refuse its zip
    """
    if model.n_steps == 1 or model.replay_buffer_class is PrioritizedHerReplayBuffer:
        return
    if issubclass(model._default_buffer_class(), PrioritizedSequenceReplayBuffer):
        return  # a recurrent algorithm has no stock counterpart
    if model.optimize_memory_usage:
        what = "optimize_memory_usage"
    elif isinstance(model.observation_space, spaces.Dict):
        what = "Dict observations"
    else:
        return
    warnings.warn(
        f"This zip loads as {type(model).__name__}, but not as the stock algorithm, which has no n-step returns "
        f"(n_steps={model.n_steps}) with {what}"
    )


# ---- loading


class Saved(NamedTuple):
    """
    What a zip says about a model, without its networks.

    :param policy_class: class of the policy; ``None`` if it cannot be read
    :param stock_settings: ``replay_buffer_kwargs`` that the stock algorithm knows
    :param own: contents of ``ZIP_ENTRY``: the other settings of the buffer, and beta; empty for the zip of a stock algorithm
    """

    policy_class: type | None
    stock_settings: dict[str, Any]
    own: dict[str, Any]

    @property
    def beta(self) -> float:
        """Beta of the saved run; 0 for the zip of a stock algorithm."""
        return float(self.own.get("beta", 0.0))

    def buffer_settings(self, replaced: Collection[str]) -> dict[str, Any]:
        """
        Join all settings of the buffer.

        :param replaced: names of the attributes for which ``load`` was given other values
        :return: ``replay_buffer_kwargs`` of the saved model, without an ``n_steps`` or ``gamma`` that was replaced
        :raises ValueError: if they cannot be read, e.g. because the class of a scheme is missing
        """
        if self.own and "settings" not in self.own:
            raise ValueError(
                "The buffer settings of this zip cannot be read, perhaps because the class of its scheme is missing. Make the "
                "class importable under its old name, or pass replay_buffer_kwargs to load()"
            )
        settings = {**self.stock_settings, **self.own.get("settings", {})}
        for name in ("n_steps", "gamma"):
            if name in replaced:
                settings.pop(name, None)
        return _without_used_folder(settings)


def read_saved(path: PathOrFile, custom_objects: dict[str, Any] | None) -> Saved:
    """
    Read what a zip says about a model, without its networks.

    :param path: path of the zip; or an open file, whose position stays
    :param custom_objects: objects that replace objects of the zip
    :return: policy, settings and beta
    :raises ValueError: for a file that is no zip
    """
    file: Any = open_path(path, "r", suffix="zip")
    position = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            content = json.loads(archive.read("data")) if "data" in archive.namelist() else {}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a zip of a model") from error
    finally:
        if isinstance(path, (str, pathlib.Path)):
            file.close()
        else:
            file.seek(position)  # SB3 reads it next
    names = ("policy_class", "replay_buffer_kwargs", "n_steps", ZIP_ENTRY)
    read = json_to_data(json.dumps({name: content[name] for name in names if name in content}), custom_objects)
    stock_settings = dict(read.get("replay_buffer_kwargs") or {})
    if read.get("n_steps", 1) > 1:
        # SB3's own class has copied both from the attributes, which load() may change.
        stock_settings.pop("n_steps", None)
        stock_settings.pop("gamma", None)
    own = {} if read.get(ZIP_ENTRY) is None else json_to_data(read[ZIP_ENTRY])
    return Saved(read.get("policy_class"), stock_settings, own)


def _without_used_folder(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out a folder that another run still uses, so that its model can be loaded meanwhile, e.g. for an evaluation."""
    if settings.get("storage_folder") is None:
        return settings
    try:
        MappedFile(settings["storage_folder"], 1)
    except (OSError, NotImplementedError) as error:
        warnings.warn(f"The loaded model keeps its transitions in RAM: {error}")
        return {name: value for name, value in settings.items() if name != "storage_folder"}
    return settings


def check_policy(cls: type["PrioritizedAlgorithm"], policy_class: type | None) -> None:
    """
    Check by the policy that a zip is one of this algorithm. A policy that is entirely the user's may be of any.

    :param cls: class that is to load the zip
    :param policy_class: class of the policy in the zip; ``None`` if it cannot be read
    :raises ValueError: for the zip of another algorithm
    """
    own = tuple(cls.policy_aliases.values())
    if policy_class is None or not own:
        return
    known = (base for base in policy_class.__mro__ if base in own or _is_of_one_algorithm(base))
    found = next(known, None)
    if found is None or found in own:
        return
    holds_jax = package_of(found) == "sbx"
    needs_jax = package_of(own[0]) == "sbx"
    if holds_jax and not needs_jax:
        raise ValueError(
            f"This zip holds networks of JAX, which {cls.__name__} of sb3_per cannot load: import the class from sb3_per.sbx. "
            "A saved replay buffer loads in both"
        )
    if needs_jax and not holds_jax:
        raise ValueError(
            f"This zip holds networks of PyTorch, which {cls.__name__} of sb3_per.sbx cannot load: import the class from "
            "sb3_per. A saved replay buffer loads in both"
        )
    raise ValueError(
        f"This zip is not one of {cls.__name__}: its policy is {found.__name__}, and {cls.__name__} has {own[0].__name__}. "
        "Load it with the class that saved it, or with the prioritized class of the same algorithm, e.g. PERSAC for SAC"
    )


def _is_of_one_algorithm(policy_class: type) -> bool:
    """Tell whether a class of policies is that of a single algorithm; algorithms share those in the module ``common``."""
    return not is_user_defined(policy_class) and "common" not in policy_class.__module__.split(".")
