"""Frozen networks stay as they are, and training goes on. Only an algorithm's own optimizers follow its schedule."""

import itertools
from typing import Any

import pytest
import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.envs import FakeImageEnv

from sb3_per import PERDQN, PERSAC, PERTD3, PERTQC, PERCrossQ, PERRecurrentDQN, PERRecurrentSAC
from tests.helpers.algorithms import optimizers_of
from tests.helpers.models import RECURRENT, STOCK

SMALL: dict[str, Any] = dict(buffer_size=200, learning_starts=10, batch_size=8, train_freq=1, device="cpu", seed=0)
WITHOUT_ACTOR = [cls for cls in STOCK if not cls.has_actor]
WITH_ACTOR = [cls for cls in STOCK if cls.has_actor]
UNIFORM: dict[str, Any] = dict(scheme="uniform", stratified=False)


def make(cls: Any, **kwargs: Any) -> Any:
    """Make a small model."""
    env = "CartPole-v1" if is_without_actor(cls) else "Pendulum-v1"
    if issubclass(cls, RECURRENT):
        policy_kwargs: dict[str, Any] = dict(lstm_hidden_size=4, net_arch=[4])
        windows = dict(sequence_length=4, burn_in=2)
        return cls("MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **{**SMALL, **windows, **kwargs})
    return cls("MlpPolicy", env, policy_kwargs=dict(net_arch=[8]), **{**SMALL, **kwargs})


def is_without_actor(cls: Any) -> bool:
    return issubclass(cls, (DQN, QRDQN))


def parts_of(model: Any) -> dict[str, th.nn.Module]:
    """Networks that learn."""
    if hasattr(model, "actor"):
        return {"actor": model.actor, "critic": model.critic}
    return {"critic": model.policy}


def named(model: Any, frozen: str) -> th.nn.Module:
    return model.policy if frozen == "both" else parts_of(model)[frozen]


def freeze(network: th.nn.Module) -> None:
    for parameter in network.parameters():
        parameter.requires_grad = False


def state_of(network: th.nn.Module) -> dict[str, th.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def differing(one: dict[str, th.Tensor], other: dict[str, th.Tensor]) -> set[str]:
    return {name for name, value in one.items() if not th.equal(value, other[name])}


@pytest.mark.parametrize(
    "cls, frozen",
    [
        *zip((*WITH_ACTOR, PERRecurrentSAC), itertools.cycle(("actor", "critic", "both")), strict=False),
        *((cls, "critic") for cls in (*WITHOUT_ACTOR, PERRecurrentDQN)),
    ],
)
def test_frozen_networks_stay_and_the_others_learn(cls, frozen):
    """A script trains first the critic, then the actor. The gradients of the steps before must not move what is frozen."""
    model = make(cls).learn(20)
    freeze(named(model, frozen))
    before = {name: state_of(network) for name, network in parts_of(model).items()}
    n_updates = model._n_updates
    model.learn(10, reset_num_timesteps=False)
    assert model._n_updates > n_updates
    for name, network in parts_of(model).items():
        is_frozen = frozen in (name, "both")
        assert bool(differing(before[name], state_of(network))) != is_frozen, name
    assert (model.replay_buffer.masses != 1.0).any()


@pytest.mark.parametrize("cls, frozen", [(PERTD3, "actor"), (PERSAC, "first layers"), (PERDQN, "first layers")])
def test_what_is_not_frozen_learns_as_in_the_stock_class(cls, frozen):
    """Stock algorithms run if the actor is frozen, or parts of all networks."""
    found = []
    for each, buffer_kwargs in ((cls, UNIFORM), (STOCK[cls], None)):
        model = make(each, replay_buffer_kwargs=buffer_kwargs).learn(16)
        if frozen == "actor":
            freeze(model.actor)
        else:
            for network in model.policy.modules():
                if isinstance(network, th.nn.Sequential) and len(network):
                    freeze(network[0])
        found.append(state_of(model.learn(16, reset_num_timesteps=False).policy))
    assert not differing(*found)


@pytest.mark.parametrize(
    "cls, networks",
    [
        (PERSAC, dict(share_features_extractor=False)),
        (PERTD3, dict(share_features_extractor=True)),
    ],
)
def test_a_frozen_features_extractor_is_as_in_the_stock_class(cls, networks):
    kwargs: dict[str, Any] = dict(buffer_size=40, learning_starts=6, batch_size=4, train_freq=1, device="cpu", seed=0)
    found = []
    for each, buffer_kwargs in ((cls, UNIFORM), (STOCK[cls], None)):
        env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=False)
        env.observation_space.seed(0)
        model = each(
            "CnnPolicy", env, policy_kwargs=dict(net_arch=[4], **networks), replay_buffer_kwargs=buffer_kwargs, **kwargs
        )
        for network in model.policy.modules():
            if getattr(network, "features_extractor", None) is not None:
                freeze(network.features_extractor)
        found.append(state_of(model.learn(12).policy))
    assert not differing(*found)


def test_a_fixed_or_frozen_entropy_coefficient_stays():
    assert make(PERCrossQ, ent_coef=0.1).learn(16).ent_coef_tensor == 0.1
    for cls in (PERCrossQ, PERRecurrentSAC):
        model = make(cls)
        model.log_ent_coef.requires_grad = False
        assert model.learn(16).log_ent_coef == 0.0


def test_a_gradient_goes_only_to_the_parameters_of_the_optimizer():
    """The actor's loss leaves none in the critics."""
    model = make(PERTD3, policy_delay=1).learn(12)
    freeze(model.critic)
    model.critic.optimizer.zero_grad()
    model.train(1, 8)
    assert all(parameter.grad is None for parameter in model.critic.parameters())
    assert all(parameter.grad is not None for parameter in model.actor.parameters())


# ---- the learning rate


class WithOwnOptimizer:
    """What a user adds to an algorithm: a network whose optimizer is saved with the model."""

    def _setup_model(self: Any) -> None:
        super()._setup_model()  # type: ignore[misc]
        self.own_network = th.nn.Linear(2, 1)
        self.own_optimizer = th.optim.SGD(self.own_network.parameters(), lr=0.5)

    def _excluded_save_params(self: Any) -> list[str]:
        return [*super()._excluded_save_params(), "own_network", "own_optimizer"]  # type: ignore[misc]

    def _get_torch_save_params(self: Any) -> Any:
        state_dicts, tensors = super()._get_torch_save_params()  # type: ignore[misc]
        return [*state_dicts, "own_network", "own_optimizer"], tensors


def test_only_the_optimizers_of_the_algorithm_follow_its_learning_rate():
    for cls in (PERDQN, PERTD3, PERTQC, *RECURRENT):
        own: Any = type("Own", (WithOwnOptimizer, cls), {})
        model = make(own, learning_rate=lambda progress: 1e-3 * (2.0 - progress)).learn(14)
        assert model.own_optimizer.param_groups[0]["lr"] == 0.5
        rates = {group["lr"] for optimizer in optimizers_of(model) for group in optimizer.param_groups}
        assert rates == {2e-3}
        if hasattr(model, "actor"):
            expected = [model.actor.optimizer, model.critic.optimizer]
            expected += [model.ent_coef_optimizer] if getattr(model, "ent_coef_optimizer", None) is not None else []
            assert model._optimizers() == expected
        else:
            assert model._optimizers() is model.policy.optimizer  # as DQN passes it to SB3
