"""
Actors as processes of Ray, on the cores of this machine or on those of a cluster. The only place that imports Ray; it knows
nothing of learning.
"""

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError

from sb3_per.distributed.engines import ActorDiedError
from sb3_per.distributed.worker import ActorWorker

# How long actors may take to close their environments, in seconds, before they are killed.
_TIME_TO_CLOSE = 2.0

# Engines that use the Ray which the first of them has started: the last one to close shuts it down.
_users: set[int] = set()


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
        # Without a number of cores an actor needs one to be placed, and none to stay: there may be more actors than cores.
        self._remote_class = ray.remote(ActorWorker).options(max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")
        self._actors: dict[int, Any] = {}
        # A process takes seconds to import what an actor needs. Where actors die, one that has done so is waiting.
        self._started: set[int] = set()
        self._spare: Any = None
        self._closed = False

    def start(self, actor: int) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        spare, self._spare = self._spare, None
        self._actors[actor] = self._remote_class.remote() if spare is None else spare
        if actor in self._started:
            self._spare = self._remote_class.remote()
        self._started.add(actor)

    def stop(self, actor: int) -> None:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        ray.kill(self._actors.pop(actor), no_restart=True)

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """See :class:`~sb3_per.distributed.engines.Engine`."""
        return getattr(self._actors[actor], method).remote(*args, **kwargs)

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
        closing = [actor.ask.remote("close") for actor in self._actors.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_TIME_TO_CLOSE)
        for number in list(self._actors):
            self.stop(number)
        if self._spare is not None:
            ray.kill(self._spare, no_restart=True)
        if id(self) in _users:
            _users.discard(id(self))
            if not _users:
                ray.shutdown()
