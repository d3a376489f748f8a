"""
Prioritized experience replay for Stable-Baselines3.

The first use of a public name imports all of them, see :mod:`sb3_per.names`. Until then PyTorch is not loaded, so that the
help of the command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sb3_per.names import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        names = vars(importlib.import_module("sb3_per.names"))
        public = {public: value for public, value in names.items() if not public.startswith("_")}
        globals().update(public, __all__=sorted(public))
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
