"""The shuffled control of a scheme is the scheme, except that errors change places within a batch."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per.compare.controls import control_of
from sb3_per.sampling.rank_tree import RankTree
from sb3_per.sampling.schemes import LAP, PAL, PriorityScheme, Proportional, RankBased, Uniform
from sb3_per.sampling.shuffled import Shuffled
from sb3_per.sampling.sum_tree import SumTree
from tests.helpers.buffers import fill, make_buffer

SCHEMES = [Proportional(alpha=0.7), RankBased(), LAP(kappa=0.3), PAL(alpha=0.2), Uniform()]


def test_draws_weights_and_loss_are_those_of_the_scheme():
    errors = np.random.default_rng(0).exponential(size=20)
    arguments = (th.rand(20, 2), th.randn(20, 2), th.rand(20, 1))
    for scheme in SCHEMES:
        control = Shuffled(scheme)
        masses = scheme.mass(scheme.priority(errors))
        assert (np.sort(control.mass(control.priority(errors))) == np.sort(masses)).all()
        assert (control.mass(scheme.priority(errors)) == masses).all()
        assert (control.weights(masses, 0.5) == scheme.weights(masses, 0.5)).all()
        assert control.new_mass(2.0) == scheme.new_mass(2.0)
        assert control.loss(*arguments) == scheme.loss(*arguments)
        for name in vars(PriorityScheme):
            if isinstance(getattr(scheme, name), (bool, float)):
                assert getattr(control, name) == getattr(scheme, name), (scheme, name)
        assert type(control.make_tree(4)) is type(scheme.make_tree(4))
    assert isinstance(Shuffled(RankBased()).make_tree(4), RankTree)


def test_nothing_that_a_scheme_has_is_forgotten():
    settings: dict[str, Any] = dict(alpha=0.5, td_error_reduction="min")  # all of the base class, none of them a default
    scheme = PriorityScheme(**settings)
    assert {name: getattr(Shuffled(scheme), name) for name in scheme.settings} == settings
    public = {name for name in vars(PriorityScheme) if not name.startswith("_")}
    # What is left is worked out from the others.
    assert public - {*vars(Shuffled), *vars(Shuffled(scheme))} == {"unused_settings"}


def test_errors_of_a_batch_change_places():
    """Those of critics are reduced first: with sequences, that is done for single steps."""
    scheme = LAP(alpha=1.0)
    errors = np.arange(100.0).reshape(50, 2)
    reduced = Shuffled(scheme).reduce(errors)
    assert (reduced == scheme.reduce(errors)).all()
    priorities = Shuffled(scheme).priority(reduced)
    assert sorted(priorities) == sorted(scheme.priority(reduced)) and list(priorities) != list(scheme.priority(reduced))


def test_the_control_of_a_setting_keeps_its_other_settings():
    settings: tuple[dict[str, Any], ...] = (dict(scheme="lap", kappa=0.3), dict(scheme=LAP(kappa=0.3)))
    for setting in settings:
        control = control_of({**setting, "recency": 0.5})
        scheme = control.pop("scheme")
        assert control == {"recency": 0.5}
        assert isinstance(scheme, Shuffled) and (scheme.scheme.kappa, scheme.scheme.alpha) == (0.3, 0.4)


def test_a_shuffled_scheme_of_a_user_is_checked_like_the_scheme():
    class Empty(Proportional):
        def mass(self, priority: Any) -> Any:
            return 0.0 * priority

        def new_mass(self, max_priority: float) -> float:
            return 1.0

    class OwnTree(Proportional):
        def make_tree(self, capacity: int) -> SumTree:
            return SumTree(capacity)

    for scheme in (Empty(), Shuffled(Empty())):
        buffer = make_buffer(4, scheme=scheme)
        fill([buffer], 4)
        with pytest.raises(ValueError, match=r"gave 0\.0: it must be above 0"):
            buffer.update_priorities(buffer.sample(4).indices, np.ones(4))
    for scheme in (OwnTree(), Shuffled(OwnTree())):
        with pytest.raises(NotImplementedError, match=r"age_decay=1.0 with make_tree\(\) of"):
            make_buffer(4, scheme=scheme, age_decay=1.0)
