"""Start actors and call them: the interface of engines, and the engine without processes."""

import contextlib
import copy
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from sb3_per.distributed.worker import ActorWorker


class Engine(Protocol):
    """Start actors by number, and call them."""

    def start(self, actor: int, recipe: bytes, start: int) -> None:
        """
        Start an actor, for the first time or again. It makes its environments before its first call.

        :param actor: its number
        :param recipe: a pickled :class:`~sb3_per.distributed.environments.EnvRecipe`
        :param start: number of earlier starts
        """

    def has_started(self, actor: int) -> bool:
        """
        Tell whether the process of an actor is running.

        :param actor: its number
        :return: ``False`` while the process waits for its turn to start
        """

    def stop(self, actor: int) -> None:
        """
        End an actor, even in the middle of a call.

        :param actor: its number
        """

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """
        Call a method of an actor without waiting. Calls of one actor run one after the other.

        :param actor: its number
        :param method: name of a method of :class:`~sb3_per.distributed.worker.ActorWorker`
        :param args: its arguments; a reference from :meth:`put` is replaced by the value
        :param kwargs: its keyword arguments
        :return: handle of the answer
        """

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """
        Wait for an answer.

        :param handles: handles of answers, at least one
        :param timeout: longest wait in seconds
        :return: a handle whose answer has arrived or will never arrive; ``None`` after ``timeout``
        """

    def answer(self, handle: Any) -> Any:
        """
        Get an answer, and wait for it if necessary.

        :param handle: handle of the answer
        :return: what the method returned
        :raises Exception: the error that it raised, or another one if the actor is gone
        """

    def put(self, value: Any) -> Any:
        """
        Keep a copy of a value, to pass it to several calls.

        :param value: the value
        :return: reference to the copy, as an argument of :meth:`ask`
        """

    def close(self) -> None:
        """End all actors."""


class LocalEngine:
    """Run all actors in this process: for tests, for debugging, and to simulate lag. A call runs at once."""

    def __init__(self) -> None:
        #: the actors by number
        self.workers: dict[int, ActorWorker] = {}

    def start(self, actor: int, recipe: bytes, start: int) -> None:
        """See :class:`Engine`."""
        self.workers[actor] = ActorWorker(recipe, actor, start)

    def has_started(self, actor: int) -> bool:
        """See :class:`Engine`."""
        return True

    def stop(self, actor: int) -> None:
        """See :class:`Engine`."""
        with contextlib.suppress(Exception):  # a process that is killed raises nothing either
            self.workers.pop(actor).venv.close()

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """See :class:`Engine`."""
        answer: Future[Any] = Future()
        try:
            answer.set_result(getattr(self.workers[actor], method)(*args, **kwargs))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """See :class:`Engine`."""
        return handles[0]

    def answer(self, handle: Any) -> Any:
        """See :class:`Engine`."""
        return handle.result()

    def put(self, value: Any) -> Any:
        """See :class:`Engine`."""
        return copy.deepcopy(value)

    def close(self) -> None:
        """See :class:`Engine`."""
        for actor in list(self.workers):
            self.stop(actor)
