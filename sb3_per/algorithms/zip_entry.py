"""What the zip of a model says about its buffer, beside what the stock algorithm knows."""

import io
import pathlib
import warnings
from collections.abc import Callable, Collection
from typing import Any

from stable_baselines3.common.save_util import data_to_json, json_to_data

from sb3_per.buffers.files import MappedFile
from sb3_per.buffers.settings import NEW_ARGUMENTS
from sb3_per.persistence.atomic import make_directory, sync_directory, write_file

#: What SB3 takes as the path of a file.
PathOrFile = str | pathlib.Path | io.BufferedIOBase

#: Name of the entry that this package adds to a zip. SB3 makes entries attributes, and the stock algorithm ignores this one.
ZIP_ENTRY = "prioritized_replay"

#: Contents of the entry, if a zip of the stock algorithm has none.
NO_ENTRY = '{"settings": {}, "beta": 0.0}'

#: Name of an attribute that a model has while it is loaded: names of the attributes for which ``load`` was given other values.
GIVEN_TO_LOAD = "_given_to_load"


def add_settings_of_zip(model: Any, settings: dict[str, Any], given: Collection[str]) -> float:
    """
    Add the settings in the entry of a zip to those that SB3 has read, unless ``load`` was given all settings. A folder in
    which no file can be made is left out, so that the model can be loaded on another machine, e.g. for an evaluation.

    :param model: algorithm that is being loaded: its attributes are the entries of the zip
    :param settings: its ``replay_buffer_kwargs``, which change
    :param given: names of the attributes for which ``load`` was given other values
    :return: beta
    :raises ValueError: if the settings cannot be read, e.g. because the class of a scheme is missing
    """
    entry = json_to_data(vars(model).get(ZIP_ENTRY, NO_ENTRY))
    beta: float = entry.get("beta", 0.0)
    if "replay_buffer_kwargs" in given:
        return beta
    if "settings" not in entry:
        raise ValueError(
            "The buffer settings of this zip cannot be read, perhaps because the class of its scheme is missing. Make the "
            "class importable under its old name, or pass replay_buffer_kwargs to load()"
        )
    settings.update(entry["settings"])
    if settings.get("storage_folder") is not None:
        try:
            MappedFile(settings["storage_folder"], 1)
        except (OSError, NotImplementedError) as error:
            warnings.warn(f"The loaded model keeps its transitions in RAM: {error}")
            del settings["storage_folder"]
    # A zip of the stock algorithm has the shared arguments twice. The attribute may have changed since.
    for name, default in model.shared_arguments.items():
        if name in given or getattr(model, name) != default:
            settings.pop(name, None)
    return beta


def settings_to_save(settings: dict[str, Any], beta: float) -> tuple[dict[str, Any], str]:
    """
    Divide the settings of a buffer into those of SB3's buffers and the entry of a zip.

    :param settings: ``replay_buffer_kwargs``
    :param beta: current exponent of the weights
    :return: ``replay_buffer_kwargs`` of the stock algorithm, and the entry
    """
    own = {}
    stock = {}
    for name, value in settings.items():
        if name in NEW_ARGUMENTS:
            own[name] = value
        else:
            stock[name] = value
    # As one string: SB3 would unpickle a scheme object, which fails without this package.
    return stock, data_to_json({"settings": own, "beta": float(beta)})


def write_zip(path: PathOrFile, save: Callable[[Any], None]) -> None:
    """
    Write the zip of a model. An older one of the same name stays until the new one is complete.

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
