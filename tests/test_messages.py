"""What the package says where something is written wrong, or has no effect; and what constructors show of themselves."""

import ast
import inspect
import os
import subprocess
import sys
import typing
import warnings
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DDPG, DQN, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

import sb3_per
import sb3_per.zoo
from sb3_per import (
    LAP,
    PAL,
    PERDDPG,
    PERDQN,
    PERSAC,
    PERTD3,
    IgnoredSettingWarning,
    PERRecurrentDQN,
    PERRecurrentSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedOffPolicyMixin,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    PriorityMonitor,
    Proportional,
    RankBased,
    ReplayBufferKwargs,
    Uniform,
)
from sb3_per.buffers.settings import INTEGERS, NUMBERS, PrioritizedKwargs, ignored, yaml_number
from sb3_per.monitoring.plots import plot_buffer
from sb3_per.persistence.model_zip import _PRIORITIZED_SETTINGS
from sb3_per.zoo import ALGORITHMS, config_path
from tests.utils import ROOT, STOCK, fill, make_buffer

SMALL: dict[str, Any] = dict(buffer_size=200, learning_starts=20, batch_size=8, device="cpu")
BUFFERS = (
    PrioritizedReplayBuffer,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
)
ALL = (*STOCK, PERRecurrentDQN, PERRecurrentSAC)


def buffer(**kwargs: Any) -> PrioritizedReplayBuffer:
    return make_buffer(**kwargs)


def heard(make: Any) -> list[str]:
    """What is said of settings without effect."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(w.message) for w in caught if issubclass(w.category, IgnoredSettingWarning)]


# ---- names of runs


@pytest.mark.parametrize("name, folder", [(None, "PERDQN_1"), ("DQN", "DQN_1"), ("mine", "mine_1")])
def test_a_run_is_named_by_its_class(name, folder, tmp_path):
    kwargs = {} if name is None else dict(tb_log_name=name)
    model = PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL)
    model.learn(20, **kwargs)
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    model.learn(20, reset_num_timesteps=False, **kwargs)
    assert [path.name for path in tmp_path.iterdir()] == [folder]  # goes on in it
    model.learn(20, None, 4, *kwargs.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder, folder.replace("_1", "_2")]


def test_a_run_of_a_subclass_and_of_one_with_memory(tmp_path):
    class Mine(PERDQN):
        pass

    Mine("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL).learn(10)
    PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL).learn(10)
    DQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL).learn(10)
    assert {path.name for path in tmp_path.iterdir()} == {"Mine_1", "PERRecurrentDQN_1", "DQN_1"}


@pytest.mark.parametrize("cls", ALL)
def test_learn_takes_the_arguments_of_stock(cls):
    ours, stock = (list(inspect.signature(c.learn).parameters) for c in (cls, OffPolicyAlgorithm))
    assert ours == stock


# ---- settings without effect

# A value that is not the default, and the schemes that have no use for it.
WITHOUT_EFFECT = {
    "alpha": (0.3, {"uniform"}),
    "td_error_reduction": ("min", {"uniform"}),
    "epsilon": (0.1, {"rank", "lap", "pal", "uniform"}),
    "kappa": (0.3, {"proportional", "rank", "uniform"}),
    "beta_start": (0.5, {"lap", "pal", "uniform"}),
    "beta_end": (0.9, {"lap", "pal", "uniform"}),
    "beta_anneal_steps": (10, {"lap", "pal", "uniform"}),
    "uniform_fraction": (0.2, {"pal", "uniform"}),
}
SCHEMES = ("proportional", "rank", "lap", "pal", "uniform")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_setting_without_effect(name, scheme):
    """One rule for all: a warning with the setting, its value, the scheme, and who would use it."""
    value, idle = WITHOUT_EFFECT[name]
    said = heard(lambda: buffer(scheme=scheme, **{name: value}))
    if scheme not in idle:
        assert said == []
        return
    (message,) = said
    assert message.startswith(f"{name}={value!r} has no effect with scheme={scheme!r}: ")
    users = {other for other in SCHEMES if f"'{other}'" in message.split(": ", 1)[1]}
    assert users and users <= set(SCHEMES) - idle
    default = inspect.signature(PrioritizedReplayBuffer).parameters[name].default
    assert heard(lambda: buffer(scheme=scheme, **{name: default})) == []


@pytest.mark.parametrize("scheme", [Proportional(0.5), RankBased(), LAP(kappa=0.3), PAL(), Uniform()], ids=repr)
@pytest.mark.parametrize("name", ["beta_start", "beta_end", "beta_anneal_steps", "uniform_fraction"])
def test_a_setting_beside_a_scheme_object(name, scheme):
    value, _ = WITHOUT_EFFECT[name]
    is_used = not scheme.draws_uniformly if name == "uniform_fraction" else scheme.importance_sampling
    said = heard(lambda: buffer(scheme=scheme, **{name: value}))
    assert len(said) == (not is_used)
    assert all(f"{name}={value!r}" in text and repr(scheme) in text for text in said)


def test_recency_min_without_recency():
    assert "recency_min=7" in heard(lambda: buffer(recency_min=7))[0]
    assert heard(lambda: buffer(recency_min=7, recency=0.99)) == []


@given(st.dictionaries(st.sampled_from(sorted(WITHOUT_EFFECT)), st.none()), st.sampled_from(SCHEMES))
def test_as_many_warnings_as_settings_without_effect(names, scheme):
    settings = {name: WITHOUT_EFFECT[name][0] for name in names}
    expected = {name for name in names if scheme in WITHOUT_EFFECT[name][1]}
    assert {text.partition("=")[0] for text in heard(lambda: buffer(scheme=scheme, **settings))} == expected
    assert {name for name in names if ignored(scheme, name)} == expected


def test_what_a_model_was_not_told_is_not_spoken_of(tmp_path):
    """Neither by a zip, nor by a buffer that changes its scheme, nor by one that is loaded; what `load` is told is."""
    zip_path, pkl = tmp_path / "model.zip", tmp_path / "buffer.pkl"
    kwargs = dict(scheme="lap", beta_start=0.5)

    def save() -> None:
        model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=kwargs, **SMALL)
        model.save(zip_path)
        fill([model.replay_buffer], 5)
        model.save_replay_buffer(pkl)
        model.save_replay_buffer(tmp_path / "b.buffer")

    assert len(heard(save)) == 1
    assert heard(lambda: PERDQN.load(zip_path)) == []
    assert "kappa=3" in heard(lambda: PERDQN.load(zip_path, replay_buffer_kwargs=dict(kappa=3)))[0]

    model = PERDQN.load(zip_path)
    for path in (pkl, tmp_path / "b.buffer"):
        assert heard(lambda path=path: model.load_replay_buffer(path)) == []
    with_beta = buffer(beta_start=0.7, epsilon=0.1)
    assert heard(lambda: PrioritizedReplayBuffer.from_replay_buffer(with_beta, scheme="pal")) == []
    for settings in (dict(scheme="pal", beta_start=0.7), dict(scheme="uniform", alpha=0.7), dict(kappa=0.7)):
        said = heard(lambda settings=settings: PrioritizedReplayBuffer.from_replay_buffer(buffer(), **settings))
        assert [text.partition("=")[0] for text in said] == [list(settings)[-1]]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_our_hyperparameters_have_no_settings_without_effect(algo):
    for environment, entry in yaml.safe_load(config_path(algo).read_text()).items():
        settings = entry.get("replay_buffer_kwargs", {})
        settings = eval(settings) if isinstance(settings, str) else settings
        scheme = settings.get("scheme", "proportional")
        assert [name for name in settings if ignored(scheme, name) and settings[name] != DEFAULTS[name]] == [], environment


@pytest.mark.parametrize("option", ["-optimize", "--trial-id", None])
def test_the_tuner_is_not_spoken_of(option, monkeypatch):
    """A trial combines what nobody has written side by side."""
    monkeypatch.setattr(sb3_per.zoo, "_train", lambda **_: buffer(scheme="lap", beta_start=0.7))
    options = [] if option is None else [option]
    said = heard(lambda: sb3_per.zoo.main(["train", "--algo", "per_sac", "--env", "Pendulum-v1", *options]))
    assert len(said) == (option is None)


DEFAULTS = {name: p.default for name, p in inspect.signature(PrioritizedReplayBuffer).parameters.items()}


# ---- the monitor


@pytest.mark.parametrize("form", ["csv", "json", "stdout", "log"])
def test_the_monitor_writes_to_every_logger(form, tmp_path, capsys):
    model = PERDQN("MlpPolicy", "CartPole-v1", seed=0, **SMALL)
    model.set_logger(configure(str(tmp_path), [form]))
    model.learn(300, callback=PriorityMonitor(interval=50), log_interval=1)
    model.logger.close()
    text = capsys.readouterr().out + "".join(path.read_text() for path in tmp_path.iterdir())
    for name in ("never_drawn", "buffer_effective_sample_size", "priorities_p50", "weights_p05", "age_p95"):
        assert name in text


def test_quantiles_of_the_monitor(tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", seed=0, **SMALL)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(200, callback=PriorityMonitor(interval=50), log_interval=1)
    found = dict(model.logger.name_to_value)
    monitor = PriorityMonitor(interval=50)
    monitor.init_callback(model)
    monitor._record()
    masses = model.replay_buffer.priorities
    assert model.logger.name_to_value["per/priorities_p50"] == pytest.approx(np.percentile(masses[masses > 0], 50))
    assert found.keys() <= model.logger.name_to_value.keys()


def test_the_monitor_says_that_it_has_nowhere_to_write(tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", **SMALL)
    with pytest.warns(UserWarning, match=r"nowhere to write.*tensorboard_log.*verbose=1"):
        model.learn(30, callback=PriorityMonitor(interval=10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL).learn(30, callback=PriorityMonitor(10))


# ---- the order of bases


@pytest.mark.parametrize("stock", [SAC, TD3, DDPG, DQN, QRDQN, TQC])
def test_the_mixin_on_the_right(stock):
    """And the second time, too; who asks for subclasses hears the truth as long as what was refused is there."""
    refused = []
    for _ in range(2):
        expected = rf"train\(\).*class Mine\(PrioritizedOffPolicyMixin, {stock.__name__}\)"
        with pytest.raises(TypeError, match=expected) as raised:

            class Mine(stock, PrioritizedOffPolicyMixin):
                pass

        refused.append(raised)
        assert issubclass(stock, stock) and not issubclass(stock, PrioritizedOffPolicyMixin)
        assert issubclass(PERSAC, PrioritizedOffPolicyMixin) and issubclass(PERSAC, SAC)


def test_the_mixin_on_the_right_of_an_algorithm_of_ones_own():
    class Own(SAC):
        def train(self, gradient_steps: int, batch_size: int = 64) -> None:
            pass

    with pytest.raises(TypeError, match=r"right of Own.*class Mine\(EntropyRegularizedMixin, Own\)"):
        from sb3_per.algorithms.sac import EntropyRegularizedMixin

        class Mine(Own, EntropyRegularizedMixin):
            pass


def test_bases_that_hand_on_may_stand_anywhere():
    class Counts(DQN):
        n_calls = 0

        def train(self, *args: Any, **kwargs: Any) -> None:
            self.n_calls += 1
            super().train(*args, **kwargs)

    class Mine(Counts, PERDQN):
        pass

    model = Mine("MlpPolicy", "CartPole-v1", **SMALL).learn(40)
    assert model.n_calls > 0 and (model.replay_buffer.priorities != 1).any()


# ---- misspelt, and misplaced


@pytest.mark.parametrize(
    "cls, keywords, message",
    [
        (
            PERSAC,
            dict(alpha=0.7),
            r"PERSAC has no argument 'alpha'.*PERSAC\(.*, replay_buffer_kwargs=dict\(alpha=0\.7\)\)",
        ),
        (PERSAC, dict(aplha=0.7), r"'aplha'.*replay_buffer_kwargs=dict\(alpha=0\.7\)"),
        (PERDQN, dict(scheme="lap"), r"replay_buffer_kwargs=dict\(scheme='lap'\)"),
        (PERDQN, dict(n_sampled_goal=4), r"replay_buffer_kwargs=dict\(n_sampled_goal=4\)"),
        (PERSAC, dict(learnin_rate=1), r"'learnin_rate': did you mean 'learning_rate'\?"),
        (PERDQN, dict(duoble_q=True), r"'duoble_q': did you mean 'double_q'\?"),
        (PERDDPG, dict(bufer_size=1), "'bufer_size': did you mean 'buffer_size'"),
        (PERTD3, dict(polcy_delay=1), "'polcy_delay': did you mean 'policy_delay'"),
        (PERTD3, dict(xyzzy=1, gama=1), "PERTD3 has no argument 'xyzzy'; 'gama': did you mean 'gamma'"),
    ],
)
def test_a_keyword_that_an_algorithm_does_not_have(cls, keywords, message):
    env = "CartPole-v1" if issubclass(cls, DQN) else "Pendulum-v1"
    with pytest.raises(TypeError, match=message):
        cls("MlpPolicy", env, **keywords)


def test_a_keyword_that_an_algorithm_with_memory_does_not_have():
    with pytest.raises(TypeError, match="'burnin': did you mean 'burn_in'"):
        PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", burnin=3)


def test_a_keyword_in_a_class_of_ones_own():
    class Mine(PERDQN):
        def __init__(self, *args: Any, mine: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.mine = mine

    assert Mine("MlpPolicy", "CartPole-v1", mine=3, **SMALL).mine == 3
    with pytest.raises(TypeError, match="'gama': did you mean 'gamma'"):
        Mine("MlpPolicy", "CartPole-v1", gama=0.9)

    class Larger(DQN):
        def __init__(self, *args: Any, larger: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.larger = larger

    class PERLarger(PERDQN, Larger):
        pass

    assert PERLarger("MlpPolicy", "CartPole-v1", larger=3, **SMALL).larger == 3


@pytest.mark.parametrize(
    "keywords, message",
    [
        (dict(aplha=0.7), "PrioritizedReplayBuffer has no setting 'aplha': did you mean 'alpha'"),
        (dict(beta_strat=0.7), "did you mean 'beta_start'"),
        (dict(handle_timeout=True), "did you mean 'handle_timeout_termination'"),
        (dict(update_from_virtual=True), "'update_from_virtual'.*replay_buffer_class=PrioritizedHerReplayBuffer"),
        (dict(n_sampled_goal=4), "'n_sampled_goal'.*replay_buffer_class=PrioritizedHerReplayBuffer"),
        (dict(sequence_length=4), "'sequence_length'.*PERRecurrentDQN"),
        (dict(xyzzy=4), "no setting 'xyzzy'$"),
    ],
)
def test_a_keyword_that_a_buffer_does_not_have(keywords, message):
    with pytest.raises(TypeError, match=message):
        PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=keywords)


@pytest.mark.parametrize("name", sorted(PrioritizedKwargs.__annotations__))
def test_every_setting_is_found_again(name):
    """One letter less: the nearest name is the right one."""
    with pytest.raises(TypeError, match=f"did you mean '{name}'"):
        buffer(**{name[:-1] if name[:-1] not in PrioritizedKwargs.__annotations__ else name + "_": 1})


def test_a_buffer_of_ones_own_takes_what_it_takes():
    class Own(ReplayBuffer):
        def __init__(self, *args: Any, own: int = 0, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.own = own

    class PrioritizedOwn(PrioritizedReplayBuffer, Own):
        pass

    space = spaces.Box(-1, 1, (2,))
    assert PrioritizedOwn(10, space, space, own=3, alpha=0.2).own == 3


# ---- strings in place of numbers


@pytest.mark.parametrize("name", sorted(NUMBERS))
@pytest.mark.parametrize("value", ["1e-3", "2", "high"])
def test_a_string_in_place_of_a_number(name, value):
    cls = PERDQN
    kwargs: dict[str, Any] = dict(replay_buffer_kwargs={name: value})
    env: Any = "CartPole-v1"
    policy = "MlpPolicy"
    if name == "n_sampled_goal":
        policy, env = "MultiInputPolicy", BitFlippingEnv(4)
        kwargs["replay_buffer_class"] = PrioritizedHerReplayBuffer
    elif name in ("sequence_length", "burn_in"):
        return  # arguments of the constructor, see below
    elif name in ("sequence_period", "eta"):
        cls, policy = PERRecurrentDQN, "MlpLstmPolicy"
    expected = f"^{name} must be a number, not the string '{value}'"
    if (name, value) == ("kappa", "high"):  # which may be a word, and this one is none
        expected = "^kappa must be a number, not 'high'"
    with pytest.raises(ValueError, match=expected) as raised:
        cls(policy, env, **kwargs)
    message = str(raised.value)
    assert ("YAML reads" in message) == (value != "high")
    if value != "high":
        written = message.split("write ")[1].split(" or ")
        assert all(yaml.safe_load(text) == float(value) for text in written)


def test_numbers_are_those_of_the_types():
    hints = typing.get_type_hints(ReplayBufferKwargs, localns={"GoalSelectionStrategy": object, "Literal": Literal})

    def has(hint: Any, *kinds: type) -> bool:
        parts = get_args(hint) if get_origin(hint) is not Literal else ()
        return hint in kinds or any(has(part, *kinds) for part in parts if get_origin(part) is None)

    assert {name for name, hint in hints.items() if has(hint, int, float)} - {"state_shapes"} == NUMBERS
    assert {name for name, hint in hints.items() if has(hint, int)} - {"state_shapes"} == INTEGERS


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_yaml_reads_a_number_as_it_is_written(number):
    assert yaml.safe_load(yaml_number(number)) == number and isinstance(yaml.safe_load(yaml_number(number)), float)


def test_what_is_a_word():
    assert buffer(scheme="lap", kappa="auto").scheme.kappa_is_auto


@pytest.mark.parametrize(
    "name, value, hint", [("buffer_size", "1e5", "100000"), ("learning_rate", "1e-4", "0.0001"), ("gamma", "high", "")]
)
def test_a_string_in_place_of_a_number_of_an_algorithm(name, value, hint):
    with pytest.raises(ValueError, match=f"^{name} must be a number, not the string '{value}'.*{hint}"):
        PERDQN("MlpPolicy", "CartPole-v1", **{name: value})


def test_words_that_an_algorithm_takes():
    assert PERSAC("MlpPolicy", "Pendulum-v1", ent_coef="auto_0.1", **SMALL).ent_coef == "auto_0.1"


# ---- hindsight


@pytest.mark.parametrize("cls", [ReplayBuffer, HerReplayBuffer])
def test_a_buffer_of_sb3(cls):
    ours = "PrioritizedHerReplayBuffer" if cls is HerReplayBuffer else "PrioritizedReplayBuffer"
    with pytest.raises(ValueError, match=f"{cls.__name__} is not: use {ours}"):
        PERDQN("MultiInputPolicy", BitFlippingEnv(4), replay_buffer_class=cls)


def test_hindsight_without_goals():
    with pytest.raises(ValueError, match=r"environment with goals.*'observation', 'achieved_goal', 'desired_goal'"):
        PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=PrioritizedHerReplayBuffer)


def test_hindsight_with_half_a_goal_environment():
    class Env(gym.Env):
        action_space = spaces.Discrete(2)
        observation_space = spaces.Dict({name: spaces.Box(-1, 1, (2,)) for name in ("observation", "achieved_goal")})

    def make() -> PERDQN:
        return PERDQN("MultiInputPolicy", Env(), replay_buffer_class=PrioritizedHerReplayBuffer, buffer_size=10)

    with pytest.raises(ValueError, match=r"goals.* Missing: 'desired_goal' in Dict"):
        make()
    Env.observation_space = spaces.Dict({**Env.observation_space.spaces, "desired_goal": spaces.Box(-1, 1, (2,))})
    with pytest.raises(ValueError, match=r"goals, and this one has no compute_reward\(\)"):
        make()


# ---- extras


def test_missing_extras_name_the_command(monkeypatch, tmp_path):
    filled = buffer()
    fill([filled], 5)
    for module, use, extra in (
        ("matplotlib", lambda: plot_buffer(filled), "extra"),
        ("matplotlib.figure", lambda: plot_buffer(filled), "extra"),
        ("tensorboard", lambda: PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL).learn(1), "extra"),
        ("rl_zoo3", lambda: sb3_per.zoo.register(), "zoo"),
        ("minari", lambda: sb3_per.to_minari(filled, "a/b-v0"), "minari"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=rf"pip install 'sb3_per\[{extra}\]'"):
                use()


# ---- what constructors show


@pytest.mark.parametrize("cls", BUFFERS)
def test_a_buffer_shows_all_its_settings(cls):
    """Also to `help`: SB3's arguments in their order, then ours, all with types."""
    shown = inspect.signature(cls).parameters
    stock = next(c for c in cls.__mro__ if c.__module__.startswith("stable_baselines3"))
    arguments = inspect.signature(stock).parameters
    assert list(shown)[: len(arguments)] == list(arguments)
    assert all((shown[name].default, shown[name].kind) == (p.default, p.kind) for name, p in arguments.items())
    assert set(shown) == {*arguments, *cls._keywords()}
    assert all(p.annotation is not p.empty and p.kind is not p.VAR_KEYWORD for p in shown.values())


def test_all_settings_have_a_type():
    of_sb3 = {"handle_timeout_termination", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"}
    assert set(ReplayBufferKwargs.__annotations__) == _PRIORITIZED_SETTINGS | of_sb3


@pytest.mark.parametrize("cls", ALL)
def test_what_type_checkers_see_is_what_runs(cls):
    """The constructor under TYPE_CHECKING has the arguments and defaults of the one that runs."""
    tree = ast.parse(Path(inspect.getfile(cls)).read_text())
    (node,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    (block,) = (n for n in node.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    (init,) = block.body
    assert isinstance(init, ast.FunctionDef) and init.name == "__init__"
    positional = [*([None] * (len(init.args.args) - len(init.args.defaults))), *init.args.defaults]
    seen = {
        arg.arg: inspect.Parameter.empty if default is None else ast.literal_eval(default)
        for arg, default in zip([*init.args.args, *init.args.kwonlyargs], [*positional, *init.args.kw_defaults], strict=True)
    }
    runs = inspect.signature(cls.__init__).parameters
    assert list(seen.items()) == [(name, parameter.default) for name, parameter in runs.items()]
    types = {arg.arg: ast.unparse(arg.annotation) for arg in (*init.args.args, *init.args.kwonlyargs) if arg.annotation}
    assert types.keys() == seen.keys() - {"self"} and types["replay_buffer_kwargs"] == "ReplayBufferKwargs | None"


@pytest.mark.parametrize("cls", (*ALL, *BUFFERS))
def test_a_docstring_stands_alone(cls):
    """What it is, a paper, where settings go, and an example that is code."""
    doc = inspect.cleandoc(vars(cls)["__doc__"])
    example = doc.split("::\n\n", 1)[1].split("\n\n")[0]
    assert "arXiv" in doc or "et al. 20" in " ".join(doc.split())
    assert cls in BUFFERS or "replay_buffer_kwargs" in doc
    names = {node.id for node in ast.walk(ast.parse(inspect.cleandoc(example))) if isinstance(node, ast.Name)}
    assert cls.__name__ in names


SNIPPET = """
import gymnasium as gym
from sb3_per import *

env = gym.make("CartPole-v1")
space = env.observation_space
PERSAC("MlpPolicy", env, 1e-3, replay_buffer_kwargs=dict(alpha=0.6, scheme="lap", kappa="auto"))
PERDQN("MlpPolicy", "CartPole-v1", double_q=True, replay_buffer_kwargs={"n_sampled_goal": 4, "frames": 4}).learn(10)
settings: ReplayBufferKwargs = dict(alpha=1, update_from_virtual=False, handle_timeout_termination=False)
PERTQC("MlpPolicy", env, replay_buffer_kwargs=settings)
PERTD3("MlpPolicy", env, replay_buffer_kwargs=ReplayBufferKwargs(scheme=LAP(kappa=0.1)))
PERRecurrentDQN("MlpLstmPolicy", env, burn_in=3, replay_buffer_kwargs=dict(eta=0.5))
PrioritizedReplayBuffer(10, space, space, "cpu", 2, alpha=0.5)
class MyKwargs(ReplayBufferKwargs, total=False):
    own: float
mine: MyKwargs = {"own": 1.0, "alpha": 0.2}
PERDDPG("MlpPolicy", env, replay_buffer_kwargs=mine)

PERSAC("MlpPolicy", env, replay_buffer_kwargs=dict(aplha=0.6))  # wrong
PERSAC("MlpPolicy", env, replay_buffer_kwargs=dict(alpha="high"))  # wrong
PERTD3("MlpPolicy", env, replay_buffer_kwargs=dict(scheme="lop"))  # wrong
PERDDPG("MlpPolicy", env, replay_buffer_kwargs=ReplayBufferKwargs(alpha="high"))  # wrong
PERQRDQN("MlpPolicy", env, alpha=0.6)  # wrong
PERCrossQ("MlpPolicy", env, gamma="high")  # wrong
PERDQN("MlpPolicy", env, duoble_q=True)  # wrong
PERRecurrentDQN("MlpLstmPolicy", env, burnin=3)  # wrong
PERRecurrentSAC("MlpLstmPolicy", env, burn_in="high")  # wrong
PrioritizedReplayBuffer(10, space, space, aplha=0.5)  # wrong
PrioritizedDictReplayBuffer(10, env.observation_space, space)  # wrong
PrioritizedHerReplayBuffer(10, gym.spaces.Dict(), space, update_from_virtual=True)  # wrong
PrioritizedSequenceReplayBuffer(10, space, space, eta="high")  # wrong
"""


@pytest.mark.slow
def test_types(tmp_path):
    """mypy finds what is wrong, and nothing else."""
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "--config-file", "", str(path)]
    done = subprocess.run(command, env={**os.environ, "MYPYPATH": str(ROOT)}, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {i for i, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# wrong")}, done.stdout


def test_a_prioritized_buffer_in_a_stock_algorithm_is_explained():
    """What the warning says is a heading of the page."""
    model = SAC("MlpPolicy", "Pendulum-v1", replay_buffer_class=PrioritizedReplayBuffer, **SMALL)
    with pytest.warns(UserWarning, match=r"update_priorities\(\) was not called"):
        model.learn(40)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert "update_priorities() was not called" in page and "replay_buffer_class=PrioritizedReplayBuffer" in page


def test_an_environment_factory_with_hindsight_still_works():
    env = make_vec_env(lambda: BitFlippingEnv(4), n_envs=2)
    PERDQN("MultiInputPolicy", env, replay_buffer_class=PrioritizedHerReplayBuffer, **{**SMALL, "learning_starts": 30}).learn(
        50
    )
