"""
A user's class is made, trained, saved, loaded and gone on with as one of the stock class: with arguments of its own, its own
``train``, hooks, buffer class or policy. Only its base changes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from sb3_per import PrioritizedReplayBuffer
from tests.helpers.stock_runs import OURS, differences, learned, whole_life

# ---- arguments of its own: each function makes a class from a stock class, or from ours


def adds_an_argument(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, bonus: float = 0.5, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.bonus = bonus

        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            super().train(gradient_steps + int(2 * self.bonus), batch_size)

    return Own


def sets_its_argument_first(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, wait: int = 3, **kwargs: Any):
            self.wait = wait
            super().__init__(*args, **kwargs)

        def _setup_model(self) -> None:
            self.learning_starts += self.wait
            super()._setup_model()
            self.wait = 0

    return Own


def names_few_arguments(base: Any) -> Any:
    class Own(base):
        def __init__(
            self, policy: Any, env: Any, seed: int = 0, device: str = "cpu", _init_setup_model: bool = True, **kwargs: Any
        ):
            super().__init__(policy, env, seed=seed, device=device, _init_setup_model=_init_setup_model, **kwargs)

    return Own


def has_other_defaults(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, gamma: float = 0.9, tau: float = 0.5, **kwargs: Any):
            super().__init__(*args, gamma=gamma, tau=tau, **kwargs)

    return Own


def sets_the_model_up_itself(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, _init_setup_model: bool = True, width: int = 7, **kwargs: Any):
            super().__init__(*args, _init_setup_model=False, **kwargs)
            self.policy_kwargs["net_arch"] = [width]
            if _init_setup_model:
                self._setup_model()

    return Own


def takes_arguments_from_a_dictionary(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, **kwargs: Any):
            self.own = {name: kwargs.pop(name, 1) for name in ("first", "second")}
            super().__init__(*args, **kwargs)

    return Own


def has_an_argument_named_like_a_setting(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, alpha: float = 0.1, unique: bool = False, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.alpha, self.unique = alpha, unique

    return Own


def names_the_buffer(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, replay_buffer_class: Any = None, **kwargs: Any):
            super().__init__(*args, replay_buffer_class=replay_buffer_class or ReplayBuffer, **kwargs)

    return Own


def adds_settings_of_the_buffer(base: Any) -> Any:
    class Own(base):
        def __init__(self, *args: Any, replay_buffer_kwargs: Any = None, **kwargs: Any):
            both = {"handle_timeout_termination": True, **(replay_buffer_kwargs or {})}
            super().__init__(*args, replay_buffer_kwargs=both, **kwargs)

    return Own


def has_a_parent_on_the_left(base: Any) -> Any:
    class Left:
        def __init__(self, *args: Any, label: str = "left", **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.label = label

    class Own(Left, base):
        pass

    return Own


def says_how_it_is_copied(base: Any) -> Any:
    class Own(base):
        def __getstate__(self) -> dict[str, Any]:
            return {name: value for name, value in vars(self).items() if name not in ("env", "policy", "replay_buffer")}

        def __copy__(self) -> Any:
            raise TypeError("no copies, please")

    return Own


def keeps_a_network_of_its_own(base: Any) -> Any:
    class Own(base):
        def _setup_model(self) -> None:
            super()._setup_model()
            self.own_network = th.nn.Linear(2, 1)

        def _excluded_save_params(self) -> list[str]:
            return [*super()._excluded_save_params(), "own_network"]

        def _get_torch_save_params(self) -> Any:
            states, tensors = super()._get_torch_save_params()
            return [*states, "own_network"], tensors

    return Own


# ---- a train of its own


def counts_updates(base: Any) -> Any:
    class Own(base):
        n_trained = 0

        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            super().train(gradient_steps, batch_size)
            self.n_trained += gradient_steps

    return Own


def trains_twice(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            for _ in range(2):
                super().train(gradient_steps=gradient_steps, batch_size=batch_size)

    return Own


def trains_with_larger_batches(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            super().train(gradient_steps, batch_size=2 * batch_size)

    return Own


def trains_at_every_third_step(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            if self.num_timesteps % 3 == 0:
                super().train(gradient_steps, batch_size)

    return Own


def averages_its_weights(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            before = [parameter.detach().clone() for parameter in self.policy.parameters()]
            super().train(gradient_steps, batch_size)
            polyak_update(before, self.policy.parameters(), 0.5)

    return Own


def shrinks_its_weights(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            super().train(gradient_steps, batch_size)
            with th.no_grad():
                for parameter in self.policy.parameters():
                    parameter.mul_(0.999)

    return Own


def logs_what_it_likes(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            super().train(gradient_steps, batch_size)
            self.logger.record("train/own", self._n_updates)

    return Own


def trains_on_the_calls_of_another_method(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            for _ in range(gradient_steps):
                self.one_step(batch_size)

        def one_step(self, batch_size: int) -> None:
            super().train(1, batch_size)

    return Own


def changes_a_hyperparameter_as_it_trains(base: Any) -> Any:
    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            self.gamma = 0.9 if self._n_updates % 2 else 0.8
            super().train(gradient_steps, batch_size)

    return Own


def regresses_rewards(base: Any) -> Any:
    """A whole loop of its own, which draws from the buffer alone."""

    class Own(base):
        def train(self, gradient_steps: int, batch_size: int = 8) -> None:
            self.policy.set_training_mode(True)
            for _ in range(gradient_steps):
                batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
                parameters = [each for group in self.optimizer().param_groups for each in group["params"]]
                loss = (sum(each.sum() for each in parameters) - batch.rewards.mean()) ** 2
                self.optimizer().zero_grad()
                loss.backward()
                self.optimizer().step()
            self._n_updates += gradient_steps
            self.logger.record("train/n_updates", self._n_updates)

        def optimizer(self) -> th.optim.Optimizer:
            return self.policy.optimizer if hasattr(self.policy, "optimizer") else self.critic.optimizer

    return Own


# ---- hooks of SB3


def sets_the_learning_rate(base: Any) -> Any:
    class Own(base):
        def _update_learning_rate(self, optimizers: Any) -> None:
            for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 / (1 + self._n_updates)

    return Own


def clips_in_the_hook_of_the_learning_rate(base: Any) -> Any:
    """What stock gives: a single optimizer for DQN, a list for the others."""

    class Own(base):
        def _update_learning_rate(self, optimizers: Any) -> None:
            assert isinstance(optimizers, list) != issubclass(base, DQN)
            super()._update_learning_rate(optimizers)

    return Own


def counts_steps(base: Any) -> Any:
    class Own(base):
        n_seen = 0

        def _on_step(self) -> None:
            super()._on_step()
            self.n_seen += self.n_envs

    return Own


def acts_at_random_now_and_then(base: Any) -> Any:
    class Own(base):
        def _sample_action(self, learning_starts: int, *args: Any, **kwargs: Any) -> Any:
            starts = 10**6 if self.num_timesteps % 4 == 0 else learning_starts
            return super()._sample_action(starts, *args, **kwargs)

    return Own


def scales_rewards_as_it_stores(base: Any) -> Any:
    class Own(base):
        def _store_transition(
            self, replay_buffer: Any, action: Any, new_obs: Any, reward: Any, dones: Any, infos: Any
        ) -> None:
            super()._store_transition(replay_buffer, action, new_obs, 0.1 * reward, dones, infos)

    return Own


def has_a_progress_of_its_own(base: Any) -> Any:
    class Own(base):
        def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
            super()._update_current_progress_remaining(num_timesteps, 2 * total_timesteps)

    return Own


def collects_in_its_own_way(base: Any) -> Any:
    class Own(base):
        def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["learning_starts"] = kwargs["learning_starts"] + 5
            return super().collect_rollouts(*args, **kwargs)

    return Own


def learns_in_two_halves(base: Any) -> Any:
    class Own(base):
        def learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
            super().learn(total_timesteps // 2, *args, **kwargs)
            return super().learn(total_timesteps - total_timesteps // 2, *args, **{**kwargs, "reset_num_timesteps": False})

    return Own


def sets_a_seed_of_its_own(base: Any) -> Any:
    class Own(base):
        def set_random_seed(self, seed: int | None = None) -> None:
            super().set_random_seed(None if seed is None else seed + 1)

    return Own


def predicts_without_noise(base: Any) -> Any:
    class Own(base):
        def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False) -> Any:
            return super().predict(observation, state, episode_start, deterministic=True)

    return Own


CLASSES: list[Callable[[Any], Any]] = [
    adds_an_argument,
    sets_its_argument_first,
    names_few_arguments,
    has_other_defaults,
    sets_the_model_up_itself,
    takes_arguments_from_a_dictionary,
    has_an_argument_named_like_a_setting,
    names_the_buffer,
    adds_settings_of_the_buffer,
    has_a_parent_on_the_left,
    says_how_it_is_copied,
    keeps_a_network_of_its_own,
    counts_updates,
    trains_twice,
    trains_with_larger_batches,
    trains_at_every_third_step,
    averages_its_weights,
    shrinks_its_weights,
    logs_what_it_likes,
    trains_on_the_calls_of_another_method,
    changes_a_hyperparameter_as_it_trains,
    regresses_rewards,
    sets_the_learning_rate,
    clips_in_the_hook_of_the_learning_rate,
    counts_steps,
    acts_at_random_now_and_then,
    scales_rewards_as_it_stores,
    has_a_progress_of_its_own,
    collects_in_its_own_way,
    learns_in_two_halves,
    sets_a_seed_of_its_own,
    predicts_without_noise,
]


# Algorithm with which a row is tried quickly, in turn. A row takes twice the time of DQN with TD3, and three times with SAC.
QUICK = (DQN, DQN, SAC, DQN, DQN, TD3)


def with_slow_rest(rows: Any) -> list[Any]:
    """Take each row with one algorithm quickly, and with the others in slow tests."""
    pairs = []
    for i, row in enumerate(rows):
        for algorithm in (DQN, SAC, TD3):
            name = f"{getattr(row, '__name__', row)}-{algorithm.__name__}"
            is_quick = algorithm is QUICK[i % len(QUICK)]
            pairs.append(pytest.param(row, algorithm, id=name, marks=[] if is_quick else pytest.mark.slow))
    return pairs


def own_attributes(model: Any) -> dict[str, Any]:
    names = ("bonus", "wait", "own", "alpha", "unique", "label", "n_trained", "n_seen", "gamma", "n_steps", "learning_starts")
    return {name: getattr(model, name, None) for name in names}


@pytest.mark.parametrize("situation, stock", with_slow_rest(CLASSES))
def test_a_class_of_the_user_lives_as_with_the_stock_class(situation, stock, tmp_path):
    found = []
    for number, base in enumerate((stock, OURS[stock])):
        (tmp_path / str(number)).mkdir()
        model = whole_life(situation(base), tmp_path / str(number))
        found.append((learned(model), own_attributes(model)))
    assert found[0][0]["n_updates"] > 0
    assert not differences(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_a_class_of_the_user_may_have_n_step_returns_by_default(tmp_path):
    """Not compared with the stock class, whose windows cross from loaded steps to new ones."""

    class Own(OURS[DQN]):  # type: ignore[misc]
        def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.9, **kwargs: Any):
            super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)

    loaded = whole_life(Own, tmp_path)
    assert (loaded.n_steps, loaded.replay_buffer.n_steps, loaded.replay_buffer.gamma) == (3, 3, 0.9)
    assert Own.load(tmp_path / "model", n_steps=5).replay_buffer.n_steps == 5


# ---- a buffer class of its own


class Clipped:
    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        super().add(obs, next_obs, action, np.clip(reward, -1, 1), done, infos)  # type: ignore[misc]


class Counted:
    n_added = 0

    def add(self, *args: Any) -> None:
        super().add(*args)  # type: ignore[misc]
        self.n_added += 1


class WithArgument:
    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.scale = scale

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        super().add(obs, next_obs, action, reward * self.scale, done, infos)  # type: ignore[misc]


class StockSignature:
    """The constructor of SB3, written out."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        scale: float = 1.0,
        **settings: Any,
    ):
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **settings,
        )
        self.scale = scale


class ScaledBatch:
    def sample(self, batch_size: int, env: Any = None) -> Any:
        batch = super().sample(batch_size, env=env)  # type: ignore[misc]
        return batch._replace(rewards=0.1 * batch.rewards)


class StockBatch:
    def sample(self, batch_size: int, env: Any = None) -> Any:
        return ReplayBufferSamples(*super().sample(batch_size, env=env)[:5])  # type: ignore[misc]


class StockBatchWithDiscounts:
    def sample(self, batch_size: int, env: Any = None) -> Any:
        batch = super().sample(batch_size, env=env)  # type: ignore[misc]
        return ReplayBufferSamples(*batch[:5], discounts=th.full_like(batch.rewards, 0.5))


class TwoDraws:
    """Half of the batch once more: two batches joined."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        one, other = (super(TwoDraws, self).sample(batch_size // 2, env=env) for _ in range(2))  # type: ignore[misc]
        return ReplayBufferSamples(*(th.cat(pair) for pair in zip(one[:5], other[:5], strict=True)))


class NoisyBatch:
    def sample(self, batch_size: int, env: Any = None) -> Any:
        batch = super().sample(batch_size, env)  # type: ignore[misc]
        noise = 0.01 * th.randn_like(batch.observations)
        return batch._replace(observations=batch.observations + noise)


class LargerBatch:
    def sample(self, batch_size: int, env: Any = None) -> Any:
        return super().sample(batch_size + 4, env)  # type: ignore[misc]


class ShiftedRewards:
    def _normalize_reward(self, reward: Any, env: Any = None) -> Any:
        return super()._normalize_reward(reward, env) + np.float32(0.5)  # type: ignore[misc]


class InDouble:
    def to_torch(self, array: Any, copy: bool = True) -> Any:
        return super().to_torch(array, copy).double().float()  # type: ignore[misc]


BUFFERS: list[tuple[type, dict[str, Any]]] = [
    (Clipped, {}),
    (Counted, {}),
    (WithArgument, dict(scale=0.1)),
    (StockSignature, dict(scale=3.0)),
    (ScaledBatch, {}),
    (StockBatch, {}),
    (StockBatchWithDiscounts, {}),
    (TwoDraws, {}),
    (NoisyBatch, {}),
    (LargerBatch, {}),
    (ShiftedRewards, {}),
    (InDouble, {}),
]


def buffer_class(mixin: type, base: type) -> type:
    """Make an importable class, because it is pickled."""
    name = f"{mixin.__name__}{base.__name__}"
    made = type(name, (mixin, base), {"__module__": __name__})
    return globals().setdefault(name, made)


@pytest.mark.parametrize(
    "situation, stock",
    [
        pytest.param(
            row,
            algorithm,
            id=f"{row[0].__name__}-{algorithm.__name__}",
            marks=[] if algorithm is QUICK[i % len(QUICK)] else pytest.mark.slow,
        )
        for i, row in enumerate(BUFFERS)
        for algorithm in (DQN, SAC, TD3)
    ],
)
@pytest.mark.filterwarnings("ignore:10 batches were drawn by priority")
def test_a_buffer_class_of_the_user_lives_as_with_the_stock_class(situation, stock, tmp_path):
    mixin, arguments = situation
    found = []
    for algorithm, base in ((stock, ReplayBuffer), (OURS[stock], PrioritizedReplayBuffer)):
        folder = tmp_path / algorithm.__name__
        folder.mkdir()
        model = whole_life(
            algorithm, folder, replay_buffer_class=buffer_class(mixin, base), replay_buffer_kwargs=dict(arguments), gamma=0.9
        )
        assert isinstance(model.replay_buffer, mixin)
        found.append(
            (learned(model), getattr(model.replay_buffer, "scale", None), getattr(model.replay_buffer, "n_added", None))
        )
    assert not differences(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


class StrictSignature:
    """Without `**settings`: n-step returns cannot reach it, and nothing else needs to."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        scale: float = 1.0,
    ):
        super().__init__(buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage)
        self.scale = scale


def test_a_buffer_class_with_the_arguments_of_sb3_alone_gets_no_others(tmp_path):
    cls = OURS[DQN]
    own = buffer_class(StrictSignature, PrioritizedReplayBuffer)
    arguments: dict[str, Any] = dict(
        replay_buffer_class=own, replay_buffer_kwargs=dict(scale=2.0), gamma=0.9, learning_starts=5
    )
    model = cls("MlpPolicy", "CartPole-v1", **arguments).learn(20)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    loaded = cls.load(tmp_path / "model", env=model.get_env())
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert (type(loaded.replay_buffer), loaded.replay_buffer.scale, loaded.gamma) == (own, 2.0, 0.9)
    with pytest.raises(TypeError, match="n_steps"):
        cls("MlpPolicy", "CartPole-v1", n_steps=3, **arguments)


class OwnAlpha:
    def __init__(self, *args: Any, alpha: float = 0.9, **kwargs: Any):
        super().__init__(*args, alpha=alpha, **kwargs)


class FixedAlpha:
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, alpha=0.9, **kwargs)


class DefaultAlpha:
    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("alpha", 0.9)
        super().__init__(*args, **kwargs)


class OwnBeta:
    def __init__(self, *args: Any, beta: float = 0.5, **kwargs: Any):
        super().__init__(*args, beta=beta, **kwargs)


@pytest.mark.parametrize("mixin", [OwnAlpha, FixedAlpha, DefaultAlpha, OwnBeta, StrictSignature])
def test_a_buffer_class_that_chooses_settings_loads_every_kind_of_file(mixin, tmp_path):
    """Its constructor is not given settings that it chooses itself, or does not take."""
    own = buffer_class(mixin, PrioritizedReplayBuffer)
    arguments: dict[str, Any] = dict(learning_starts=100, buffer_size=60)
    model = OURS[DQN]("MlpPolicy", "CartPole-v1", replay_buffer_class=own, **arguments).learn(20)
    buffer = model.replay_buffer
    buffer.update_priorities(np.arange(20), np.arange(1.0, 21.0))
    settings = buffer.settings
    for name in ("x.buffer", "x.pkl"):
        model.save_replay_buffer(tmp_path / name)
        model.load_replay_buffer(tmp_path / name)
        loaded = model.replay_buffer
        assert type(loaded) is own and loaded.scheme.equals(buffer.scheme)
        assert (loaded.settings.beta_start, loaded.settings.beta_end) == (settings.beta_start, settings.beta_end)
        np.testing.assert_array_equal(loaded.masses, buffer.masses)
    OURS[DQN]("MlpPolicy", "CartPole-v1", **arguments).learn(20).save_replay_buffer(tmp_path / "base.pkl")
    model.load_replay_buffer(tmp_path / "base.pkl")
    assert type(model.replay_buffer) is own and model.replay_buffer.size() == 20
    changed = own.from_replay_buffer(model.replay_buffer, n_steps=2)
    assert changed.n_steps == 2 and changed.scheme.equals(model.replay_buffer.scheme)


def test_a_batch_without_ids_leaves_all_priorities_equal():
    """Also where the actor draws observations of its own, and while a reminder says that nobody updates priorities."""
    cls = OURS[SAC]
    own = buffer_class(TwoDraws, PrioritizedReplayBuffer)
    model = cls(
        "MlpPolicy",
        "Pendulum-v1",
        learning_starts=10,
        batch_size=8,
        replay_buffer_class=own,
        buffer_size=100,
        policy_kwargs=dict(net_arch=[4]),
        replay_buffer_kwargs=dict(actor_batch="uniform"),
    )
    with pytest.warns(UserWarning, match=r"sample\(\) of your own that returns neither weights nor indices"):
        model.learn(40)
    assert set(np.unique(model.replay_buffer.masses)) == {0.0, 1.0}
    assert model.logger.name_to_value["per/mean_weight"] == 1.0


# ---- a policy of its own


class OwnExtractor(BaseFeaturesExtractor):
    def __init__(self, observation_space: Any, width: int = 5):
        super().__init__(observation_space, width)
        self.network = th.nn.Sequential(
            th.nn.Flatten(), th.nn.Linear(int(np.prod(observation_space.shape)), width), th.nn.Tanh()
        )

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.network(observations)


class Halved(FlattenExtractor):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return 0.5 * super().forward(observations)


POLICIES = {DQN: DQNPolicy, SAC: SACPolicy, TD3: TD3Policy}


def policy_class(stock: Any, **methods: Any) -> type:
    made = type("OwnPolicy", (POLICIES[stock],), {"__module__": __name__, **methods})
    return globals().setdefault(f"OwnPolicy{stock.__name__}{'_'.join(methods)}", made)


def counting_predict(self: Any, *args: Any, **kwargs: Any) -> Any:
    self.n_predicted = getattr(self, "n_predicted", 0) + 1
    return type(self).__mro__[1].predict(self, *args, **kwargs)


def scaled_build(self: Any, lr_schedule: Any) -> None:
    type(self).__mro__[1]._build(self, lr_schedule)
    with th.no_grad():
        for parameter in self.parameters():
            parameter.mul_(0.5)


def quiet_training_mode(self: Any, mode: bool) -> None:
    type(self).__mro__[1].set_training_mode(self, False)


POLICY_ROWS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "a class": lambda stock: dict(policy=policy_class(stock)),
    "predicts": lambda stock: dict(policy=policy_class(stock, predict=counting_predict)),
    "builds": lambda stock: dict(policy=policy_class(stock, _build=scaled_build)),
    "modes": lambda stock: dict(policy=policy_class(stock, set_training_mode=quiet_training_mode)),
    "extractor": lambda stock: dict(policy_kwargs=dict(net_arch=[8], features_extractor_class=OwnExtractor)),
    "extractor with arguments": lambda stock: dict(
        policy_kwargs=dict(net_arch=[8], features_extractor_class=OwnExtractor, features_extractor_kwargs=dict(width=3))
    ),
    "halved": lambda stock: dict(policy_kwargs=dict(net_arch=[8], features_extractor_class=Halved)),
    "activation": lambda stock: dict(policy_kwargs=dict(net_arch=[8, 4], activation_fn=th.nn.Tanh)),
    "optimizer": lambda stock: dict(policy_kwargs=dict(net_arch=[8], optimizer_class=th.optim.RMSprop)),
    "optimizer with arguments": lambda stock: dict(
        policy_kwargs=dict(
            net_arch=[8], optimizer_class=th.optim.AdamW, optimizer_kwargs=dict(weight_decay=0.1, betas=(0.8, 0.9))
        )
    ),
    "no hidden layer": lambda stock: dict(policy_kwargs=dict(net_arch=[])),
}


@pytest.mark.parametrize("row, stock", with_slow_rest(POLICY_ROWS))
def test_a_policy_of_the_user_lives_as_with_the_stock_class(row, stock, tmp_path):
    found = []
    for algorithm in (stock, OURS[stock]):
        folder = tmp_path / algorithm.__name__
        folder.mkdir()
        model = whole_life(algorithm, folder, **POLICY_ROWS[row](stock))
        found.append((learned(model), type(model.policy).__name__, getattr(model.policy, "n_predicted", None)))
    assert not differences(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
