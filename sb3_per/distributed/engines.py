"""Start actors and call them: the interface of engines, and the engine that runs all actors in this process."""

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import torch as th

from sb3_per.distributed import random_state
from sb3_per.distributed.worker import ActorWorker

# Methods that draw from the random generators of an actor.
_ACTING = (ActorWorker.begin, ActorWorker.collect)


class Engine(ABC):
    """Run actors, which have numbers from 0, and call methods of their :class:`~sb3_per.distributed.worker.ActorWorker`."""

    @abstractmethod
    def start(self, actor: int, recipe: bytes, n_earlier_starts: int) -> None:
        """
        Start an actor. If it runs, end it first, even in the middle of a call.

        :param actor: its number
        :param recipe: a pickled :class:`~sb3_per.distributed.environments.EnvRecipe`
        :param n_earlier_starts: how often it was started before
        """

    @abstractmethod
    def is_running(self, actor: int) -> bool:
        """Tell whether the process of an actor runs."""

    @abstractmethod
    def ask(self, actor: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """
        Call a method of an actor without waiting. Calls of one actor run one after the other.

        :param actor: its number
        :param method: of the class :class:`~sb3_per.distributed.worker.ActorWorker`, e.g. ``ActorWorker.begin``
        :param args: its arguments; a reference from :meth:`put` is replaced by the value
        :param kwargs: its keyword arguments
        :return: handle of the answer
        """

    @abstractmethod
    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """Return a handle whose answer has arrived or will never arrive; ``None`` after ``timeout`` seconds."""

    @abstractmethod
    def answer(self, handle: Any) -> Any:
        """
        Wait for an answer and return it. Its arrays may be read-only, and must be copied to be kept.

        :raises Exception: the error of the method, or another one if the actor is gone
        """

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Keep a copy of a value. Return a reference, as an argument of several calls."""

    @abstractmethod
    def close(self) -> None:
        """End all actors."""


class LocalEngine(Engine):
    """Run all actors in this process: for tests, for debugging, and to simulate lag. A call runs at once."""

    def __init__(self) -> None:
        #: the actors by number
        self.workers: dict[int, ActorWorker] = {}
        self._random_states: dict[int, random_state.RandomState] = {}

    def start(self, actor: int, recipe: bytes, n_earlier_starts: int) -> None:
        """See :class:`Engine`."""
        self._end(actor)
        self.workers[actor] = ActorWorker(recipe, actor, n_earlier_starts)

    def is_running(self, actor: int) -> bool:
        """See :class:`Engine`."""
        return True

    def ask(self, actor: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """See :class:`Engine`."""
        answer: Future[Any] = Future()
        # Synchronous steps draw from the generators of this process, as in `DummyVecEnv`.
        with self._process_of(actor) if method in _ACTING else contextlib.nullcontext():
            try:
                answer.set_result(method(self.workers[actor], *args, **kwargs))
            except Exception as error:
                answer.set_exception(error)
        return answer

    @contextlib.contextmanager
    def _process_of(self, actor: int) -> Iterator[None]:
        """Act with random generators and a single thread, as an actor in a process of its own."""
        before = random_state.current()
        n_threads = th.get_num_threads()
        if actor in self._random_states:  # else `begin` seeds them
            random_state.set_current(self._random_states[actor])
        th.set_num_threads(1)
        try:
            yield
        finally:
            self._random_states[actor] = random_state.current()
            random_state.set_current(before)
            th.set_num_threads(n_threads)

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
            self._end(actor)

    def _end(self, actor: int) -> None:
        worker = self.workers.pop(actor, None)
        if worker is not None:
            with contextlib.suppress(Exception):  # a process that is killed raises nothing either
                worker.venv.close()
