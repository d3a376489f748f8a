"""Lead the actors: who may act, who has answered, and who must be restarted."""

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sb3_per.distributed.engines import ActorDiedError, Engine
from sb3_per.distributed.messages import Chunk, Failure

# After so many restarts in a row without a chunk, another restart will not help either.
FRUITLESS_RESTARTS = 3

# Most seconds of one wait, after which the crew checks whether to warn.
_SLICE = 1.0


class NoActorAliveError(RuntimeError):
    """No process of an actor has run for ``timeout`` seconds."""


@dataclass(frozen=True)
class CrewSettings:
    """
    Settings of a crew, see :func:`~sb3_per.distributed.make.make_actors`.

    :param in_flight: most calls of an actor without an answer
    :param lockstep: whether answers are taken in the order of the calls
    :param max_restarts: most restarts of each actor in a run
    :param timeout: seconds of silence before a warning or an error
    """

    in_flight: int
    lockstep: bool
    max_restarts: int
    timeout: float


@dataclass(frozen=True)
class _Request:
    """A call to an actor for ``n_steps`` of each of its environments; with 0, to get ready."""

    actor: int
    n_steps: int
    is_restart: bool = False


class Crew:
    """
    Lead the actors of one run after the other.

    :param engine: engine that the actors run on
    :param n_actors: number of actors
    :param n_envs: environments of each actor
    :param settings: how to lead them
    """

    def __init__(self, engine: Engine, n_actors: int, n_envs: int, settings: CrewSettings):
        self.engine, self.n_actors, self.n_envs, self.settings = engine, n_actors, n_envs, settings
        #: how often each actor was restarted, over all runs, so that no seed comes twice
        self.starts = [0] * n_actors
        #: actors that are ready
        self.alive: set[int] = set()
        # Calls without an answer, the oldest first.
        self._pending: dict[Any, _Request] = {}
        # Steps that each environment of an actor may still take, over all actors.
        self._n_steps_left = 0
        # Actors that wait for permission to act, once for each call that they may get.
        self._idle: list[int] = []
        self.start_run()

    def start_run(self) -> None:
        """Set all counters of a run to zero."""
        #: restarts in this run
        self.restarts = 0
        #: transitions of calls that were never answered
        self.lost_transitions = 0
        #: seconds that the learner has waited
        self.seconds_waited = 0.0
        # Restarts of each actor, in this run and since its last chunk.
        self._restarts, self._fruitless = [0] * self.n_actors, [0] * self.n_actors

    # ---- one answer from every actor

    def gather(self, ask: Callable[[int, bool], Any], restarts: bool = True) -> list[Any]:
        """
        Call every actor and wait for all answers.

        :param ask: function of an actor's number, and of whether it was just restarted, that calls the actor and returns the
            handle of its answer
        :param restarts: whether to restart an actor that fails, as often as the settings allow
        :return: one answer per actor
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        self.alive, self._idle, self._n_steps_left = set(), [], 0
        self._get_ready, self._on_loss = ask, lambda actor: None
        self._pending = {ask(actor, False): _Request(actor, 0) for actor in range(self.n_actors)}
        answers: dict[int, Any] = {}
        while self._pending:
            request, answer = self._answer(self._wait(list(self._pending)))
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
        Begin to act.

        :param n_steps: steps of an actor's environments, over all actors
        :param chunk: most steps of a call
        :param get_ready: function of an actor's number, and of whether it was just restarted, that asks the actor to get
            ready and returns the handle of its answer
        :param act: function of an actor's number, a number of steps, and the number of steps that are left, that asks the
            actor to act and returns the handle of its answer
        :param on_loss: function of an actor's number, called when its pending calls will not be answered
        """
        self.alive, self._idle, self._n_steps_left = set(), [], n_steps
        self._chunk, self._get_ready, self._act, self._on_loss = chunk, get_ready, act, on_loss
        self._pending = {get_ready(actor, False): _Request(actor, 0) for actor in range(self.n_actors)}

    def end(self) -> bool:
        """
        End the run without waiting for pending answers.

        :return: whether no answer was pending
        """
        is_complete = not self._pending
        self._pending = {}
        return is_complete

    def next_chunk(self) -> Chunk:
        """
        Wait for a chunk. The other actors go on.

        :return: the chunk
        :raises NoActorAliveError: if no process of an actor runs
        :raises Exception: the error of an actor that has failed too often
        """
        while True:
            self._give_permissions()
            request, answer = self._answer(self._wait(self._awaited()))
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
        Say that the chunk of an actor is used up, so that it may get another call.

        :param actor: number of the actor
        """
        if actor in self.alive:
            self._idle.append(actor)

    def _give_permissions(self) -> None:
        """Ask idle actors to act, as long as steps are left."""
        n_calls = Counter(request.actor for request in self._pending.values())
        while self._idle and self._n_steps_left > 0:
            # Every actor gets one call before any actor gets two.
            actor = min(self._idle, key=n_calls.__getitem__)
            self._idle.remove(actor)
            n_calls[actor] += 1
            n_steps = min(self._chunk, self._n_steps_left)
            handle = self._act(actor, n_steps, self._n_steps_left)
            self._n_steps_left -= n_steps
            self._pending[handle] = _Request(actor, n_steps)

    # ---- waiting

    def _awaited(self) -> list[Any]:
        """Return the handles of the answers that may come next."""
        # Of each actor the oldest: a large answer may arrive after the one that follows it.
        oldest: dict[int, Any] = {}
        for handle, request in self._pending.items():
            oldest.setdefault(request.actor, handle)
        handles = list(oldest.values())
        if not self.settings.lockstep:
            return handles
        # The oldest of all. Restarted actors do not belong to the order.
        restarts = [handle for handle in handles if self._pending[handle].is_restart]
        in_order = [handle for handle in handles if not self._pending[handle].is_restart]
        return in_order[:1] + restarts

    def _wait(self, handles: list[Any]) -> Any:
        """Return a handle whose answer is there. Warn about long silence, raise an error if no process runs."""
        began = time.monotonic()
        warn_at = self.settings.timeout
        while True:
            handle = self.engine.wait(handles, min(_SLICE, self.settings.timeout))
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
            # Warn again, but ever more rarely, because the first warning may be hours above.
            warn_at = 2 * waited
            warnings.warn(f"No actor has answered for {waited:.0f} seconds. {self._why_silent(handles)}")

    def _why_silent(self, handles: list[Any]) -> str:
        requests = [self._pending[handle] for handle in handles]
        starting = sorted({request.actor for request in requests if request.n_steps == 0})
        acting = sorted({request.actor for request in requests if request.n_steps > 0})
        sentences = []
        if starting:
            sentences.append(f"These actors are still starting, or making and resetting their environments: {starting}.")
        if acting:
            sentences.append(f"In these actors a step of an environment takes very long, or does not end: {acting}.")
        return " ".join([*sentences, "The learner waits for them"])

    def _answer(self, handle: Any) -> tuple[_Request, Any]:
        request = self._pending.pop(handle)
        try:
            return request, self.engine.answer(handle)
        except ActorDiedError as error:
            return request, Failure(RuntimeError(f"An actor died: {error}"), str(error))

    # ---- faults

    def _replace(self, request: _Request, failure: Failure) -> None:
        """
        Restart an actor.

        :param request: the call that failed
        :param failure: its error
        :raises Exception: the error, if the actor has been restarted often enough
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
