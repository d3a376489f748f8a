"""
Where actors run: something that starts them, asks them, and waits for answers. Here the engine without processes; it knows
nothing of learning, and a learner cannot tell it from the other one.
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

from sb3_per.distributed.worker import ActorWorker


class ActorDiedError(Exception):
    """There is no answer, and there will be none: the process or its machine is gone."""


class Engine(Protocol):
    """Starts actors, by number, and asks them."""

    def start(self, actor: int) -> None:
        """
        :param actor: that is to be there, for the first time or anew
        """

    def has_started(self, actor: int) -> bool:
        """
        :param actor: its number
        :return: whether its process runs, whatever it does; ``False`` while it waits for a core, or for its machine
        """

    def stop(self, actor: int) -> None:
        """
        :param actor: that is to end, whatever it does
        """

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """
        :param actor: its number
        :param method: of :class:`~sb3_per.distributed.worker.ActorWorker`; calls of an actor run one after the other
        :param args: its arguments; one that :meth:`put` gave counts as what was put
        :param kwargs: its keyword arguments
        :return: a handle of the answer
        """

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """
        :param handles: of answers, at least one
        :param timeout: in seconds
        :return: one whose answer, or the lack of it, is there; ``None`` if time is up
        """

    def answer(self, handle: Any) -> Any:
        """
        :param handle: of an answer that is waited for
        :return: the answer
        :raises ActorDiedError: if there will be none
        """

    def put(self, value: Any) -> Any:
        """
        :param value: that several are to be told; it may change afterwards
        :return: what stands for it in :meth:`ask`
        """

    def close(self) -> None:
        """End all actors."""


class _Put:
    """A value that was put."""

    def __init__(self, value: Any):
        self.value = value


class _Pending:
    """A call whose time comes when somebody waits for its answer, as if the actor had taken until then."""

    def __init__(self, worker: ActorWorker, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.worker, self.method, self.args, self.kwargs = worker, method, args, kwargs
        self.answer: Any = None
        self.is_done = False

    def run(self) -> None:
        args = (arg.value if isinstance(arg, _Put) else arg for arg in self.args)
        self.answer = getattr(self.worker, self.method)(*args, **self.kwargs)
        self.is_done = True


class LocalEngine:
    """All actors in this process, one after the other: for tests, for debugging, and to simulate what lag does."""

    def __init__(self) -> None:
        self._workers: dict[int, ActorWorker] = {}
        self._waiting: dict[int, list[_Pending]] = {}

    def start(self, actor: int) -> None:
        """See :class:`Engine`."""
        self._workers[actor], self._waiting[actor] = ActorWorker(), []

    def has_started(self, actor: int) -> bool:
        """See :class:`Engine`."""
        return True

    def stop(self, actor: int) -> None:
        """See :class:`Engine`."""
        self._workers.pop(actor).ask("close")
        self._waiting[actor] = []

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """See :class:`Engine`."""
        pending = _Pending(self._workers[actor], method, args, kwargs)
        self._waiting[actor].append(pending)
        return pending

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """See :class:`Engine`. The first one is always there, after as much work as it takes."""
        self.answer(handles[0])
        return handles[0]

    def answer(self, handle: Any) -> Any:
        """See :class:`Engine`."""
        for waiting in self._waiting.values():
            if handle in waiting:
                while not handle.is_done:  # those before it come first, as in a process
                    waiting.pop(0).run()
        return handle.answer

    def put(self, value: Any) -> Any:
        """See :class:`Engine`."""
        return _Put(copy.deepcopy(value))

    def close(self) -> None:
        """See :class:`Engine`."""
        for actor in list(self._workers):
            self.stop(actor)
