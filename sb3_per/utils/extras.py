"""Import packages that come with an extra, and name the command that installs a missing one."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

# Modules that come with an extra.
EXTRAS = {
    "extra": ("matplotlib", "tensorboard", "tqdm", "rich"),
    "zoo": ("rl_zoo3", "requests", "moviepy", "tensorboard", "pygame"),
    "compare": ("rl_zoo3", "matplotlib", "scipy", "tqdm"),
    "envs": ("Box2D", "mujoco", "ale_py", "minatar", "cv2"),
    "minari": ("minari", "h5py", "PIL"),
    "distributed": ("ray",),
    "sbx": ("sbx",),
}

# Arguments of pip where the name of a module is not enough.
_ARGUMENTS = {
    "cv2": ("opencv-python",),
    "PIL": ("pillow",),
    "minari": ("minari[hdf5]", "pillow"),
    "h5py": ("minari[hdf5]",),
    "sbx": ("sbx-rl>=0.27,<0.30",),
    "rl_zoo3": ("rl_zoo3[plots]", "requests"),
}


def require(module: str, extra: str, what: str) -> ModuleType:
    """
    Import a module of another package.

    :param module: name of the module
    :param extra: extra of this package that installs it
    :param what: what needs it, the beginning of a sentence
    :return: the module
    :raises ImportError: if its package is not installed; the message names the command that installs it
    """
    package = module.partition(".")[0]
    try:
        found = importlib.import_module(package)  # first, in case only the submodule is loaded
        if getattr(found, "__file__", None) is None:  # a folder of this name, e.g. one with the user's results
            raise ModuleNotFoundError(f"{found} is a folder, and no package", name=package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ImportError(f"{what} needs {package}: {install(extra, package)}", name=package) from error


@contextlib.contextmanager
def missing_packages_in_one_line(prog: str) -> Iterator[None]:
    """
    Exit with one line instead of a traceback where a package is missing.

    :param prog: program name shown in the line
    :raises SystemExit: with status 1, for an error that names the command that installs the package
    """
    try:
        yield
    except Exception as error:  # Gymnasium's error about a missing package is no ImportError
        if "pip install" not in str(error):
            raise
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def install(extra: str, *packages: str) -> str:
    """
    Say how to install an extra.

    :param extra: extra of this package
    :param packages: packages of the extra that are missing, as they are imported
    :return: command that installs them, and another one for a clone of this package
    """
    arguments = dict.fromkeys(argument for package in packages for argument in _ARGUMENTS.get(package, (package,)))
    named = " ".join(f'"{argument}"' for argument in arguments)
    return f'pip install {named}, or pip install ".[{extra}]" in a clone of this package'
