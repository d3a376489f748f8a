"""Prioritized experience replay for Stable-Baselines3. Its names are in ``public.py``."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_per.public import *  # noqa: F403
    from sb3_per.public import __all__ as __all__
else:
    # At the first use of a name, so that the command line writes its help without loading PyTorch.
    def __getattr__(name: str) -> Any:
        if not name.startswith("_") or name == "__all__":
            public = importlib.import_module("sb3_per.public")
            globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
            if name in globals():  # a folder, such as `buffers`, is one as soon as it is loaded
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})


__version__ = "0.1.0"
