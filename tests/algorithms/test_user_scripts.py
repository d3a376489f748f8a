"""What a script changes on an algorithm counts as with the stock class, and so does an optimizer of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch as th
from sb3_contrib import TQC, CrossQ
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule

from tests.helpers.stock_runs import OURS, differences, learned, made

# ---- changes between two calls of learn


def takes_the_entropy_optimizer_away(model: Any) -> None:
    model.ent_coef_optimizer = None
    model.ent_coef_tensor = th.tensor(0.01)


def removes_the_learned_coefficient(model: Any) -> None:
    model.log_ent_coef = None
    model.ent_coef_tensor = th.tensor(0.02)


def sets_the_learned_coefficient(model: Any) -> None:
    model.log_ent_coef.data.fill_(-3.0)


def learns_the_coefficient_with_another_optimizer(model: Any) -> None:
    model.ent_coef_optimizer = th.optim.SGD([model.log_ent_coef], lr=0.1)


def changes_the_fixed_coefficient(model: Any) -> None:
    model.ent_coef_optimizer = None
    for value in (0.5, 0.3):
        model.ent_coef_tensor = th.tensor(value)


def freezes_crossqs_coefficient(model: Any) -> None:
    model.ent_coef_optimizer = None


def removes_crossqs_coefficient(model: Any) -> None:
    model.log_ent_coef = model.ent_coef_optimizer = None
    model.ent_coef_tensor = th.tensor(0.02)


def attributes(**changes: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, value in changes.items():
            assert hasattr(model, name), name
            setattr(model, name, value)

    return change


def new_learning_rate(model: Any) -> None:
    model.learning_rate = 1e-2
    model.lr_schedule = FloatSchedule(1e-2)


def new_schedule(model: Any) -> None:
    model.learning_rate = lambda remaining: 1e-2 * remaining
    model._setup_lr_schedule()


def another_optimizer_of_the_critics(model: Any) -> None:
    network = model.policy if isinstance(model, DQN) else model.critic
    network.optimizer = th.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)


def reset_of_the_last_layer(model: Any) -> None:
    th.manual_seed(3)
    network = model.q_net.q_net if isinstance(model, DQN) else model.critic.qf0
    network[-1].reset_parameters()


def parameters_of_another_model(model: Any) -> None:
    # `made` would seed the generators anew, in the same way for both.
    other = made(type(model), seed=5)
    model.set_parameters(other.get_parameters())


def new_environments(model: Any) -> None:
    env = model.get_env()
    model.set_env(env)


def freezes_a_layer(model: Any) -> None:
    network = model.q_net.q_net if isinstance(model, DQN) else model.critic.qf0
    network[0].weight.requires_grad_(False)


CHANGES: list[tuple[Any, str, Callable[[Any], None]]] = [
    (SAC, "entropy optimizer away", takes_the_entropy_optimizer_away),
    (SAC, "coefficient away", removes_the_learned_coefficient),
    (SAC, "coefficient set", sets_the_learned_coefficient),
    (SAC, "another optimizer of the coefficient", learns_the_coefficient_with_another_optimizer),
    (SAC, "fixed coefficient twice", changes_the_fixed_coefficient),
    (TQC, "entropy optimizer away", takes_the_entropy_optimizer_away),
    (TQC, "coefficient away", removes_the_learned_coefficient),
    (CrossQ, "coefficient frozen", freezes_crossqs_coefficient),
    (CrossQ, "coefficient away", removes_crossqs_coefficient),
    (SAC, "target entropy", attributes(target_entropy=-3.0)),
    (SAC, "gamma and tau", attributes(gamma=0.5, tau=0.5)),
    (SAC, "target interval", attributes(target_update_interval=3)),
    (SAC, "gradient steps", attributes(gradient_steps=3, batch_size=5)),
    (SAC, "train frequency", attributes(train_freq=TrainFreq(4, TrainFrequencyUnit.STEP), gradient_steps=-1)),
    (SAC, "learning rate", new_learning_rate),
    (SAC, "optimizer of the critics", another_optimizer_of_the_critics),
    (SAC, "last layer", reset_of_the_last_layer),
    (SAC, "parameters of another model", parameters_of_another_model),
    (SAC, "frozen layer", freezes_a_layer),
    (TD3, "delay", attributes(policy_delay=3)),
    (TD3, "target noise", attributes(target_policy_noise=0.5, target_noise_clip=0.1)),
    (TD3, "action noise", attributes(action_noise=NormalActionNoise(th.zeros(1).numpy(), 0.2 * th.ones(1).numpy()))),
    (TD3, "schedule", new_schedule),
    (DQN, "clipping", attributes(max_grad_norm=0.01)),
    (DQN, "target interval", attributes(target_update_interval=7, tau=0.3)),
    (DQN, "exploration", attributes(exploration_schedule=ConstantSchedule(0.9))),
    (DQN, "learning starts", attributes(learning_starts=60)),
    (DQN, "optimizer", another_optimizer_of_the_critics),
    (DQN, "new environments", new_environments),
    (DQN, "last layer", reset_of_the_last_layer),
]

QUICK = ("entropy optimizer away", "coefficient frozen", "gradient steps", "target noise", "optimizer", "clipping")


@pytest.mark.parametrize(
    "stock, name, change",
    [
        pytest.param(*row, id=f"{row[0].__name__}-{row[1]}", marks=[] if row[1] in QUICK else pytest.mark.slow)
        for row in CHANGES
    ],
)
def test_a_change_between_two_calls_of_learn_counts_as_with_the_stock_class(stock, name, change):
    found = []
    for cls in (stock, OURS[stock]):
        model = made(cls).learn(50)
        before = model._n_updates
        change(model)
        th.manual_seed(1)
        model.learn(30, reset_num_timesteps=False)
        assert model._n_updates > before
        found.append(
            (
                learned(model),
                {key: model.logger.name_to_value[key] for key in ("train/ent_coef",) if hasattr(model, "ent_coef")},
            )
        )
    assert not differences(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


# ---- optimizers


class Accumulating(th.optim.Adam):
    """Adds up the gradients of four updates."""

    n_calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.n_calls % 4 == 0:
            super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.n_calls += 1
        if self.n_calls % 4 == 0:
            super().step(closure)


class NeverZero(th.optim.SGD):
    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)


class KeepsZeros(th.optim.Adam):
    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=False)


class CountsZeros(th.optim.Adam):
    n_zeros = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        type(self).n_zeros += 1
        super().zero_grad(set_to_none)


class Noisy(th.optim.Adam):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(0.01 * th.randn_like(parameter.grad))
        super().step(closure)


class Clipping(th.optim.Adam):
    def step(self, closure: Any = None) -> None:
        th.nn.utils.clip_grad_value_(self.param_groups[0]["params"], 0.01)
        super().step(closure)


class Lookahead(th.optim.SGD):
    """Goes back half of the way at every third step."""

    n_calls = 0

    def step(self, closure: Any = None) -> None:
        before = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]
        super().step(closure)
        self.n_calls += 1
        if self.n_calls % 3 == 0:
            with th.no_grad():
                for parameter, old in zip(self.param_groups[0]["params"], before, strict=True):
                    parameter.lerp_(old, 0.5)


class StepsTwice(th.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        super().step(closure)


class Groups(th.optim.Adam):
    """A learning rate of its own for biases; SB3 sets that of all groups."""

    def __init__(self, parameters: Any, **kwargs: Any):
        parameters = list(parameters)
        biases = [each for each in parameters if each.dim() == 1]
        others = [each for each in parameters if each.dim() != 1]
        super().__init__([dict(params=others), dict(params=biases, weight_decay=0.1)], **kwargs)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "accumulating": (Accumulating, {}),
    "never zero": (NeverZero, dict(momentum=0.5)),
    "keeps zeros": (KeepsZeros, {}),
    "counts zeros": (CountsZeros, {}),
    "noisy": (Noisy, {}),
    "clipping": (Clipping, {}),
    "lookahead": (Lookahead, {}),
    "steps twice": (StepsTwice, {}),
    "groups": (Groups, {}),
    "amsgrad": (th.optim.Adam, dict(amsgrad=True, eps=1e-5)),
    "maximize": (th.optim.SGD, dict(maximize=True, momentum=0.9, nesterov=True)),
    "foreach": (th.optim.Adam, dict(foreach=True)),
    "Adagrad": (th.optim.Adagrad, {}),
    "NAdam": (th.optim.NAdam, {}),
}


@pytest.mark.parametrize("stock", [DQN, SAC, TD3])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("accumulating", "groups") else pytest.mark.slow) for name in OPTIMIZERS]
)
def test_an_optimizer_of_the_user_is_called_as_by_the_stock_class(stock, name):
    optimizer_class, arguments = OPTIMIZERS[name]
    found = []
    for cls in (stock, OURS[stock]):
        policy_kwargs = dict(net_arch=[8], optimizer_class=optimizer_class, optimizer_kwargs=arguments)
        CountsZeros.n_zeros = 0
        model = made(cls, policy_kwargs=policy_kwargs, learning_rate=1e-4).learn(60)
        found.append((learned(model), CountsZeros.n_zeros))
    assert not differences(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_a_method_that_is_set_on_one_optimizer_is_called():
    """Gradients add up in all networks, also those that the actor's loss gives the critics, as with the stock class."""
    found = []
    for cls in (SAC, OURS[SAC]):
        model = made(cls)
        for optimizer in (model.actor.optimizer, model.critic.optimizer):
            optimizer.zero_grad = lambda set_to_none=True: None
        found.append(learned(model.learn(40)))
    assert not differences(*found)


def test_hooks_of_an_optimizer_are_called_as_by_the_stock_class():
    found = []
    for cls in (TD3, OURS[TD3]):
        model, calls = made(cls), []
        for optimizer in (model.actor.optimizer, model.critic.optimizer):
            optimizer.register_step_pre_hook(lambda *_, calls=calls: calls.append("before"))
            optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("after"))
        model.learn(40)
        found.append(calls)
    assert found[0] == found[1] and len(found[0]) > 40
