"""
Who acts, and what becomes of it when one does not any more: permissions to act, answers, restarts. It knows neither weights
nor replay.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sb3_per.distributed.engines import ActorDiedError, Engine
from sb3_per.distributed.messages import Chunk, Failure

# An actor that was restarted so often in a row without a chunk has something that a restart does not mend.
FRUITLESS_RESTARTS = 3

# How long one wait lasts, in seconds, before it is looked whether anybody is alive.
_SLICE = 1.0


class NoActorAliveError(RuntimeError):
    """For ``timeout`` seconds, no actor was alive."""


@dataclass(frozen=True)
class CrewSettings:
    """
    See :func:`~sb3_per.distributed.make.make_actors`.

    :param in_flight: most calls of an actor that have no answer yet
    :param lockstep: answers are taken in the order of the calls
    :param max_restarts: of each actor, in each run
    :param timeout: in seconds
    """

    in_flight: int
    lockstep: bool
    max_restarts: int
    timeout: float


@dataclass(frozen=True)
class _Request:
    """What an actor was asked for: ``n_steps`` of each of its environments, 0 to get ready."""

    actor: int
    n_steps: int
    is_restart: bool = False


class Crew:
    """
    Leads the actors of one run after the other.

    :param engine: that actors run on
    :param n_actors: how many
    :param n_envs: environments of each
    :param settings: how they are led
    """

    def __init__(self, engine: Engine, n_actors: int, n_envs: int, settings: CrewSettings):
        self.engine, self.n_actors, self.n_envs, self.settings = engine, n_actors, n_envs, settings
        #: how often each actor was started, beside the first time; over all runs, so that no seed comes twice
        self.starts = [0] * n_actors
        #: actors that are ready
        self.alive: set[int] = set()
        # Calls without an answer, the oldest first.
        self._pending: dict[Any, _Request] = {}
        # Steps that may be taken, of each environment of an actor; and actors that are waiting for permission, a place in
        # the list for each call.
        self._n_steps_left = 0
        self._idle: list[int] = []
        self.start_run()

    def start_run(self) -> None:
        """Count anew: another run begins, with a reset of the environments or where the last run ended."""
        #: restarts of this run
        self.restarts = 0
        #: transitions of calls that were not answered
        self.lost_transitions = 0
        #: seconds of waiting
        self.seconds_waited = 0.0
        # Of each actor: restarts, and those since its last chunk.
        self._restarts, self._fruitless = [0] * self.n_actors, [0] * self.n_actors

    # ---- one answer of every actor

    def gather(self, ask: Callable[[int, bool], Any], restarts: bool = True) -> list[Any]:
        """
        Ask every actor something and wait for all answers.

        :param ask: asks an actor and returns the handle of its answer; the second argument says whether the actor is new,
            because the one before it failed
        :param restarts: whether an actor that fails is started anew, as often as the settings allow
        :return: the answers, in the order of the actors
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        self.alive, self._idle, self._n_steps_left = set(), [], 0
        self._get_ready, self._on_loss = ask, lambda actor: None
        self._pending = {ask(actor, False): _Request(actor, 0) for actor in range(self.n_actors)}
        answers: dict[int, Any] = {}
        while self._pending:
            request, answer = self._answer(self.wait(list(self._pending)))
            if not isinstance(answer, Failure):
                answers[request.actor] = answer
            elif restarts:
                self._replace(request, answer)
            else:
                answer.reraise()
        return [answers[actor] for actor in range(self.n_actors)]

    # ---- a run

    def begin(
        self,
        n_steps: int,
        chunk: int,
        get_ready: Callable[[int, bool], Any],
        act: Callable[[int, int, int], Any],
        on_loss: Callable[[int], None],
    ) -> None:
        """
        Begin a run.

        :param n_steps: of an actor's environments, over all actors
        :param chunk: most steps of a call
        :param get_ready: of an actor, and whether it was restarted: asks it to get ready, gives the handle
        :param act: of an actor, a number of steps, and how many are left before them: asks for them, gives the handle
        :param on_loss: is told of an actor whose calls will not be answered
        """
        self.alive, self._idle, self._pending = set(), [], {}
        self._n_steps_left, self._chunk = n_steps, chunk
        self._get_ready, self._act, self._on_loss = get_ready, act, on_loss
        for actor in range(self.n_actors):
            self._pending[get_ready(actor, False)] = _Request(actor, 0)

    def end(self) -> bool:
        """
        End the run; what was asked for is not waited for.

        :return: whether all that was asked for has been answered
        """
        is_complete = not self._pending
        self._pending = {}
        return is_complete

    def next_chunk(self) -> Chunk:
        """
        :return: what the next actor has collected; the others go on
        :raises NoActorAliveError: if there is none
        :raises Exception: that an actor has raised again and again
        """
        while True:
            self.give_permissions()
            request, answer = self._answer(self._wait())
            if isinstance(answer, Failure):
                self._replace(request, answer)
            elif request.n_steps == 0:
                self.alive.add(request.actor)
                self._idle += [request.actor] * self.settings.in_flight
            else:
                self._fruitless[request.actor] = 0
                return answer  # type: ignore[no-any-return]

    def done_with(self, actor: int) -> None:
        """
        :param actor: whose chunk has been used up; it may be asked for another one
        """
        if actor in self.alive:
            self._idle.append(actor)

    def give_permissions(self) -> None:
        """Ask those who wait for it to act, as long as steps are left."""
        if not self._idle or self._n_steps_left == 0:
            return
        n_calls = Counter(request.actor for request in self._pending.values())
        while self._idle and self._n_steps_left > 0:
            # Everybody gets one call before anybody gets two.
            actor = min(self._idle, key=n_calls.__getitem__)
            self._idle.remove(actor)
            n_calls[actor] += 1
            n_steps = min(self._chunk, self._n_steps_left)
            handle = self._act(actor, n_steps, self._n_steps_left)
            self._n_steps_left -= n_steps
            self._pending[handle] = _Request(actor, n_steps)

    # ---- waiting

    def _answer(self, handle: Any) -> tuple[_Request, Any]:
        request = self._pending.pop(handle)
        try:
            return request, self.engine.answer(handle)
        except ActorDiedError as error:
            return request, Failure(RuntimeError(f"An actor died: {error}"), str(error))

    def _wait(self) -> Any:
        # Of each actor the oldest one: an answer may be large, and arrive after the next.
        oldest: dict[int, Any] = {}
        for handle, request in self._pending.items():
            oldest.setdefault(request.actor, handle)
        handles = list(oldest.values())
        if self.settings.lockstep:
            # The oldest one, whichever is ready first. When an actor is started anew is no matter of order.
            restarts = [handle for handle in handles if self._pending[handle].is_restart]
            in_order = [handle for handle in handles if not self._pending[handle].is_restart]
            handles = in_order[:1] + restarts
        return self.wait(handles)

    def wait(self, handles: list[Any]) -> Any:
        """
        :param handles: of answers
        :return: of one that is there
        :raises NoActorAliveError: after ``timeout`` seconds in which no process of an actor ran
        """
        began = time.monotonic()
        warn_at = self.settings.timeout
        while True:
            handle = self.engine.wait(handles, _SLICE if self.settings.timeout > _SLICE else self.settings.timeout)
            waited = time.monotonic() - began
            if handle is not None:
                self.seconds_waited += waited
                return handle
            if waited < warn_at:
                continue
            if not any(self.engine.has_started(actor) for actor in range(self.n_actors)):
                raise NoActorAliveError(
                    f"No process of an actor has run for timeout={self.settings.timeout} seconds: the machine is too busy or "
                    "too small to start one, or those of a cluster are gone. Use fewer actors or a larger timeout"
                )
            # Again and again, ever more rarely: the first warning may be hours above.
            warn_at = 2 * waited
            warnings.warn(f"No actor has answered for {waited:.0f} seconds. {self._why_silent(handles)}")

    def _why_silent(self, handles: list[Any]) -> str:
        """
        :param handles: of calls that are waited for
        :return: which actors they are of, and what these are doing
        """
        requests = [self._pending[handle] for handle in handles]
        starting = sorted({request.actor for request in requests if request.n_steps == 0})
        acting = sorted({request.actor for request in requests if request.n_steps > 0})
        sentences = []
        if starting:
            sentences.append(f"These actors are still starting, or making and resetting their environments: {starting}.")
        if acting:
            sentences.append(f"In these actors a step of an environment takes very long, or does not end: {acting}.")
        return " ".join([*sentences, "The learner waits for them"])

    # ---- faults

    def _replace(self, request: _Request, failure: Failure) -> None:
        """
        Start an actor anew.

        :param request: that it has failed at
        :param failure: how
        :raises Exception: its error, if it has been restarted often enough
        """
        actor = request.actor
        lost = request.n_steps
        for handle, other in list(self._pending.items()):
            if other.actor == actor:
                lost += other.n_steps
                del self._pending[handle]
        self._n_steps_left += lost
        self.lost_transitions += lost * self.n_envs
        self.alive.discard(actor)
        self._idle = [other for other in self._idle if other != actor]
        self._on_loss(actor)

        if self._fruitless[actor] >= FRUITLESS_RESTARTS or self._restarts[actor] >= self.settings.max_restarts:
            failure.reraise()
        self._fruitless[actor] += 1
        self._restarts[actor] += 1
        self.restarts += 1
        self.starts[actor] += 1
        self.engine.stop(actor)
        self.engine.start(actor)
        self._pending[self._get_ready(actor, True)] = _Request(actor, 0, is_restart=True)
