"""Run actors as processes of Ray, on this machine or on a cluster. Only this module imports Ray."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ray

from sb3_per.distributed.engines import Engine

# Seconds that actors get to close their environments before they are killed.
_TIME_TO_CLOSE = 2.0

# Engines that share the Ray that the first of them started. The last one to close shuts it down.
_users: set[int] = set()


def _process_class() -> type:
    """Make the class that runs in the process of an actor, around an :class:`~sb3_per.distributed.worker.ActorWorker`."""

    # Of a local class, Ray sends the code and not the name of its module. So the process can set its import path first, and
    # answer `__ray_ready__` before it spends seconds on importing PyTorch.
    class ActorProcess:
        def __init__(self, path: list[str], *args: Any):
            # In the learner's order, because two modules may have the same name.
            sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
            self.args = args
            self.worker: Any = None

        def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
            """See :meth:`~sb3_per.distributed.engines.Engine.ask`."""
            if self.worker is None:
                import torch

                from sb3_per.distributed.worker import ActorWorker

                # With one thread, sums do not depend on the number of cores: another machine computes the same numbers.
                torch.set_num_threads(1)
                self.worker = ActorWorker(*self.args)
            return getattr(self.worker, method)(*args, **kwargs)

        def close(self) -> None:
            """Close the environments, if they were made."""
            if self.worker is not None:
                self.worker.venv.close()

    return ActorProcess


class RayEngine(Engine):
    """
    Run each actor in a process of Ray.

    An actor that fails gets a new process. Ray's own ``max_restarts`` is not used: it does not restart an actor whose
    environment raises an error, it counts over the life of an actor and not over a run, and a call after ``ray.kill`` may
    still reach the old process.

    :param address: address of a cluster for ``ray.init``; ``None``: the Ray that already runs in this process, that of
        ``RAY_ADDRESS``, or a new one on this machine, which ends with the environment
    :param options: further arguments of ``ray.init``, if it is called here
    """

    def __init__(self, address: str | None = None, options: dict[str, Any] | None = None):
        starts_ray = not ray.is_initialized()
        if starts_ray:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address=address, **{"include_dashboard": False, "logging_level": "warning", **(options or {})})
        if starts_ray or _users:
            _users.add(id(self))
        # Without a number of cores, there may be more actors than cores.
        self._remote_class: Any = ray.remote(_process_class()).options(scheduling_strategy="SPREAD")
        self._actors: dict[int, Any] = {}
        # The first answer of each process, which shows that it runs.
        self._ready: dict[int, Any] = {}

    def start(self, actor: int, recipe: bytes, n_earlier_starts: int) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        if actor in self._actors:
            ray.kill(self._actors[actor])
        path = list(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
        self._actors[actor] = self._remote_class.remote(path, recipe, actor, n_earlier_starts)
        self._ready[actor] = self._actors[actor].__ray_ready__.remote()

    def is_running(self, actor: int) -> bool:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        ready, _ = ray.wait([self._ready[actor]], timeout=0)
        return bool(ready)

    def ask(self, actor: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        # By its name: the process imports the class of the method at its first call.
        return self._actors[actor].call.remote(method.__name__, *args, **kwargs)

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        ready, _ = ray.wait(list(handles), timeout=timeout)
        return ready[0] if ready else None

    def answer(self, handle: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`. Arrays of the answer stay in Ray's object store."""
        return ray.get(handle)

    def put(self, value: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        return ray.put(value)

    def close(self) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`. Also shut down Ray if an engine started it."""
        if not ray.is_initialized():  # already shut down, and the actors with it
            _users.clear()
            return
        closing = [actor.close.remote() for actor in self._actors.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_TIME_TO_CLOSE)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        if _users == {id(self)}:
            ray.shutdown()
        _users.discard(id(self))
