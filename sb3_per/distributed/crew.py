"""Direct the actors: let them act, wait for their answers, and restart them."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import Engine
from sb3_per.distributed.environments import EnvRecipe

# Number of restarts in a row without a chunk after which an actor has failed: another restart would not help either.
FRUITLESS_RESTARTS = 3

#: Function of an actor's number, and of whether it was just restarted, that calls it and returns the handle of its answer.
Ask = Callable[[int, bool], Any]

# Longest wait in seconds. After it, the crew checks whether to warn.
_SLICE = 1.0


class NoActorAliveError(RuntimeError):
    """Report that no process of an actor has run for ``timeout`` seconds."""


@dataclass(frozen=True)
class Settings:
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


class Crew:
    """
    Direct the actors in all runs.

    :param engine: engine that the actors run on
    :param n_actors: number of actors
    :param recipe: how an actor makes its environments
    :param settings: settings of all actors
    """

    def __init__(self, engine: Engine, n_actors: int, recipe: EnvRecipe, settings: Settings):
        self.engine, self.n_actors, self.settings = engine, n_actors, settings
        #: environments of each actor
        self.n_envs: int = recipe.arguments["n_envs"]
        self._recipe = cloudpickle.dumps(recipe)
        #: whether the actors were stopped
        self.closed = False
        #: how often each actor was restarted, over all runs, so that no seed is used twice
        self.starts = [0] * n_actors
        # Unanswered calls by the handle of the answer, the oldest first: the actor, and the number of steps that each of its
        # environments is to take. 0 steps ask the actor to get ready.
        self._pending: dict[Any, tuple[int, int]] = {}
        # Steps that each environment of an actor may still take, over all actors.
        self._n_steps_left = 0
        # Actors that may get another call, in their order; an actor that may get two is there twice.
        self._idle: list[int] = []
        #: number of runs so far
        self.n_runs = 0
        self.start_run()

    def columns_of(self, actor: int) -> np.ndarray:
        """
        Find the environments of an actor.

        :param actor: its number
        :return: their indices, shape (n_envs,)
        """
        return np.arange(actor * self.n_envs, (actor + 1) * self.n_envs)

    def require_open(self) -> None:
        """
        Check that the actors still run.

        :raises ValueError: if the actors were stopped
        """
        if self.closed:
            raise ValueError("The actors were stopped by close() or an error. Make new ones with make_actors()")

    def start(self, actor: int) -> None:
        """
        Start an actor, for the first time or again.

        :param actor: its number
        """
        self.engine.start(actor, self._recipe, self.starts[actor])

    @property
    def n_alive(self) -> int:
        """Number of actors that are ready to act. The others are starting, or resetting their environments."""
        return self.n_actors - sum(n_steps == 0 for _, n_steps in self._pending.values())

    def close(self) -> None:
        """End all actors and, if it was started for them, Ray."""
        self.closed = True
        self.engine.close()

    def start_run(self) -> None:
        """Set all counters of a run to zero."""
        self.n_runs += 1
        #: restarts in this run
        self.restarts = 0
        #: transitions of calls that were never answered
        self.lost_transitions = 0
        #: seconds that the learner has waited
        self.seconds_waited = 0.0
        # Restarts of each actor, in this run and since its last chunk.
        self._restarts, self._fruitless = [0] * self.n_actors, [0] * self.n_actors

    # ---- one answer from every actor

    def gather(self, ask: Ask, restarts: bool = True) -> list[Any]:
        """
        Call every actor and wait for all answers.

        :param ask: function that calls an actor
        :param restarts: whether to restart an actor that fails, as often as the settings allow
        :return: one answer per actor
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        self._call_all(ask)
        answers: dict[int, Any] = {}
        while self._pending:
            if received := self._receive(list(self._pending), restarts):
                actor, _, answers[actor] = received
        return [answers[actor] for actor in range(self.n_actors)]

    def _call_all(self, get_ready: Ask) -> None:
        self._get_ready, self._idle, self._n_steps_left = get_ready, [], 0
        self._pending = {get_ready(actor, False): (actor, 0) for actor in range(self.n_actors)}

    # ---- a run

    def begin(self, n_steps: int, chunk: int, get_ready: Ask, act: Callable[[int, int, int], Any]) -> None:
        """
        Begin to act.

        :param n_steps: steps of an actor's environments, over all actors
        :param chunk: largest number of steps in a call
        :param get_ready: function that asks an actor to get ready, at the beginning and after a restart
        :param act: function of an actor's number, a number of steps, and the number of steps that are left, that asks the
            actor to act and returns the handle of its answer
        """
        self._call_all(get_ready)
        self._act, self._chunk, self._n_steps_left = act, chunk, n_steps

    def end(self) -> bool:
        """
        End the run without waiting for pending answers.

        :return: whether no answer was pending
        """
        pending, self._pending = self._pending, {}
        return not pending

    def next_chunk(self) -> tuple[int, Chunk]:
        """
        Let all actors act that may, and wait for a chunk. Call it when the chunk before is used up: its actor may act again.

        :return: number of the actor, and the chunk
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        while True:
            while self._idle and self._n_steps_left > 0:
                actor, n_steps = self._idle.pop(0), min(self._chunk, self._n_steps_left)
                handle = self._act(actor, n_steps, self._n_steps_left)
                self._n_steps_left -= n_steps
                self._pending[handle] = actor, n_steps
            # Only the oldest call of each actor: a large answer may arrive after the next, smaller one.
            oldest: dict[int, Any] = {}
            for handle, (actor, _) in self._pending.items():
                oldest.setdefault(actor, handle)
            handles = list(oldest.values())
            received = self._receive(handles[:1] if self.settings.lockstep else handles)
            if received is None:
                continue
            actor, n_steps, answer = received
            if n_steps > 0:
                self._fruitless[actor] = 0
                self._idle.append(actor)
                return actor, answer
            self._idle += [actor] * self.settings.in_flight

    # ---- waiting

    def _wait(self, handles: list[Any]) -> Any:
        """Wait for an answer and return its handle. Warn about long silence, and raise an error if no process runs."""
        began, warn_at = time.monotonic(), self.settings.timeout
        while (handle := self.engine.wait(handles, min(_SLICE, self.settings.timeout))) is None:
            waited = time.monotonic() - began
            if waited < warn_at:
                continue
            if not any(self.engine.has_started(actor) for actor in range(self.n_actors)):
                raise NoActorAliveError(
                    f"No process of an actor has run for timeout={self.settings.timeout} seconds: this machine is too busy or "
                    "too small to start one, or the machines of the cluster are gone. Use fewer actors or a larger timeout"
                )
            # Warn again, less and less often, because the first warning may be hours old.
            warn_at = 2 * waited
            calls = sorted(self._pending[handle] for handle in handles)
            why = {
                "These actors are still starting, or making and resetting their environments": [a for a, n in calls if n == 0],
                "In these actors, a step of an environment takes very long or does not end": [a for a, n in calls if n > 0],
            }
            reasons = (f"{what}: {actors}." for what, actors in why.items() if actors)
            warnings.warn(f"No actor has answered for {waited:.0f} seconds. {' '.join(reasons)}")
        self.seconds_waited += time.monotonic() - began
        return handle

    def _receive(self, handles: list[Any], restarts: bool = True) -> tuple[int, int, Any] | None:
        """
        Wait for an answer.

        :param handles: handles of answers
        :param restarts: whether to restart an actor that fails
        :return: the actor, the steps that it was asked for, and its answer; ``None`` if it failed and was restarted
        :raises Exception: the error of the actor, if it is not restarted
        """
        handle = self._wait(handles)
        actor, n_steps = self._pending[handle]
        try:
            answer = self.engine.answer(handle)
        except Exception as error:
            if not restarts:
                raise
            self._replace(actor, error)
            return None
        del self._pending[handle]
        return actor, n_steps, answer

    # ---- faults

    def _replace(self, actor: int, error: Exception) -> None:
        """
        Restart an actor.

        :param actor: its number
        :param error: the error of its oldest call
        :raises Exception: the error, if the actor has been restarted often enough
        """
        lost = sum(n_steps for other, n_steps in self._pending.values() if other == actor)
        self._pending = {handle: call for handle, call in self._pending.items() if call[0] != actor}
        self._n_steps_left += lost
        self.lost_transitions += lost * self.n_envs
        self._idle = [other for other in self._idle if other != actor]
        if self._fruitless[actor] >= FRUITLESS_RESTARTS or self._restarts[actor] >= self.settings.max_restarts:
            raise error
        self._fruitless[actor] += 1
        self._restarts[actor] += 1
        self.restarts += 1
        self.starts[actor] += 1
        self.engine.stop(actor)
        self.start(actor)
        self._pending[self._get_ready(actor, True)] = actor, 0
