"""Plant deliberate defects, and check that each makes a test of the broken property fail."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sb3_per.buffers.batches as batches
import sb3_per.buffers.complete_windows as complete_windows
import sb3_per.buffers.sequences as sequences
from sb3_per import PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.complete_windows import CompleteWindows
from sb3_per.buffers.eligibility import HeldTransitions
from sb3_per.sampling.draw import Distribution
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.sum_tree import SumTree
from sb3_per.sampling.weights import ImportanceWeights
from sb3_per.storage import n_step
from sb3_per.storage.nested import Storage
from sb3_per.storage.frame_pool import FramePool
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.ring import Ring
from tests.buffers.sequence_reference import Reference, make_sequences
from tests.buffers.test_separate_environments import UNEVEN_ACTIONS, Twins, run_actions
from tests.buffers.test_sequence_priorities import (
    test_window_priority_mixes_max_and_mean_of_td_errors as check_priority_of_a_window,
)
from tests.buffers.test_uniform_fraction import test_draws_follow_the_mixture_with_a_uniform_share as check_probabilities
from tests.buffers.test_weights import test_weights_follow_their_definition as check_weights

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were drawn")


def check_separate_environments(kind: str) -> Callable[[], None]:
    """Make a check of environments that are at different steps, more than a lap apart."""

    # A frame store with a defect may fail when it is copied, so the actions for frames leave out the copies.
    actions = [action for action in UNEVEN_ACTIONS if kind != "frames" or action[0] not in ("reload", "copy")]

    def check() -> None:
        for seed in range(4):
            run_actions(Twins(kind, seed), actions)

    return check


def check_windows() -> None:
    """Check windows of sequences against the reference."""
    buffer = make_sequences(31, 2, n_steps=3, burn_in=2)
    reference = Reference(buffer, seed=1, p_end=0.05)
    for _ in range(25):
        reference.play(3, p_told=0.03)
        reference.check(buffer)


def errors_raise_the_maximum(give: Any) -> Any:
    def defective(self: Sampler, slots: np.ndarray, masses: np.ndarray | None) -> None:
        give(self, slots, masses)
        if masses is not None:
            self.max_priority = max(self.max_priority, float(masses.max()))

    return defective


def maximum_instead_of_mean(weigh: Any) -> Any:
    def defective(self: ImportanceWeights, *args: Any) -> np.ndarray:
        weights = weigh(self, *args)
        return weights / weights.max() if self.normalization == "mean" else weights

    return defective


def early_release(release: Any) -> Any:
    def defective(self: FramePool, number: int) -> None:
        number = max(number, self.end - 8)
        for given_up in self.frames(self.first, number):
            given_up[:] = 123
        release(self, number)

    return defective


def changed_states(add: Any) -> Any:
    def defective(self: Any, *args: Any, states: Any = None, **kwargs: Any) -> None:
        add(self, *args, states=[state + np.float32(1) for state in states], **kwargs)

    return defective


#: Owner and name of the attribute, its defective replacement, and the check that must fail with it.
DEFECTS: dict[str, tuple[Any, str, Callable[[Any], Any], Callable[[], None]]] = {
    "ids become stale in all environments together": (
        batches,
        "read_update",
        lambda old: lambda ids, added, *rest: old(ids, np.full_like(added, added.max()), *rest),
        check_separate_environments("plain"),
    ),
    "windows end at the newest step of the slowest environment": (
        n_step,
        "window_lengths",
        lambda old: (
            lambda slots, dones, timeouts, added, n_steps: old(
                slots, dones, timeouts, np.full_like(added, added.min()), n_steps
            )
        ),
        check_separate_environments("windows"),
    ),
    "all slots get ids of the newest lap": (
        Ring,
        "ids_at",
        lambda old: lambda self, slots: self.most // self.n_rows * self.capacity + slots,
        check_separate_environments("plain"),
    ),
    "an add makes all transitions new again": (
        Ring,
        "slots_between",
        lambda old: lambda self, first, end: old(self, self.first, end),
        check_separate_environments("plain"),
    ),
    "ending one episode ends those of all environments": (
        PrioritizedReplayBuffer,
        "end_episodes",
        lambda old: lambda self, envs=None: old(self),
        check_separate_environments("windows"),
    ),
    "no episode is truncated": (
        Storage,
        "truncate",
        lambda old: lambda self, rows, envs: old(self, rows, envs) if self.n_envs == 1 else None,
        check_separate_environments("windows"),
    ),
    "TD errors given to add raise the maximum": (
        Sampler,
        "give",
        errors_raise_the_maximum,
        check_separate_environments("td_error"),
    ),
    "an overwritten row is drawn": (
        Ring,
        "oldest",
        lambda old: property(lambda self: self.first if self.n_envs > 1 else old.fget(self)),
        check_separate_environments("memory"),
    ),
    "frames are released while rows still use them": (
        FramePool,
        "release",
        early_release,
        check_separate_environments("frames"),
    ),
    "frames of all environments go into the row of the first": (
        FrameStore,
        "write",
        lambda old: lambda self, rows, envs, *obs: old(self, 0 * rows + self._table.cursors[0, 0], envs, *obs),
        check_separate_environments("frames"),
    ),
    "weights are divided by the maximum instead of the mean": (
        ImportanceWeights,
        "__call__",
        maximum_instead_of_mean,
        lambda: check_weights("plain", "proportional", beta=0.4, kwargs={}),
    ),
    "N counts slots instead of transitions": (
        SumTree,
        "draw",
        lambda old: lambda self, uniforms, stratified, scale: old(self, uniforms, stratified, len(self) / self.total),
        lambda: check_weights("memory", "proportional", beta=1.0, kwargs={}),
    ),
    "probabilities omit the uniform share": (
        Distribution,
        "n_p",
        lambda old: lambda self, slots: self.tree[slots] * self.n / self.total,
        lambda: check_weights("plain", "proportional", beta=1.0, kwargs=dict(uniform_fraction=0.2)),
    ),
    "uniform draws include slots that cannot be drawn": (
        HeldTransitions,
        "newest",
        lambda old: lambda self, n: lambda numbers: (self.ring.next_id - self.ring.capacity + numbers) % self.ring.capacity,
        lambda: check_probabilities("memory", "proportional", 0.9),
    ),
    "states are changed when they are stored": (PrioritizedSequenceReplayBuffer, "add", changed_states, check_windows),
    "states belong to the anchor instead of the start of the prefix": (
        sequences,
        "RecurrentStates",
        lambda old: lambda *args: old(*args[:3], 0, *args[4:]),
        check_windows,
    ),
    "windows continue across the end of an episode": (
        sequences,
        "window_lengths",
        lambda old: lambda slots, dones, timeouts, *rest: old(slots, dones * 0, timeouts * 0, *rest),
        check_windows,
    ),
    "n-step returns continue across a restart": (
        Storage,
        "truncate",
        lambda old: lambda self, rows, envs: None,
        check_windows,
    ),
    "timeouts count as terminations": (
        batches,
        "read_batch",
        lambda old: lambda *args: old(*args[:4], np.zeros_like(args[4]), *args[5:]),
        check_windows,
    ),
    "windows stay drawable while their prefix is overwritten": (
        CompleteWindows,
        "oldest_anchor",
        lambda old: property(lambda self: max(int(self.ring.oldest_held[0]), self.oldest_admitted)),
        check_windows,
    ),
    "windows are drawn before they are complete": (
        complete_windows,
        "find_complete",
        lambda old: lambda *args: old(*args[:-1], args[-1] - 1),
        check_windows,
    ),
    "padding counts in the mean TD error": (
        sequences,
        "mix_over_time",
        lambda old: lambda errors, is_step, eta: old(errors, np.ones_like(is_step), eta),
        lambda: check_priority_of_a_window(eta=0.3, reduction="mean", n_critics=None),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name, monkeypatch):
    owner, attribute, change, check = DEFECTS[name]
    monkeypatch.setattr(owner, attribute, change(copy.copy(getattr(owner, attribute))))
    with pytest.raises((AssertionError, ValueError, LookupError)):
        check()


def test_without_a_defect_the_checks_pass():
    for check in (check_separate_environments("windows"), check_separate_environments("frames"), check_windows):
        check()
