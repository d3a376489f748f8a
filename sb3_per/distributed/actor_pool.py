"""Direct the actors: let them act, wait for their answers, and restart them."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import Engine
from sb3_per.distributed.environments import EnvRecipe

# Number of restarts in a row without a chunk after which an actor has failed: another restart would not help either.
FRUITLESS_RESTARTS = 3

#: Function of an actor's number, and of whether it was just restarted, that calls it and returns the handle of its answer.
GetReady = Callable[[int, bool], Any]

#: Function of the number of an actor, a number of steps, and the number of steps that are left. It asks the actor to act, and
#: returns the handle of the answer.
Act = Callable[[int, int, int], Any]


class NoActorAliveError(RuntimeError):
    """Report that no process of an actor has run for ``timeout`` seconds."""


@dataclass(frozen=True)
class ActorSettings:
    """
    Settings of all actors, see :func:`~sb3_per.distributed.make.make_actors`.

    :param chunk: largest number of steps of each environment in a call
    :param exploration: ``"ladder"`` or ``None``
    :param initial_priorities: ``"actor"`` or ``"max"``
    :param in_flight: largest number of unanswered calls of an actor; with two, it does not wait for the learner
    :param lockstep: whether answers are taken in the order of the calls
    :param max_restarts: largest number of restarts of each actor in a run
    :param timeout: seconds of silence before a warning or an error
    """

    chunk: int
    exploration: str | None
    initial_priorities: str
    in_flight: int
    lockstep: bool
    max_restarts: int
    timeout: float


class Call(NamedTuple):
    """
    A call that an actor has not answered yet.

    :param actor: number of the actor
    :param n_steps: steps that each of its environments is to take; 0 if it is to get ready
    """

    actor: int
    n_steps: int


class ActorPool:
    """
    Direct the actors in all runs.

    :param engine: engine that the actors run on
    :param n_actors: number of actors
    :param recipe: how an actor makes its environments
    :param settings: settings of all actors
    """

    def __init__(self, engine: Engine, n_actors: int, recipe: EnvRecipe, settings: ActorSettings):
        self.engine = engine
        self.n_actors = n_actors
        self.settings = settings
        #: environments of each actor
        self.n_envs: int = recipe.arguments["n_envs"]
        self._recipe = cloudpickle.dumps(recipe)
        #: whether the actors were stopped
        self.closed = False
        #: how often each actor was restarted, over all runs, so that no seed is used twice
        self.n_restarts_ever = [0] * n_actors
        # It also asks actors that are restarted; `gather` and `begin` set it, before the first call.
        self._get_ready: GetReady | None = None
        # By the handle of the answer, the oldest first.
        self._pending: dict[Any, Call] = {}
        # Steps that each environment of an actor may still take, over all actors.
        self._n_steps_left = 0
        # Actors that may get another call, in their order; an actor that may get two is there twice.
        self._idle: list[int] = []
        #: number of runs so far
        self.n_runs = 0
        self.start_run()

    def columns_of(self, actor: int) -> np.ndarray:
        """Find the environments of an actor: their indices, shape (n_envs,)."""
        return np.arange(actor * self.n_envs, (actor + 1) * self.n_envs)

    def require_open(self) -> None:
        """Raise a ``ValueError`` if the actors were stopped."""
        if self.closed:
            raise ValueError("The actors were stopped by close() or an error. Make new ones with make_actors()")

    def start(self, actor: int) -> None:
        """Start an actor, for the first time or again."""
        self.engine.start(actor, self._recipe, self.n_restarts_ever[actor])

    @property
    def n_alive(self) -> int:
        """Number of actors that are ready to act. The others are starting, or resetting their environments."""
        return self.n_actors - sum(1 for call in self._pending.values() if call.n_steps == 0)

    def close(self) -> None:
        """End all actors and, if it was started for them, Ray."""
        self.closed = True
        self.engine.close()

    # ---- a run

    def start_run(self) -> None:
        """Set all counters of a run to zero."""
        self.n_runs += 1
        #: transitions of calls that were never answered
        self.lost_transitions = 0
        #: seconds that the learner has waited
        self.seconds_waited = 0.0
        # Restarts of each actor in this run, and since its last chunk.
        self._restarts_in_run = [0] * self.n_actors
        self._fruitless = [0] * self.n_actors

    @property
    def n_restarts_in_run(self) -> int:
        """Number of restarts in this run, of all actors."""
        return sum(self._restarts_in_run)

    def gather(self, get_ready: GetReady, may_restart: bool = True) -> list[Any]:
        """
        Call every actor and wait for all answers.

        :param get_ready: function that calls an actor
        :param may_restart: whether to restart an actor that fails, as often as the settings allow
        :return: one answer per actor
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        self._call_all(get_ready)
        answers: dict[int, Any] = {}
        while self._pending:
            received = self._receive(list(self._pending), may_restart)
            if received is not None:
                call, answer = received
                answers[call.actor] = answer
        return [answers[actor] for actor in range(self.n_actors)]

    def begin(self, n_steps: int, get_ready: GetReady) -> None:
        """
        Begin to act.

        :param n_steps: steps of an actor's environments, over all actors
        :param get_ready: function that asks an actor to get ready, at the beginning and after a restart
        """
        self._call_all(get_ready)
        self._n_steps_left = n_steps

    def end(self) -> bool:
        """End the run without waiting for pending answers. Return whether there were none."""
        was_idle = not self._pending
        self._pending = {}
        return was_idle

    def next_chunk(self, act: Act, n_most: int) -> tuple[int, Chunk]:
        """
        Let all actors act that may, and wait for a chunk. Call it when the chunk before is used up: its actor may act again.

        :param act: function that asks an actor to act
        :param n_most: largest number of steps in a call
        :return: number of the actor, and the chunk
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        while True:
            while self._idle and self._n_steps_left > 0:
                actor = self._idle.pop(0)
                n_steps = min(n_most, self._n_steps_left)
                handle = act(actor, n_steps, self._n_steps_left)
                self._n_steps_left -= n_steps
                self._pending[handle] = Call(actor, n_steps)
            # Only the oldest call of each actor: a large answer may arrive after the next, smaller one.
            oldest: dict[int, Any] = {}
            for handle, call in self._pending.items():
                oldest.setdefault(call.actor, handle)
            handles = list(oldest.values())
            received = self._receive(handles[:1] if self.settings.lockstep else handles)
            if received is None:
                continue
            call, answer = received
            if call.n_steps > 0:
                self._fruitless[call.actor] = 0
                self._idle.append(call.actor)
                return call.actor, answer
            self._idle += [call.actor] * self.settings.in_flight

    def _call_all(self, get_ready: GetReady) -> None:
        self._get_ready = get_ready
        self._idle = []
        self._n_steps_left = 0
        self._pending = {get_ready(actor, False): Call(actor, 0) for actor in range(self.n_actors)}

    # ---- answers

    def _receive(self, handles: list[Any], may_restart: bool = True) -> tuple[Call, Any] | None:
        """Wait for an answer, and return it with its call; ``None`` if the actor failed and was restarted."""
        handle = self._wait(handles)
        call = self._pending[handle]
        try:
            answer = self.engine.answer(handle)
        except Exception as error:
            if not may_restart:
                raise
            self._restart(call.actor, error)
            return None
        del self._pending[handle]
        return call, answer

    def _wait(self, handles: list[Any]) -> Any:
        """Wait for an answer and return its handle. Warn about long silence, less and less often."""
        began = time.monotonic()
        patience = self.settings.timeout
        while (handle := self.engine.wait(handles, patience)) is None:
            if not any(self.engine.is_running(actor) for actor in range(self.n_actors)):
                raise NoActorAliveError(
                    f"No process of an actor has run for timeout={self.settings.timeout} seconds: this machine is too busy or "
                    "too small to start one, or the machines of the cluster are gone. Use fewer actors or a larger timeout"
                )
            calls = sorted(self._pending[handle] for handle in handles)
            starting = [call.actor for call in calls if call.n_steps == 0]
            acting = [call.actor for call in calls if call.n_steps > 0]
            warnings.warn(
                f"No actor has answered for {time.monotonic() - began:.0f} seconds. Still starting, or making and resetting "
                f"their environments: {starting}. In a step of an environment that takes very long or does not end: {acting}"
            )
            patience *= 2
        self.seconds_waited += time.monotonic() - began
        return handle

    def _restart(self, actor: int, error: Exception) -> None:
        """Restart an actor, or raise the error of its oldest call if it has been restarted often enough."""
        lost = sum(call.n_steps for call in self._pending.values() if call.actor == actor)
        self._pending = {handle: call for handle, call in self._pending.items() if call.actor != actor}
        self._idle = [other for other in self._idle if other != actor]
        self._n_steps_left += lost
        self.lost_transitions += lost * self.n_envs
        if self._fruitless[actor] >= FRUITLESS_RESTARTS or self._restarts_in_run[actor] >= self.settings.max_restarts:
            raise error
        self._fruitless[actor] += 1
        self._restarts_in_run[actor] += 1
        self.n_restarts_ever[actor] += 1
        self.start(actor)
        assert self._get_ready is not None, "an actor fails after a call"
        self._pending[self._get_ready(actor, True)] = Call(actor, 0)
