"""Recurrent Soft Actor-Critic with prioritized replay of sequences."""

from typing import Any, ClassVar

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule

from sb3_per.algorithms.arguments import with_defaults
from sb3_per.algorithms.recurrent.mixin import RecurrentMixin
from sb3_per.algorithms.recurrent.sac_policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from sb3_per.algorithms.sac import PERSAC
from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.utils.checks import AT_LEAST_0, Allowed, check_argument


class PERRecurrentSAC(RecurrentMixin, PERSAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) with LSTMs and prioritized replay of sequences.

    Use it for continuous actions, where one observation does not show the whole state.

    A batch holds windows of ``sequence_length`` steps, as in R2D2 (Kapturowski et al. 2019). The ``burn_in`` steps before a
    window warm up the LSTMs of actor, critics and target critics, from the states that acting had there. Actor and critics
    have separate LSTMs, and observations also bypass the LSTMs (Ni et al. 2022, arXiv 2110.05038).

    The critics' loss is weighted; the losses of the actor and of the entropy coefficient are not. All are means over the steps
    in the windows. ``replay_buffer_kwargs`` configures the :class:`~sb3_per.buffers.PrioritizedSequenceReplayBuffer`.
    ``policy_kwargs`` configures the LSTMs: ``lstm_hidden_size``, ``n_lstm_layers``, ``lstm_kwargs``. gSDE works; its noise
    depends on the output of the LSTM.

    ::

        model = PERRecurrentSAC("MlpLstmPolicy", env, sequence_length=20, burn_in=10, policy_kwargs=dict(lstm_hidden_size=128))
        model.learn(100_000)

    :param args: arguments of ``stable_baselines3.SAC``. The policy is ``"MlpLstmPolicy"``, ``"CnnLstmPolicy"``,
        ``"MultiInputLstmPolicy"`` or a class. The defaults are ``batch_size=32`` windows and ``train_freq=4`` steps, with
        which each step is learned 160 times (256 times in SAC)
    :param sequence_length: number of steps of a window that are learned
    :param burn_in: number of steps before a window that warm up the LSTMs
    :param lstm_learning_rate: learning rate of the LSTMs, a number or a schedule; ``None``: ``learning_rate``
    :param kwargs: keyword arguments of ``stable_baselines3.SAC``
    :raises ValueError: for a bad ``lstm_learning_rate``, or an argument that contradicts ``replay_buffer_kwargs``
    """

    policy_aliases: ClassVar[dict[str, Any]] = {p.__name__: p for p in (MlpLstmPolicy, CnnLstmPolicy, MultiInputLstmPolicy)}
    changed_defaults: ClassVar[dict[str, Any]] = dict(batch_size=32, train_freq=4)

    def __init__(
        self,
        *args: Any,
        sequence_length: int = 20,
        burn_in: int = 10,
        lstm_learning_rate: float | Schedule | None = None,
        **kwargs: Any,
    ):
        self.sequence_length = sequence_length
        self.burn_in = burn_in
        self.lstm_learning_rate = lstm_learning_rate
        super().__init__(**with_defaults(SAC, args, kwargs, self.changed_defaults))

    def _setup_model(self) -> None:
        rate = self.lstm_learning_rate  # `load` may have set it, too
        check_argument("lstm_learning_rate", rate, AT_LEAST_0, Allowed("a schedule", callable), or_none=True)
        super()._setup_model()

    def _update_learning_rate(self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> None:
        super()._update_learning_rate(optimizers)
        if self.lstm_learning_rate is not None:
            rate = FloatSchedule(self.lstm_learning_rate)(self._current_progress_remaining)
            for network in (self.actor, self.critic):
                network.optimizer.param_groups[1]["lr"] = rate

    def _actor_observations(self, batch: PrioritizedReplayBufferSamples) -> Any:
        # Only the actor learns from them, and the LSTM of the critics does not depend on its actions: `extract_features` of
        # `recurrent/networks.py` unrolls that LSTM without gradients.
        return super()._actor_observations(batch)._replace(without_gradient=self.critic)
