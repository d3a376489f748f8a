"""
What all prioritized algorithms share, with networks in PyTorch or in JAX: the buffer, learning, files and logs.

Methods of SB3 that are overridden here or in a subclass, in the order in which SB3 calls them:

- the constructor, or ``load``: ``_setup_model``, which assigns ``replay_buffer``, a property here
- ``learn``: first ``_setup_learn``, and then, again and again:

  1. ``collect_rollouts``. With actors, they collect. Otherwise for each step of all environments:

     - ``_sample_action`` and ``_store_transition``: recurrent agents only
     - ``_update_current_progress_remaining``: beta follows the progress

  2. ``train``: the loop of PyTorch or JAX. It calls ``_update_learning_rate``

- ``save``, which calls ``_excluded_save_params``; ``save_replay_buffer`` and ``load_replay_buffer``
"""

import functools
import inspect
import pathlib
import pickle
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm, SelfOffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, TrainFreq
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms import buffer_choice, checkpoints, pretraining
from sb3_per.algorithms.arguments import check_agreement, check_arguments, check_order, name_of_users_train, show_arguments
from sb3_per.algorithms.checkpoints import PathOrFile
from sb3_per.algorithms.collecting import collecting_env_in
from sb3_per.algorithms.loaded_buffer import adapted_to_model
from sb3_per.algorithms.metrics import MeanMetrics, demonstration_metrics
from sb3_per.algorithms.wrapper_order import require_normalized_last
from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.buffers.settings import SETTING_NAMES
from sb3_per.persistence.buffer_files import SUFFIX, SavedBuffer, is_buffer_path, located
from sb3_per.utils.parents import require_hooks


class PrioritizedAlgorithm(OffPolicyAlgorithm):
    """
    Prioritized replay for an off-policy algorithm, without its networks. Write it left of the stock algorithm; its subclasses
    :class:`~sb3_per.algorithms.torch_loop.PrioritizedOffPolicyMixin` and ``sb3_per.sbx.PrioritizedJaxMixin`` do the training.

    The constructor is the stock algorithm's. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, and a buffer class of SB3 is replaced by its prioritized counterpart. ``replay_buffer_kwargs``
    configures the buffer, see :class:`~sb3_per.buffers.PrioritizedReplayBuffer`; ``n_steps`` and ``gamma`` reach it too.

    :raises TypeError: for an unknown keyword, or ``replay_buffer_kwargs`` that are no dictionary, or if the stock algorithm
        stands left of this class
    :raises ValueError: for any other ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` or ``gamma`` that
        contradicts the one in ``replay_buffer_kwargs``. In a subclass whose constructor takes ``*args``, only keyword
        arguments are checked
    """

    #: Whether the critics' loss is one of scalar TD errors. LAP and PAL replace it, and are refused where there is none.
    has_scalar_td_loss: ClassVar[bool] = True

    #: Whether a network other than the critics chooses actions. Without one, ``actor_batch="uniform"`` is refused.
    has_actor: ClassVar[bool] = True

    #: Whether the actors of :mod:`sb3_per.distributed` can act with copies of the policy. If not, they are refused.
    can_act_in_copies: ClassVar[bool] = True

    #: Arguments of the stock constructor that have another default here, by name. The signature shows them, and the
    #: constructor applies them with :func:`~sb3_per.algorithms.arguments.with_defaults`.
    changed_defaults: ClassVar[dict[str, Any]] = {}

    # Whether the next step follows the newest one in the buffer. If not, `learn` ends the episodes in the buffer.
    _next_step_follows_buffer = False

    # ---- construction

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_hooks(cls)
        show_arguments(cls, cls.changed_defaults)

    # Type checkers must look past this class, at the constructor of the stock algorithm.
    if not TYPE_CHECKING:
        # Check arguments before any constructor runs: the stock one would refuse an unknown name without a hint. An
        # `__init__` here would stand between a user's class and the stock algorithm, and hide its arguments.
        def __new__(cls, *args, **kwargs):  # noqa: D102
            check_order(cls, PrioritizedAlgorithm)
            check_arguments(cls, kwargs)
            check_agreement(cls, {**inspect.signature(cls).bind_partial(*args).arguments, **kwargs})
            return super().__new__(cls)

    def _setup_model(self) -> None:
        buffer_choice.resolve_arguments(self)
        buffer_choice.adopt_given_buffer(self)
        with buffer_choice.complete_kwargs(self), warnings.catch_warnings():
            # SB3 warns that it ignores `n_steps` for a buffer class that it does not know. Ours has received it.
            warnings.filterwarnings("ignore", message=f"`n_steps={self.n_steps}` is ignored")
            super()._setup_model()
        buffer_choice.keep_absolute_folder(self)
        collecting_env = collecting_env_in(self.env)
        if collecting_env is not None:
            collecting_env.check_supported(self)

    # ---- the buffer

    @property
    def replay_buffer(self) -> PrioritizedReplayBuffer:
        """
        The prioritized buffer.

        A buffer of SB3 that is assigned becomes prioritized: exactly its classes ``ReplayBuffer``, ``DictReplayBuffer``,
        ``NStepReplayBuffer`` and ``HerReplayBuffer``. It gets the settings of the model and shares its arrays, but not its
        position. So add further transitions to ``model.replay_buffer``, not to the buffer that was assigned.

        :raises ValueError: for any other class, or a buffer of another shape. Nothing changes then
        :raises NotImplementedError: for a buffer that the algorithm cannot learn from. Nothing changes then
        """
        # Kept under the name of the property, because SB3's `save` leaves this name out.
        try:
            buffer: PrioritizedReplayBuffer = vars(self)["replay_buffer"]
        except KeyError:
            raise AttributeError(f"The replay_buffer of this {type(self).__name__} was deleted") from None
        return buffer

    @replay_buffer.setter
    def replay_buffer(self, buffer: ReplayBuffer | None) -> None:
        taken = None
        if buffer is not None:
            taken = buffer_choice.accepted_buffer(self, buffer)
            taken.update_reminder.learner = name_of_users_train(type(self))
            if isinstance(taken, HerReplayBuffer) and not buffer_choice.has_hindsight(self):
                self.replay_buffer_class = type(taken)  # a zip makes the same kind again
        vars(self)["replay_buffer"] = taken
        self._next_step_follows_buffer = False

    @replay_buffer.deleter
    def replay_buffer(self) -> None:
        del vars(self)["replay_buffer"]

    def _default_buffer_class(self) -> type[PrioritizedReplayBuffer]:
        """Choose the class of the buffer, if the user names none or a class of SB3."""
        if isinstance(self.observation_space, spaces.Dict):
            return PrioritizedDictReplayBuffer
        return PrioritizedReplayBuffer

    def _buffer_settings(self) -> dict[str, Any]:
        """Collect the keyword arguments of the buffer in a new dictionary."""
        settings = {**self.replay_buffer_kwargs, "n_steps": self.n_steps, "gamma": self.gamma}
        if buffer_choice.has_hindsight(self):
            # Not in the attribute, which is saved: environments cannot be saved.
            assert self.env is not None, "HER needs an environment: pass one to the constructor or to load()"
            settings["env"] = self.env
        return settings

    def _check_buffer(self, buffer: PrioritizedReplayBuffer) -> None:
        """
        Refuse a buffer that this algorithm cannot learn from.

        :param buffer: the buffer
        :raises NotImplementedError: for a combination that is not supported
        """
        buffer_choice.check_supported(self, buffer)

    def _empty_buffer(self) -> PrioritizedReplayBuffer:
        """Make a buffer as the stock algorithm does."""
        buffer_class: Any = self.replay_buffer_class
        buffer: PrioritizedReplayBuffer = buffer_class(
            self.buffer_size,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            optimize_memory_usage=self.optimize_memory_usage,
            **self._buffer_settings(),
        )
        return buffer

    # ---- learning

    def learn(
        self: SelfOffPolicyAlgorithm,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfOffPolicyAlgorithm:
        """
        See SB3. Environments of actors collect themselves, see :func:`sb3_per.distributed.make_actors`.

        :param total_timesteps: number of steps, over all environments
        :param callback: called at every step
        :param log_interval: number of episodes between two records
        :param tb_log_name: name of the run in TensorBoard; ``None``: that of the stock algorithm, e.g. ``DQN``, so that a run
            which either class resumes stays one run
        :param reset_num_timesteps: ``False``: continue counting, in the newest run of this name
        :param progress_bar: whether to show a progress bar
        :return: this model
        :raises ImportError: if ``tensorboard_log`` was given, without a logger of your own, and TensorBoard is not installed
        """
        if self.tensorboard_log is not None and not self._custom_logger:
            try:
                import tensorboard  # noqa: F401
            except ImportError as error:
                command = 'pip install "tensorboard", or pip install ".[extra]" in a clone of this package'
                raise ImportError(f"tensorboard_log needs tensorboard: {command}") from error
        arguments: dict[str, Any] = dict(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )
        if tb_log_name is not None:
            arguments["tb_log_name"] = tb_log_name
        collecting_env = collecting_env_in(self.env)
        if collecting_env is None:
            return super().learn(**arguments)
        with collecting_env.acting_for(self):  # type: ignore[arg-type]
            return super().learn(**arguments)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """
        See SB3. While actors act, they collect.

        :param env: training environments
        :param callback: called at every step
        :param train_freq: steps to collect
        :param replay_buffer: buffer that stores the steps
        :param action_noise: noise of the actions
        :param learning_starts: number of steps before which actions are random
        :param log_interval: number of episodes between two records
        :return: SB3's result
        """
        collecting_env = collecting_env_in(env)
        if collecting_env is not None and collecting_env.acts_for(self):
            return collecting_env.collect(callback, log_interval)
        return super().collect_rollouts(env, callback, train_freq, replay_buffer, action_noise, learning_starts, log_interval)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        require_normalized_last(self.env, self.get_vec_normalize_env(), self.observation_space)
        if self.replay_buffer is None:
            raise ValueError(
                f"This {type(self).__name__} has no replay buffer: assign one to model.replay_buffer, or load one with "
                "load_replay_buffer()"
            )
        buffer_choice.warn_of_unused_settings(self)
        if self.replay_buffer.mixture.draws_demonstrations:
            pretraining.start_statistics(self.replay_buffer, self.get_vec_normalize_env())
        before = self._last_obs
        prepared = super()._setup_learn(*args, **kwargs)
        self._end_episodes_if_reset(before)
        return prepared

    def _end_episodes_if_reset(self, before: Any) -> None:
        """
        End the episodes in the buffer, unless the next step follows the newest one there.

        :param before: newest observations before SB3 prepared ``learn``, which may have reset the environments
        """
        was_reset = self._last_obs is not before
        if was_reset or not self._next_step_follows_buffer:
            self.replay_buffer.end_episodes()
        self._next_step_follows_buffer = True

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # SB3 calls this within `learn` alone. Elsewhere, e.g. in `pretrain`, the progress is that of an earlier run.
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self.replay_buffer.update_beta(self._current_progress_remaining)

    def pretrain(
        self: SelfOffPolicyAlgorithm, gradient_steps: int, log_interval: int = 1_000, progress_bar: bool = False
    ) -> SelfOffPolicyAlgorithm:
        """
        Update the networks from demonstrations alone, whatever ``demonstration_fraction`` is. Nothing counts as a step of the
        environment. Target networks are updated as often as they would be while learning. The statistics of a ``VecNormalize``
        that has seen no step begin with the demonstrations.

        ::

            model.replay_buffer.add_demonstrations_from(expert_buffer)
            model.pretrain(5_000)
            model.learn(100_000)

        :param gradient_steps: number of updates
        :param log_interval: number of updates between two records (in ``learn``, of episodes). They go into a run of their
            own, ``..._pretrain``
        :param progress_bar: whether to show a progress bar with tqdm and rich, as in ``learn``
        :return: this model
        :raises ValueError: for a number below 1, or without demonstrations
        :raises ImportError: for a progress bar without tqdm or rich
        """
        pretraining.pretrain(self, gradient_steps, log_interval, progress_bar)  # type: ignore[arg-type]
        return self

    # ---- parts of train(), for PyTorch and JAX

    def _draw(self, batch_size: int | None, gradient_step: int, gradient_steps: int) -> PrioritizedReplayBufferSamples:
        """
        Draw the batch of a gradient step.

        :param batch_size: number of transitions; ``None``: the ``batch_size`` of the constructor
        :param gradient_step: number of this step within the call of ``train``, from 0
        :param gradient_steps: number of steps of the call
        :return: the batch
        """
        if batch_size is None:
            batch_size = self.batch_size
        if gradient_steps > 1 and self.replay_buffer.settings.recency < 1.0:
            progress = (gradient_step + 1) / gradient_steps  # k/K of step k of K, which `recency` needs
            return self.replay_buffer.sample(batch_size, env=self._vec_normalize_env, series_progress=progress)
        # A user's buffer may override `sample` with SB3's arguments alone.
        return self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)

    def _update_priorities(self, batch: PrioritizedReplayBufferSamples, td_errors: Any, metrics: MeanMetrics) -> None:
        """
        Set the priorities of a batch, and record its metrics.

        :param batch: the batch
        :param td_errors: its signed unweighted TD errors, an array or a tensor of shape (batch_size, n_critics)
        :param metrics: metrics of this call of ``train``
        :raises ValueError: for TD errors that are NaN or infinite. The networks have made their step then, but no priority
            has changed
        """
        self.replay_buffer.update_priorities(batch.indices, td_errors)
        if batch.is_demonstration is not None:
            metrics.add(demonstration_metrics(batch.is_demonstration, td_errors, self.replay_buffer.scheme))

    def _log(self, metrics: MeanMetrics) -> None:
        """
        Log the means over a call of ``train``.

        :param metrics: metrics of its gradient steps
        """
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, mean in metrics.means().items():
            self.logger.record(name, mean)
        self.logger.record("per/beta", self.replay_buffer.beta)
        self.logger.record("per/max_priority", self.replay_buffer.max_priority)

    # ---- files

    def save(self, path: PathOrFile, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """
        Save the model. The stock algorithm can load the zip too, and ignores the settings of the buffer. A zip of the same
        name stays until this one is complete.

        :param path: path of the zip file
        :param exclude: names of further attributes to leave out
        :param include: names of attributes to save even if they are left out by default
        :warns UserWarning: if the stock algorithm refuses the zip, because of n-step returns that it does not support
        """
        checkpoints.warn_if_stock_refuses(self)
        save = super().save
        with checkpoints.stock_attributes(self):
            checkpoints.write_zip(path, lambda file: save(file, exclude, include))

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_next_step_follows_buffer", "saved_buffers"]

    @classmethod
    def load(
        cls: type[SelfOffPolicyAlgorithm],
        path: PathOrFile,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfOffPolicyAlgorithm:
        """
        Load a model from a zip of this class or of the stock algorithm, see SB3. Beta goes on where it was, also with other
        ``replay_buffer_kwargs``.

        :param path: path of the zip file
        :param env: environment to continue with
        :param device: device of the networks
        :param custom_objects: objects that replace objects of the zip
        :param print_system_info: print the system info of the zip and the current one
        :param force_reset: reset the environment before training
        :param kwargs: attributes to change
        :return: the model
        :raises TypeError: for a setting of the buffer that is given as an attribute
        :raises ValueError: for an ``n_steps`` or ``gamma`` that contradicts the one in ``replay_buffer_kwargs``, or the zip of
            another algorithm
        """
        # Other names may be attributes of a user's class.
        check_arguments(cls, {name: value for name, value in kwargs.items() if name in SETTING_NAMES})
        check_agreement(cls, kwargs)
        if "replay_buffer_class" in kwargs and kwargs["replay_buffer_class"] is None:
            del kwargs["replay_buffer_class"]  # the class of the zip, so that HER stays HER
        saved = checkpoints.read_saved(path, custom_objects)
        checkpoints.check_policy(cls, saved.policy_class)  # type: ignore[arg-type]
        replaced = {*kwargs, *(custom_objects or {})}
        if "replay_buffer_kwargs" not in replaced:
            # SB3 makes these arguments attributes, and then makes the buffer from them.
            kwargs["replay_buffer_kwargs"] = saved.buffer_settings(replaced)
        model: Any = super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)
        vars(model).pop(checkpoints.ZIP_ENTRY, None)  # SB3 makes all entries of the zip attributes
        model.replay_buffer.beta_schedule.go_on_from(saved.beta)
        return model

    @functools.cached_property
    def saved_buffers(self) -> dict[pathlib.Path, SavedBuffer]:
        """Directories that the buffer was saved to or loaded from, by path. The next save to one writes only what is new."""
        return {}

    def save_replay_buffer(self, path: PathOrFile, full: bool = False, keep: int = 2) -> None:
        """
        Save the buffer to a directory, ``NAME.buffer``, or to a pickle as SB3 does.

        Each save adds the new transitions to the directory. A kill at any moment leaves the last complete save. Loading a
        directory runs no code.

        :param path: path of the directory or of the pickle
        :param full: directory only: write everything again, e.g. because stored observations were changed by hand
        :param keep: directory only: number of generations to keep, at least 1
        :raises ValueError: for a ``keep`` below 1, or what a directory cannot hold, e.g. infos
        :raises OSError: e.g. on a full disk; the directory then keeps its last complete save
        """
        if isinstance(path, (str, pathlib.Path)) and pathlib.Path(path).suffix == SUFFIX:
            assert self.replay_buffer is not None, "The replay buffer is not defined"
            directory, _ = located(path)
            saved = self.saved_buffers.setdefault(directory, SavedBuffer(directory))
            saved.save(self.replay_buffer, self.num_timesteps, full, keep)
        else:
            super().save_replay_buffer(path)

    def load_replay_buffer(self, path: PathOrFile, truncate_last_traj: bool = True) -> None:
        """
        Load the buffer from a directory, ``NAME.buffer``, or from a pickle.

        From a directory, load the newest complete generation, without running code. Class, spaces, scheme and settings are
        the model's. With another ``buffer_size``, load the newest transitions that fit. With another scheme, give all
        transitions the largest priority.

        A pickle of a prioritized buffer keeps priorities, ids, beta and the largest priority. A buffer of SB3 becomes
        prioritized without a copy of its data, unless this model stores them in another layout. If ``n_steps``, ``gamma`` or a
        setting in ``replay_buffer_kwargs`` differs, the model's value wins, with a warning. If the scheme differs, all
        transitions get the largest priority.

        :param path: path of the directory, of the manifest of one of its generations, or of a pickle. **Unpickling runs code
            from the file**
        :param truncate_last_traj: HER only: whether to end the last episode; ``False``: the environments continue it. Other
            buffers end it at the next ``learn``
        :raises ValueError: for a damaged buffer, or one with another shape, number of environments or kind. Nothing changes
            then
        :raises FileNotFoundError: if there is no such file or directory
        """
        attributes = vars(self)
        before = dict(attributes)
        try:
            if isinstance(path, (str, pathlib.Path)) and is_buffer_path(pathlib.Path(path)):
                self._load_buffer_directory(path, truncate_last_traj)
            else:
                self._load_buffer_pickle(path, truncate_last_traj)
        except BaseException:
            # SB3 may have assigned a buffer that does not fit: restore all attributes.
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update(before)
            raise
        if before.get("replay_buffer") is not None:
            self.replay_buffer.beta_schedule.go_on_from(before["replay_buffer"].beta)
        if isinstance(self.replay_buffer, HerReplayBuffer) and not truncate_last_traj:
            self._next_step_follows_buffer = True  # unless `learn` resets the environments

    def _load_buffer_directory(self, path: str | pathlib.Path, truncate_last_traj: bool) -> None:
        live: PrioritizedReplayBuffer | None = vars(self).get("replay_buffer")
        directory, generation = located(path)
        saved = self.saved_buffers.setdefault(directory, SavedBuffer(directory))
        loaded = saved.load(self._empty_buffer() if live is None else live, generation)
        if truncate_last_traj and isinstance(loaded, HerReplayBuffer):
            loaded.truncate_last_trajectory()
        if live is not None and live.size() == 0:
            # Others may hold the empty buffer, e.g. a callback.
            loaded.beta_schedule.go_on_from(live.beta)
            live.take_over(loaded)
            loaded = live
        self.replay_buffer = loaded

    def _load_buffer_pickle(self, path: PathOrFile, truncate_last_traj: bool) -> None:
        try:
            super().load_replay_buffer(path, truncate_last_traj)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} is damaged, or is the zip of a model, not a replay buffer: load it with load(), and give "
                "load_replay_buffer() what save_replay_buffer() wrote"
            ) from error
        self.replay_buffer = adapted_to_model(self, self.replay_buffer)
