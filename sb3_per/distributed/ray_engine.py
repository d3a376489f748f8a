"""
Actors as processes of Ray, on the cores of this machine or on those of a cluster. The only place that imports Ray; it knows
nothing of learning.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError

from sb3_per.distributed.engines import ActorDiedError

# How long actors may take to close their environments, in seconds, before they are killed.
_TIME_TO_CLOSE = 2.0

# Engines that use the Ray which the first of them has started: the last one to close shuts it down.
_users: set[int] = set()


def process_class() -> type:
    """
    :return: class of what runs in the process of an actor, around an :class:`~sb3_per.distributed.worker.ActorWorker`
    """

    # A local class is sent as a whole, and not as the name of a module. So the process can answer `hello` before it spends
    # seconds on importing PyTorch, and can be told first where modules are.
    class ActorProcess:
        def __init__(self, path: list[str]):
            """
            :param path: folders that the learner imports modules from
            """
            # In the order of the learner, where two modules may have the same name.
            sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
            self.worker: Any = None

        def hello(self) -> None:
            """Answer, which says that the process runs."""

        def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
            """
            :param method: of the worker
            :param args: its arguments
            :param kwargs: its keyword arguments
            :return: its answer
            """
            from sb3_per.distributed.messages import Failure
            from sb3_per.distributed.worker import ActorWorker

            if self.worker is None:
                self.worker = ActorWorker()
            try:
                return getattr(self.worker, method)(*args, **kwargs)
            except BaseException as error:  # nobody presses Ctrl-C here: an environment has raised it, or exits
                return Failure.of(error)

    return ActorProcess


class RayEngine:
    """
    See :class:`~sb3_per.distributed.engines.Engine`.

    :param address: of a cluster, as ``ray.init`` takes it; ``None``: the Ray that is there already or, where ``RAY_ADDRESS``
        is not set, one of this machine, which ends with the environment
    :param options: of ``ray.init``, if it is called here
    """

    def __init__(self, address: str | None = None, options: dict[str, Any] | None = None):
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address=address, **{"include_dashboard": False, "logging_level": "warning", **(options or {})})
            _users.add(id(self))
        elif _users:
            _users.add(id(self))
        # No number of cores is given, so that there may be more actors than cores.
        self._remote_class = ray.remote(process_class()).options(
            max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._actors: dict[int, Any] = {}
        # Answers of new processes: one that is there says that its process runs.
        self._hellos: dict[int, Any] = {}
        self._closed = False

    def start(self, actor: int) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        path = list(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
        self._actors[actor] = self._remote_class.remote(path)
        self._hellos[actor] = self._actors[actor].hello.remote()

    def has_started(self, actor: int) -> bool:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        ready, _ = ray.wait([self._hellos[actor]], timeout=0)
        return bool(ready)

    def stop(self, actor: int) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        ray.kill(self._actors.pop(actor), no_restart=True)

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        return self._actors[actor].call.remote(method, *args, **kwargs)

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        ready, _ = ray.wait(list(handles), num_returns=1, timeout=timeout)
        return ready[0] if ready else None

    def answer(self, handle: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`. Arrays of the answer lie in the object store, and pin it there."""
        try:
            return ray.get(handle)
        except (RayActorError, WorkerCrashedError, ObjectLostError) as error:
            raise ActorDiedError(str(error)) from error

    def put(self, value: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        return ray.put(value)

    def close(self) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`. Ray as well, if it was started by one of these engines."""
        if self._closed:
            return
        self._closed = True
        if not ray.is_initialized():  # shut down by somebody else, and the actors with it
            _users.clear()
            return
        closing = [actor.call.remote("ask", "close") for actor in self._actors.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_TIME_TO_CLOSE)
        for number in list(self._actors):
            self.stop(number)
        if id(self) in _users:
            _users.discard(id(self))
            if not _users:
                ray.shutdown()
