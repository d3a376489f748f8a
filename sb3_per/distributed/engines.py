"""Engines start actors and call them. Here: their interface, and the engine without processes."""

import copy
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import cloudpickle

from sb3_per.distributed.worker import ActorWorker


class ActorDiedError(Exception):
    """The process or machine of an actor is gone, so its answer will not come."""


@dataclass(frozen=True)
class Failure:
    """
    An error in an actor.

    :param error: the error, or a RuntimeError with its text if it cannot be sent
    :param text: its traceback
    """

    error: Exception
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """
        Make a failure that can be sent.

        :param error: the error that is being handled
        :return: the failure
        """
        text = "".join(traceback.format_exception(error))
        if isinstance(error, Exception):
            try:
                cloudpickle.loads(cloudpickle.dumps(error))
                return cls(error, text)
            except Exception:
                pass
        # A KeyboardInterrupt or a SystemExit of an environment must not look like one of the learner.
        return cls(RuntimeError(f"{type(error).__name__}: {error}"), text)

    def reraise(self) -> None:
        """
        Raise the error in the learner, with the actor's traceback as its cause.

        :raises Exception: the error
        """
        raise self.error from RuntimeError(f"in an actor:\n\n{self.text}")


class Engine(Protocol):
    """Start actors by number, and call them."""

    def start(self, actor: int) -> None:
        """
        Start an actor, for the first time or again.

        :param actor: its number
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
        :param timeout: most seconds to wait
        :return: a handle whose answer has arrived or will never arrive; ``None`` after ``timeout``
        """

    def answer(self, handle: Any) -> Any:
        """
        Get an answer, and wait for it if necessary.

        :param handle: handle of the answer
        :return: what the method returned, or a ``Failure`` with the error that it raised
        :raises ActorDiedError: if it will not come
        """

    def put(self, value: Any) -> Any:
        """
        Keep a copy of a value, to pass it to several calls.

        :param value: the value
        :return: reference to the copy, as an argument of :meth:`ask`
        """

    def close(self) -> None:
        """End all actors."""


class _Pending:
    """
    A call that runs when its answer is needed, as if the actor had worked until then.

    :param queue: calls of the actor that did not run yet
    :param worker: the actor
    :param method: name of one of its methods
    :param args: arguments of the method
    :param kwargs: keyword arguments of the method
    """

    def __init__(self, queue: list["_Pending"], worker: ActorWorker, method: str, *args: Any, **kwargs: Any):
        self.queue, self.method = queue, method
        self._call = partial(getattr(worker, method), *args, **kwargs)
        self.answer: Any = None
        self.is_done = False

    def run(self) -> None:
        """Call the method and keep its answer."""
        try:
            self.answer = self._call()
        except Exception as error:
            self.answer = Failure.of(error)
        self.is_done = True


class LocalEngine:
    """Run all actors in this process, one after the other: for tests, for debugging, and to simulate lag."""

    def __init__(self) -> None:
        #: the actors by number
        self.workers: dict[int, ActorWorker] = {}
        self._queues: dict[int, list[_Pending]] = {}

    def start(self, actor: int) -> None:
        """See :class:`Engine`."""
        self.workers[actor], self._queues[actor] = ActorWorker(), []

    def has_started(self, actor: int) -> bool:
        """See :class:`Engine`."""
        return True

    def stop(self, actor: int) -> None:
        """See :class:`Engine`."""
        _Pending([], self.workers.pop(actor), "ask", "close").run()

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """See :class:`Engine`."""
        queue = self._queues[actor]
        queue.append(_Pending(queue, self.workers[actor], method, *args, **kwargs))
        return queue[-1]

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """See :class:`Engine`. Runs the first call, however long it takes."""
        self.answer(handles[0])
        return handles[0]

    def answer(self, handle: Any) -> Any:
        """See :class:`Engine`."""
        while not handle.is_done:  # earlier calls run first, as in a process
            handle.queue.pop(0).run()
        return handle.answer

    def put(self, value: Any) -> Any:
        """See :class:`Engine`."""
        return copy.deepcopy(value)

    def close(self) -> None:
        """See :class:`Engine`."""
        for actor in list(self.workers):
            self.stop(actor)
