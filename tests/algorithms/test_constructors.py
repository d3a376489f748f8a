"""Constructors of the algorithms: signatures, settings of the buffer, the order of bases, and the choice of the buffer."""

import inspect
import os
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    PERRecurrentDQN,
    PERRecurrentSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from tests.helpers.models import ALGORITHMS, EVERY, STOCK, env_of
from tests.helpers.project import ROOT

SMALL: dict[str, Any] = dict(buffer_size=200, learning_starts=20, batch_size=8, device="cpu")


# ---- signatures


def test_the_signature_is_that_of_the_stock_class():
    for cls in STOCK:
        shown = list(inspect.signature(cls).parameters.values())
        stock = list(inspect.signature(STOCK[cls]).parameters.values())
        assert shown[: len(stock)] == stock
        assert {p.name: p.default for p in shown[len(stock) :]} == ALGORITHMS[cls].added_arguments


def test_the_constructor_and_subclasses_of_users_show_the_same_arguments():
    """Scripts select hyperparameters by the names in the signature of the class or of its constructor."""

    class Plain(PERDQN):
        pass

    class WithOwnTraining(PERTD3):
        def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
            super().train(gradient_steps, batch_size)

    class Recurrent(PERRecurrentSAC):
        pass

    for subclass in (Plain, WithOwnTraining, Recurrent):
        cls = subclass.__bases__[0]
        shown = list(inspect.signature(cls).parameters.values())
        for each in (cls, subclass):
            of_init = list(inspect.signature(each.__init__).parameters.values())
            assert (of_init[0].name, of_init[1:]) == ("self", shown)
            assert list(inspect.signature(each).parameters.values()) == shown


def test_recurrent_classes_show_all_arguments_and_their_own_defaults():
    for cls, stock, changed in (
        (PERRecurrentDQN, DQN, dict(n_steps=5, batch_size=32, train_freq=64)),
        (PERRecurrentSAC, SAC, dict(batch_size=32, train_freq=4)),
    ):
        shown = inspect.signature(cls).parameters
        for name, parameter in inspect.signature(stock).parameters.items():
            assert shown[name].default == changed.get(name, parameter.default), name
        assert {"sequence_length", "burn_in"} < shown.keys()


def test_the_defaults_of_a_recurrent_class_are_those_that_its_model_has():
    """Its constructor names them, and those of the stock class could change."""
    for cls, env in ((PERRecurrentDQN, "CartPole-v1"), (PERRecurrentSAC, "Pendulum-v1")):
        model: Any = cls("MlpLstmPolicy", env, device="cpu")
        for name, parameter in inspect.signature(cls).parameters.items():
            if hasattr(model, name) and name not in ("policy", "env", "device", "policy_kwargs"):
                value = getattr(model, name)
                shown = 1 if name == "train_freq" else parameter.default
                if name == "train_freq":
                    shown, value = parameter.default, value.frequency
                elif name == "target_entropy":
                    shown = -1.0
                elif parameter.default is None:
                    shown = value  # SB3 puts something in the place of None
                assert value == shown, name


def test_defaults_of_a_recurrent_class_give_way_to_arguments_by_position():
    model: Any = PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", 1e-3, 200, 20, 8, burn_in=1, device="cpu")
    assert (model.batch_size, model.n_steps, model.train_freq.frequency) == (8, 5, 64)
    model = PERRecurrentSAC("MlpLstmPolicy", "Pendulum-v1", 1e-3, 500, 20, 7, device="cpu")
    assert (model.learning_rate, model.buffer_size, model.learning_starts, model.batch_size) == (1e-3, 500, 20, 7)
    assert model.train_freq.frequency == 4


def test_hyperparameters_selected_by_the_signature_reach_the_model():
    wanted = dict(learning_rate=1e-2, gamma=0.9, batch_size=8, double_q=True, not_an_argument=1)
    names = inspect.signature(PERDQN.__init__).parameters
    model = PERDQN("MlpPolicy", "CartPole-v1", **{name: value for name, value in wanted.items() if name in names})
    assert (model.learning_rate, model.gamma, model.batch_size, model.double_q) == (1e-2, 0.9, 8, True)


def test_a_subclass_may_add_arguments():
    class Mine(PERDQN):
        def __init__(self, *args: Any, mine: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.mine = mine

    class WithOwnDefaults(PERRecurrentDQN):
        def __init__(self, env: Any, batch_size: int = 64, **kwargs: Any):
            super().__init__("MlpLstmPolicy", env, batch_size=batch_size, **kwargs)

    assert list(inspect.signature(Mine).parameters) == ["args", "mine", "kwargs"]
    assert Mine("MlpPolicy", "CartPole-v1", mine=3, double_q=True, **SMALL).mine == 3
    assert inspect.signature(WithOwnDefaults).parameters["batch_size"].default == 64


def test_a_users_algorithm_keeps_its_arguments():
    class Larger(DQN):
        def __init__(self, *args: Any, larger: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.larger = larger

    class PERLarger(PERDQN, Larger):
        pass

    model = PERLarger("MlpPolicy", "CartPole-v1", larger=3, double_q=True, **SMALL)
    assert (model.larger, model.double_q) == (3, True)


def test_learn_takes_the_arguments_of_the_stock_class():
    for cls in EVERY:
        ours, stock = (list(inspect.signature(c.learn).parameters) for c in (cls, OffPolicyAlgorithm))
        assert ours == stock, cls


def test_the_example_of_a_docstring_makes_a_model(monkeypatch):
    monkeypatch.setattr(OffPolicyAlgorithm, "learn", lambda self, total_timesteps, **kwargs: self)
    for cls in EVERY:
        example = inspect.cleandoc(cls.__doc__).split("::\n\n", 1)[1].split("\n\n")[0]
        names = {cls.__name__: cls, "env": gym.make(env_of(cls))}
        exec(inspect.cleandoc(example), names)
        assert type(names["model"]) is cls


SNIPPET = """
import gymnasium as gym
from sb3_per import *

env = gym.make("CartPole-v1")
PERSAC("MlpPolicy", env, 1e-3, replay_buffer_kwargs=dict(alpha=0.6, scheme="lap", kappa=0.1))
PERDQN("MlpPolicy", "CartPole-v1", double_q=True, replay_buffer_kwargs={"frames": 4}).learn(10)
PERTD3("MlpPolicy", env, replay_buffer_kwargs=dict(scheme=LAP(kappa=0.1)))
PERRecurrentDQN("MlpLstmPolicy", env, burn_in=3, replay_buffer_kwargs=dict(eta=0.5))

PERSAC("MlpPolicy", env, alpha=0.6)  # wrong
PERQRDQN("MlpPolicy", env, gamma="high")  # wrong
PERCrossQ("MlpPolicy", env, replay_buffer_kwargs=0.6)  # wrong
PERDQN("MlpPolicy", env, double_q="yes")  # wrong
PERRecurrentSAC("MlpLstmPolicy", env, burn_in="high")  # wrong
"""


@pytest.mark.slow
def test_type_checkers_see_the_stock_constructors(tmp_path):
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "--config-file", "", str(path)]
    done = subprocess.run(command, env={**os.environ, "MYPYPATH": str(ROOT)}, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {i for i, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# wrong")}, done.stdout


# ---- settings of the buffer


UNKNOWN_SETTINGS = [
    (dict(aplha=0.7), "PrioritizedReplayBuffer has no setting 'aplha': did you mean 'alpha'"),
    (dict(handle_timeout=True), "did you mean 'handle_timeout_termination'"),
    (dict(update_from_virtual=True), "'update_from_virtual'.*replay_buffer_class=PrioritizedHerReplayBuffer"),
    (dict(sequence_length=4), "'sequence_length'.*PERRecurrentDQN"),
    (dict(xyzzy=4), "no setting 'xyzzy'$"),
]


def test_unknown_settings_are_refused_with_a_hint():
    for keywords, message in UNKNOWN_SETTINGS:
        with pytest.raises(TypeError, match=message):
            PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=keywords)


def test_n_steps_in_replay_buffer_kwargs_must_agree_with_the_argument():
    model = PERDQN("MlpPolicy", "CartPole-v1", gamma=0.9, replay_buffer_kwargs=dict(n_steps=4), **SMALL)
    assert (model.replay_buffer.settings.n_steps, model.replay_buffer.settings.gamma) == (4, 0.9)
    assert (model.n_steps, model.gamma, model.replay_buffer_kwargs) == (4, 0.9, {})
    with pytest.raises(ValueError, match="n_steps=3 contradicts"):
        PERDQN("MlpPolicy", "CartPole-v1", n_steps=3, replay_buffer_kwargs=dict(n_steps=4))
    for settings, message in (
        (dict(n_steps="4"), "n_steps must be an integer"),
        (dict(gamma=2.0), r"gamma must be .*not 2\.0"),
    ):
        with pytest.raises(ValueError, match=message):
            PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=settings)


def test_gamma_in_replay_buffer_kwargs_must_agree_with_the_argument(tmp_path):
    """It may replace the default, as with SB3's NStepReplayBuffer. A model with one gamma loads with another."""
    for arguments in ({}, dict(n_steps=3)):
        kwargs = dict(replay_buffer_kwargs=dict(gamma=0.9), **arguments, **SMALL)
        with pytest.raises(ValueError, match=r"gamma=0\.98 contradicts gamma=0\.9 .*: give gamma to PERDQN alone"):
            PERDQN("MlpPolicy", "CartPole-v1", gamma=0.98, **kwargs)
        assert PERDQN("MlpPolicy", "CartPole-v1", **kwargs).gamma == 0.9
        model = PERDQN("MlpPolicy", "CartPole-v1", gamma=0.9, **kwargs)
        model.save(tmp_path / "model")
        loaded = PERDQN.load(tmp_path / "model", gamma=0.8)
        assert loaded.gamma == 0.8
        if arguments:  # with a single step, the buffer has no use for it
            assert loaded.replay_buffer.gamma == 0.8


def test_a_setting_replaces_the_default_of_the_argument(tmp_path):
    """Given by name or by position, a default cannot be told from none. Any other value is a contradiction."""
    model: Any = PERDQN("MlpPolicy", "CartPole-v1", n_steps=1, replay_buffer_kwargs=dict(n_steps=5), **SMALL)
    assert (model.n_steps, model.replay_buffer.n_steps) == (5, 5)
    make = partial(PERRecurrentDQN, "MlpLstmPolicy", "CartPole-v1", buffer_size=200, device="cpu")
    for arguments in ({}, dict(n_steps=5)):
        model = make(replay_buffer_kwargs=dict(n_steps=3, sequence_length=7), **arguments)
        assert (model.n_steps, model.replay_buffer.n_steps) == (3, 3)
        assert (model.sequence_length, model.replay_buffer.sequence_length) == (7, 7)
    for arguments in (dict(n_steps=1), dict(sequence_length=9)):
        with pytest.raises(ValueError, match="contradicts"):
            make(**arguments, replay_buffer_kwargs=dict(n_steps=3, sequence_length=7))


def test_load_names_the_place_of_a_setting_of_the_buffer(tmp_path):
    PERDQN("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "model")
    with pytest.raises(TypeError, match=r"PERDQN has no argument 'alpha'.*replay_buffer_kwargs=dict\(alpha=0\.9\)"):
        PERDQN.load(tmp_path / "model", alpha=0.9)
    assert PERDQN.load(tmp_path / "model", gamma=0.9, own=3).own == 3

    class WithKappa(PERDQN):
        def __init__(self, *args: Any, kappa: float = 1.0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.kappa = kappa

    WithKappa("MlpPolicy", "CartPole-v1", kappa=2.0, **SMALL).save(tmp_path / "own")
    assert WithKappa.load(tmp_path / "own").kappa == 2.0
    assert WithKappa.load(tmp_path / "own", kappa=3.0).kappa == 3.0


def test_a_failed_setup_leaves_replay_buffer_kwargs_as_the_user_gave_them():
    given = dict(alpha=0.3)
    arguments: dict[str, Any] = dict(policy_kwargs=dict(unknown=1), replay_buffer_kwargs=given)
    model = PERDQN("MlpPolicy", "CartPole-v1", **arguments, _init_setup_model=False)
    with pytest.raises(TypeError, match="unknown"):
        model._setup_model()
    assert model.replay_buffer_kwargs == given == dict(alpha=0.3)


# ---- the order of bases


def test_bases_that_call_super_may_stand_left_of_the_mixin():
    class Counts(DQN):
        n_calls = 0

        def train(self, *args: Any, **kwargs: Any) -> None:
            self.n_calls += 1
            super().train(*args, **kwargs)

    class Mine(Counts, PERDQN):
        pass

    model = Mine("MlpPolicy", "CartPole-v1", **SMALL).learn(40)
    assert model.n_calls > 0 and (model.replay_buffer.masses != 1).any()


# ---- the choice of the buffer


def test_the_buffer_class_fits_the_observations(recwarn):
    """SB3's classes are replaced, `n_steps` and `gamma` reach the buffer, and the user's dictionary does not change."""
    of_box = (PrioritizedReplayBuffer, ReplayBuffer, NStepReplayBuffer)
    of_dict = (PrioritizedDictReplayBuffer, DictReplayBuffer)
    for policy, env, (expected, *stock), n_steps in (
        ("MlpPolicy", "CartPole-v1", of_box, 3),
        ("MultiInputPolicy", SimpleMultiObsEnv(), of_dict, 3),
        ("MultiInputPolicy", SimpleMultiObsEnv(), of_dict, 1),
    ):
        for buffer_class in (None, expected, *stock):
            kwargs = dict(alpha=0.9, beta_start=0.2)
            arguments = dict(replay_buffer_class=buffer_class, replay_buffer_kwargs=kwargs, n_steps=n_steps, gamma=0.95)
            model = PERDQN(policy, env, **arguments, **SMALL)
            settings = model.replay_buffer.settings
            assert type(model.replay_buffer) is expected
            assert (settings.n_steps, settings.alpha, model.replay_buffer.beta, model.gamma) == (n_steps, 0.9, 0.2, 0.95)
            assert settings.gamma == (0.95 if n_steps > 1 else 0.99)  # a single step needs none
            assert kwargs == dict(alpha=0.9, beta_start=0.2)
    assert not [w for w in recwarn if "n_steps" in str(w.message)]


def test_buffers_of_sb3_are_replaced_by_those_of_hindsight_and_of_sequences():
    kwargs = dict(n_sampled_goal=2, goal_selection_strategy="final")
    model = PERDQN(
        "MultiInputPolicy",
        BitFlippingEnv(4),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs=kwargs,
        **{**SMALL, "learning_starts": 30},
    ).learn(60)
    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
    assert model.replay_buffer.n_sampled_goal == 2
    assert (model.replay_buffer.masses > 0).any()
    model = PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, **SMALL)
    assert type(model.replay_buffer) is PrioritizedSequenceReplayBuffer


def test_other_buffers_that_are_not_prioritized_are_refused():
    """The message names the class to derive from."""
    for cls, base, wanted in (
        (PERSAC, ReplayBuffer, "PrioritizedReplayBuffer"),
        (PERDQN, HerReplayBuffer, "PrioritizedHerReplayBuffer"),
    ):
        own = type("Own", (base,), {})
        with pytest.raises(ValueError, match=rf"\bOwn is not: use a subclass of {wanted}"):
            cls("MlpPolicy", env_of(cls), replay_buffer_class=own)


def test_hindsight_needs_an_environment_with_goals():
    class Env(gym.Env):
        action_space = spaces.Discrete(2)
        observation_space = spaces.Dict({name: spaces.Box(-1, 1, (2,)) for name in ("observation", "achieved_goal")})

    class WithReward(Env):
        def compute_reward(self, *args: Any) -> float:
            return 0.0

    def make(policy: str, env: Any) -> PERDQN:
        return PERDQN(policy, env, replay_buffer_class=PrioritizedHerReplayBuffer, buffer_size=10)

    with pytest.raises(ValueError, match=r"environment with goals, and this one has no compute_reward\(\)"):
        make("MlpPolicy", "CartPole-v1")
    with pytest.raises(ValueError, match=r"goals.* Missing: 'desired_goal' in Dict"):
        make("MultiInputPolicy", WithReward())


def test_an_argument_by_position_and_by_name_is_refused():
    """Also where defaults differ from those of the stock constructor."""
    for given in (dict(env="Pendulum-v1"), dict(policy="MlpLstmPolicy")):
        with pytest.raises(TypeError, match=next(iter(given))):
            PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", **given)
