"""Settings of a buffer: signatures, and warnings about settings that have no effect."""

import inspect
import itertools
import re
import warnings
from typing import Any

import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import (
    LAP,
    PAL,
    IgnoredSettingWarning,
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    Proportional,
    RankBased,
    Uniform,
)
from sb3_per.buffers.settings import SETTING_NAMES, BufferSettings
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.sampling.schemes import SCHEME_ARGUMENTS, SCHEMES
from tests.helpers.buffers import make_buffer

BUFFERS = (
    PrioritizedReplayBuffer,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
)

# A value that is not the default, and the schemes that do not use the setting.
WITHOUT_EFFECT = {
    "alpha": (0.3, {"uniform"}),
    "td_error_reduction": ("min", {"uniform"}),
    "epsilon": (0.1, {"rank", "lap", "pal", "uniform"}),
    "kappa": (0.3, {"proportional", "rank", "uniform"}),
    "beta_start": (0.5, {"lap", "pal", "uniform"}),
    "beta_end": (0.9, {"lap", "pal", "uniform"}),
    "beta_anneal_steps": (10, {"lap", "pal", "uniform"}),
}


def ignored_setting_warnings(**settings: Any) -> list[str]:
    """Make a buffer, and return its warnings about settings without effect."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_buffer(**settings)
    return [str(w.message) for w in caught if issubclass(w.category, IgnoredSettingWarning)]


def test_settings_without_effect_warn():
    assert WITHOUT_EFFECT.keys() >= SCHEME_ARGUMENTS.keys()
    for scheme, (name, (value, idle)) in itertools.product(SCHEMES, WITHOUT_EFFECT.items()):
        said = ignored_setting_warnings(scheme=scheme, **{name: value})
        expected = f"{name}={value!r} has no effect with scheme={scheme!r}"
        assert [text.partition(": ")[0] for text in said] == ([expected] if scheme in idle else [])
        assert ignored_setting_warnings(scheme=scheme, **{name: getattr(BufferSettings(), name)}) == []
    for scheme in SCHEMES:
        said = ignored_setting_warnings(scheme=scheme, **{name: value for name, (value, _) in WITHOUT_EFFECT.items()})
        expected_names = {name for name, (_, idle) in WITHOUT_EFFECT.items() if scheme in idle}
        assert {text.partition("=")[0] for text in said} == expected_names


def test_the_warning_names_beta_where_beta_was_written():
    for beta in (0.0, 0.4, 0.7, 1.0):
        said = ignored_setting_warnings(scheme="lap", beta=beta)
        assert said == [f"beta={beta} has no effect with scheme='lap': it is a setting of 'proportional', 'rank'"]


def test_settings_without_effect_with_a_scheme_object_warn():
    for scheme in (Proportional(0.5), RankBased(), LAP(kappa=0.3), PAL(), Uniform()):
        said = ignored_setting_warnings(scheme=scheme, beta_start=0.5)
        assert len(said) == (not scheme.importance_sampling)


def test_recency_min_without_recency_warns():
    assert "recency_min=7" in ignored_setting_warnings(recency_min=7)[0]
    assert ignored_setting_warnings(recency_min=7, recency=0.99) == []


def test_arguments_of_sb3_come_first():
    """SB3's arguments come first, in their order and with their defaults."""
    for cls in BUFFERS:
        shown = inspect.signature(cls).parameters
        stock = next(c for c in cls.__mro__ if c.__module__.startswith("stable_baselines3"))
        arguments = inspect.signature(stock).parameters
        assert list(shown)[: len(arguments)] == list(arguments)
        assert all((shown[name].default, shown[name].kind) == (p.default, p.kind) for name, p in arguments.items())
        assert all(p.annotation is not p.empty for p in shown.values())


def test_the_documentation_of_the_buffer_names_all_settings():
    assert set(SETTING_NAMES) <= set(re.findall(r"``(\w+)``", PrioritizedReplayBuffer.__doc__))


def test_a_user_defined_buffer_keeps_its_extra_arguments(tmp_path):
    class Own(ReplayBuffer):
        def __init__(self, *args: Any, own: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.own = own

    class PrioritizedOwn(PrioritizedReplayBuffer, Own):
        def __init__(self, *args: Any, own: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.own = own

    space = spaces.Box(-1, 1, (2,))
    buffer = PrioritizedOwn(10, space, space, own=3, alpha=0.2)
    assert buffer.own == PrioritizedOwn.from_replay_buffer(buffer, alpha=0.3).own == 3
    save_buffer(buffer, tmp_path / "own.buffer")
    assert load_buffer(buffer, tmp_path / "own.buffer").own == 3


def test_an_extra_argument_that_is_no_attribute_is_named_when_the_buffer_is_made_anew():
    class Forgetful(PrioritizedReplayBuffer):
        def __init__(self, *args: Any, own: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)

    space = spaces.Box(-1, 1, (2,))
    buffer = Forgetful(10, space, space, own=3)
    assert Forgetful.from_replay_buffer(buffer, alpha=0.3).scheme.alpha == 0.3  # no constructor is called

    class Other(Forgetful):
        pass

    with pytest.raises(TypeError, match="keep the argument 'own' of its constructor in an attribute of the same name"):
        Other.from_replay_buffer(buffer)
