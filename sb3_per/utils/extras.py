"""Packages that an extra of this one installs, and the command for those that are missing."""

import importlib
from types import ModuleType


def require(module: str, extra: str, what: str) -> ModuleType:
    """
    :param module: name of a module of another package
    :param extra: of this package, that installs it
    :param what: needs it, the beginning of a sentence
    :return: the module
    :raises ImportError: if it is not installed; one that is there and does not work raises its own error
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)  # also where only the submodule is there already
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ImportError(f"{what} needs {package}: pip install 'sb3_per[{extra}]'", name=package) from error
