"""
Prioritized experience replay for Stable-Baselines3.

The first use of a public name imports all of them, see :mod:`sb3_per.public`. Until then PyTorch is not loaded, so that the
help of the command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sb3_per.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        module = importlib.import_module("sb3_per.public")
        names = {each: value for each, value in vars(module).items() if not each.startswith("_")}
        globals().update(names, __all__=sorted(names))
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
