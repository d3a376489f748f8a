"""
What all prioritized algorithms share, with networks in PyTorch or in JAX: the buffer, learning, files and logs.

The class overrides methods of SB3. In the order in which SB3 calls them:

- the constructor, or ``load``: ``_setup_model``, which makes the buffer and assigns it to ``replay_buffer``, a property here
- ``learn``: first ``_setup_learn``, and then, again and again:

  1. ``collect_rollouts``, and within it, after each step, ``_update_current_progress_remaining``: beta follows the progress
  2. ``train``: the loop of PyTorch or JAX

- ``save``, ``save_replay_buffer`` and ``load_replay_buffer``
"""

import functools
import inspect
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm, SelfOffPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.type_aliases import GymEnv, ReplayBufferSamples, RolloutReturn, TrainFreq
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms import pretraining
from sb3_per.algorithms.collecting import collecting_env_in, n_columns
from sb3_per.algorithms.metrics import Recorded, demonstration_metrics, record
from sb3_per.algorithms.signatures import shows_arguments_of
from sb3_per.algorithms.zip_entry import (
    GIVEN_TO_LOAD,
    ZIP_ENTRY,
    PathOrFile,
    add_settings_of_zip,
    settings_to_save,
    write_zip,
)
from sb3_per.buffers import (
    PRIORITIZED_CLASSES,
    IgnoredSettingWarning,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.buffers.conversion import stock_choice
from sb3_per.buffers.frame_setting import frames_of_env, require_stack_of_env
from sb3_per.buffers.pickles import unpickling
from sb3_per.buffers.settings import SCHEME_SETTINGS, SETTING_NAMES, BufferSettings, with_both_betas
from sb3_per.persistence.buffer_files import SUFFIX, SavedBuffer, is_buffer_path, located
from sb3_per.sampling.schemes import SCHEMES, make_scheme
from sb3_per.utils.checks import FRACTION, check_argument, integer
from sb3_per.utils.origin import is_overridden
from sb3_per.utils.parents import overrides

# The space of the other actions, by the actions that an algorithm takes.
_OTHER_ACTIONS: dict[str, type[spaces.Space]] = {"continuous": spaces.Discrete, "discrete": spaces.Box}


@overrides("_wrap_env", "_setup_model", "_setup_learn", "_update_current_progress_remaining", "_excluded_save_params")
class PrioritizedAlgorithm(OffPolicyAlgorithm):
    """
    Prioritized replay for an off-policy algorithm, without its networks. Write it left of the stock algorithm; its subclasses
    :class:`~sb3_per.algorithms.torch_loop.PrioritizedOffPolicyMixin` and ``sb3_per.sbx.PrioritizedJaxMixin`` do the training.

    The constructor is the stock algorithm's. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, and a buffer class of SB3 is replaced by its prioritized counterpart. ``replay_buffer_kwargs``
    configures the buffer, see :class:`~sb3_per.buffers.PrioritizedReplayBuffer`; n-step returns bring it ``n_steps`` and
    ``gamma``, too.

    :raises ValueError: for any other ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` or ``gamma`` that
        contradicts the one in ``replay_buffer_kwargs``
    """

    #: Whether the critics' loss is one of scalar TD errors. LAP and PAL replace it, and are refused where there is none.
    has_scalar_td_loss: ClassVar[bool] = True

    #: Whether a network other than the critics chooses actions. Without one, ``actor_batch="uniform"`` is refused.
    has_actor: ClassVar[bool] = True

    #: Whether a batch holds windows of steps, from a buffer of sequences.
    learns_from_windows: ClassVar[bool] = False

    #: ``"continuous"`` or ``"discrete"``, and the name of the class for the other ones, which the message names. ``None``: SB3
    #: alone checks the space of the actions.
    takes_actions: ClassVar[str | None] = None
    class_for_other_actions: ClassVar[str] = ""

    #: Whether the actors of :mod:`sb3_per.distributed` can act with copies of the policy. If not, they are refused.
    can_act_in_copies: ClassVar[bool] = True

    #: Arguments of the algorithm that its buffer gets too, with their defaults.
    shared_arguments: ClassVar[dict[str, Any]] = {"n_steps": 1, "gamma": 0.99}

    #: number of updates of a priority whose transition was overwritten in the meantime
    n_stale_updates = 0

    # Classes of the buffer if the user names none: for observations that are arrays, and for Dict observations.
    _default_buffer_classes: ClassVar[tuple[type[PrioritizedReplayBuffer], type[PrioritizedReplayBuffer]]] = (
        PrioritizedReplayBuffer,
        PrioritizedDictReplayBuffer,
    )

    # Whether the next step follows the newest one in the buffer. If not, `learn` ends the episodes in the buffer.
    _buffer_continues = False

    # ---- construction

    @classmethod
    def _wrap_env(cls, env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = super()._wrap_env(env, verbose, monitor_wrapper)
        space = wrapped.action_space
        # SB3 would refuse it later, without the name of the other class.
        if cls.takes_actions is not None and isinstance(space, _OTHER_ACTIONS[cls.takes_actions]):
            raise AssertionError(
                f"{cls.__name__} is for {cls.takes_actions} actions, and this environment has {space}: take "
                f"{cls.class_for_other_actions}"
            )
        return wrapped

    def _setup_model(self) -> None:
        """Settle class and settings of the buffer, so that the stock algorithm makes a prioritized one."""
        beta = self._settle_settings()
        self.replay_buffer_class = self._prioritized_class(self.replay_buffer_class)
        if self.replay_buffer is not None:
            self.replay_buffer = self.replay_buffer  # `load` was given it: SB3 has set it past the property
        # SB3 makes the buffer from these attributes. The model keeps, and saves, only what the user gave.
        settings, n_envs = self.replay_buffer_kwargs, self.n_envs
        self.replay_buffer_kwargs, self.n_envs = self._buffer_settings(), n_columns(self)
        try:
            with warnings.catch_warnings():
                # SB3 warns that it ignores `n_steps` for a buffer class that it does not know. Ours has received it.
                warnings.filterwarnings("ignore", message=f"`n_steps={self.n_steps}` is ignored")
                super()._setup_model()
        finally:
            self.replay_buffer_kwargs, self.n_envs = settings, n_envs
        if "storage_folder" in settings:  # as an absolute path, because a zip may be loaded from elsewhere
            settings["storage_folder"] = self.replay_buffer.settings.storage_folder
        self.replay_buffer.beta_schedule.go_on_from(beta)
        for name in (ZIP_ENTRY, GIVEN_TO_LOAD):
            vars(self).pop(name, None)
        collecting_env = collecting_env_in(self.env)
        if collecting_env is not None:
            collecting_env.check_supported(self)

    def _settle_settings(self) -> float:
        """
        Settle the settings of the buffer. A second call changes nothing. Where a setting comes from, and who wins:

        ======================================  =============================================================================
        setting                                 the first of these that has it
        ======================================  =============================================================================
        any, in the constructor                 ``replay_buffer_kwargs``, the default of the buffer
        any, in ``load``                        ``replay_buffer_kwargs`` of ``load``; without them the zip; the default
        ``shared_arguments``, constructor       ``replay_buffer_kwargs``, the argument, its default. Both must agree, unless
                                                the argument has its default
        the same in ``load``                    the argument of ``load``, the attribute in the zip unless it is the default,
                                                the dictionary in the zip; with ``replay_buffer_kwargs`` as constructed
        ``n_steps`` of SB3's NStepReplayBuffer  the same, but its default is that of the buffer's class
        ``frames="auto"``                       the environment
        ======================================  =============================================================================

        :return: beta of the zip; 0 without one
        :raises ValueError: for an argument of the algorithm that contradicts ``replay_buffer_kwargs``
        """
        settings = dict(with_both_betas(self.replay_buffer_kwargs))  # the caller's dictionary must not change
        beta = 0.0
        given = vars(self).get(GIVEN_TO_LOAD)
        if given is not None:
            beta = add_settings_of_zip(self, settings, given)
        is_given = given is not None and "n_steps" in given
        if self.replay_buffer_class is NStepReplayBuffer and self.n_steps == 1 and not is_given:
            # SB3's class has a default of its own.
            settings.setdefault("n_steps", inspect.signature(NStepReplayBuffer).parameters["n_steps"].default)

        # From here on, the algorithm alone has the shared arguments.
        for name, default in self.shared_arguments.items():
            value = settings.pop(name, getattr(self, name))
            if getattr(self, name) not in (default, value):
                raise ValueError(
                    f"{name}={getattr(self, name)} contradicts {name}={value} in replay_buffer_kwargs: give {name} to "
                    f"{type(self).__name__} alone"
                )
            setattr(self, name, value)
        check_argument("n_steps", self.n_steps, integer())  # before SB3 compares it
        check_argument("gamma", self.gamma, FRACTION)

        if settings.get("frames") == "auto":
            settings["frames"] = frames_of_env(self.env, self.observation_space)
        require_stack_of_env(settings.get("frames"), self.env)
        self.replay_buffer_kwargs = settings
        return beta

    def _prioritized_class(self, given: type | None) -> type[PrioritizedReplayBuffer]:
        """
        Find the prioritized counterpart of a class of SB3.

        :param given: class of a buffer; ``None``: the algorithm chooses
        :return: prioritized class
        :raises ValueError: for any other class that is not prioritized
        """
        if given is not None and issubclass(given, PrioritizedReplayBuffer):
            return given
        chosen = None if given is None else stock_choice(given)
        if chosen is not None:
            counterpart = PRIORITIZED_CLASSES[chosen]
        else:
            for_arrays, for_dicts = self._default_buffer_classes
            counterpart = for_dicts if isinstance(self.observation_space, spaces.Dict) else for_arrays
        if given is not None and given not in PRIORITIZED_CLASSES:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs a prioritized replay buffer, and {given.__name__} is not: use a subclass of "
                f"{counterpart.__name__}, or leave the choice of the buffer to {name}"
            )
        return counterpart

    def _buffer_settings(self) -> dict[str, Any]:
        """Collect the keyword arguments of the buffer in a new dictionary."""
        settings = dict(self.replay_buffer_kwargs)
        if self.n_steps > 1:  # as in SB3, so that a user's class with the arguments of SB3's buffers needs no others
            settings.update(n_steps=self.n_steps, gamma=self.gamma)
        return settings

    # ---- the buffer

    @property
    def replay_buffer(self) -> PrioritizedReplayBuffer:
        """
        The prioritized buffer.

        A buffer of SB3 that is assigned becomes prioritized: exactly its classes ``ReplayBuffer``, ``DictReplayBuffer``,
        ``NStepReplayBuffer`` and ``HerReplayBuffer``. It gets the settings of the model, keeps the n-step returns of
        an ``NStepReplayBuffer``, and shares its arrays, but not its position. So add further transitions to
        ``model.replay_buffer``, not to the buffer that was assigned.

        :raises ValueError: for any other class, or a buffer of another shape. Nothing changes then
        :raises NotImplementedError: for a buffer that the algorithm cannot learn from. Nothing changes then
        """
        # Kept under the name of the property: SB3 leaves this name out of a zip, unless the user includes it.
        try:
            buffer: PrioritizedReplayBuffer = vars(self)["replay_buffer"]
        except KeyError:
            raise AttributeError(f"The replay_buffer of this {type(self).__name__} was deleted") from None
        return buffer

    @replay_buffer.setter
    def replay_buffer(self, buffer: ReplayBuffer | None) -> None:
        if buffer is None:
            taken = None
        else:
            taken = buffer if isinstance(buffer, PrioritizedReplayBuffer) else self._prioritized(buffer)
            self._check_buffer(taken)
            if taken is not buffer and buffer.size() == 0:
                warnings.warn(
                    f"The empty {type(buffer).__name__} became a {type(taken).__name__} that shares its arrays, not its "
                    "position: add transitions to model.replay_buffer. What is added to the old buffer is never drawn",
                    stacklevel=2,
                )
        vars(self)["replay_buffer"] = taken
        self._buffer_continues = False

    @replay_buffer.deleter
    def replay_buffer(self) -> None:
        del vars(self)["replay_buffer"]  # to save RAM, as SB3 allows

    def _prioritized(self, buffer: ReplayBuffer) -> PrioritizedReplayBuffer:
        """
        Make a prioritized buffer of one of SB3, with the settings of the model, but its own n-step returns if it has any. It
        shares the arrays.

        :param buffer: buffer of SB3
        :return: prioritized buffer
        :raises ValueError: for a buffer of any other class
        """
        buffer_class: Any = self._prioritized_class(type(buffer))
        self._settle_settings()  # a subclass may assign a buffer before `_setup_model`
        own_class = self.replay_buffer_class
        if own_class is not None and issubclass(own_class, buffer_class):
            buffer_class = own_class
        settings = self._buffer_settings()
        if isinstance(buffer, NStepReplayBuffer):
            settings = {name: value for name, value in settings.items() if name not in ("n_steps", "gamma")}
        made: PrioritizedReplayBuffer = buffer_class.from_replay_buffer(buffer, **settings)
        made.device = self.device
        return made

    def _check_buffer(self, buffer: PrioritizedReplayBuffer) -> None:
        """
        Refuse a buffer that this algorithm cannot learn from.

        :param buffer: the buffer
        :raises ValueError: for a buffer of another shape, or without goals for a model with HER
        :raises NotImplementedError: for a combination that is not supported
        """
        name = type(self).__name__
        found = (buffer.n_envs, buffer.obs_shape, buffer.action_dim)
        wanted = (n_columns(self), get_obs_shape(self.observation_space), get_action_dim(self.action_space))
        if found != wanted:
            raise ValueError(
                f"The {type(buffer).__name__} does not fit this model: it has (n_envs, observation shape, action dimension) "
                f"{found}, the model {wanted}"
            )
        needs_goals = self.replay_buffer_class is not None and issubclass(self.replay_buffer_class, HerReplayBuffer)
        if needs_goals and not isinstance(buffer, HerReplayBuffer):
            raise ValueError(f"The {type(buffer).__name__} does not fit this model, which needs a buffer with HER")
        if buffer.scheme.replaces_loss and not self.has_scalar_td_loss:
            raise NotImplementedError(
                f"{name} with {buffer.scheme} is not supported: the scheme replaces the loss of scalar TD errors, and the "
                f"critics have no such loss. Use one of {[each for each in SCHEMES if not SCHEMES[each].replaces_loss]}"
            )
        if isinstance(buffer, PrioritizedSequenceReplayBuffer) and not self.learns_from_windows:
            raise NotImplementedError(
                f"{name} with {type(buffer).__name__} is not supported: it is not recurrent and learns from single "
                "transitions. Use a recurrent algorithm, such as PERRecurrentDQN"
            )
        if buffer.settings.actor_batch != "prioritized" and not self.has_actor:
            raise NotImplementedError(
                f"{name} with actor_batch={buffer.settings.actor_batch!r} is not supported: it has no actor. Leave the "
                "setting out"
            )

    # ---- learning

    @shows_arguments_of(OffPolicyAlgorithm.learn)
    def learn(self: SelfOffPolicyAlgorithm, *args: Any, **kwargs: Any) -> SelfOffPolicyAlgorithm:
        """
        See SB3. Environments of actors collect themselves, see :func:`sb3_per.distributed.make_actors`.

        :param args: arguments of the stock algorithm
        :param kwargs: keyword arguments of the stock algorithm
        :return: this model
        """
        collecting_env = collecting_env_in(self.env)
        if collecting_env is None:
            return super().learn(*args, **kwargs)
        with collecting_env.acting_for(self):
            return super().learn(*args, **kwargs)

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
        See SB3. While actors act, they collect, see :func:`sb3_per.distributed.make_actors`.

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
        self._warn_of_unused_settings()
        if self.replay_buffer.demonstrations.are_drawn:
            pretraining.start_statistics(self.replay_buffer, self.get_vec_normalize_env())
        before = self._last_obs
        try:
            prepared = super()._setup_learn(*args, **kwargs)
        except ImportError as error:  # SB3 says that TensorBoard, or tqdm and rich, are missing
            command = 'pip install "tensorboard" "tqdm" "rich", or pip install ".[extra]" in a clone of this package'
            raise ImportError(f"{error} Install what is missing: {command}") from error
        was_reset = self._last_obs is not before
        if was_reset or not self._buffer_continues:
            self.replay_buffer.end_episodes()
        self._buffer_continues = True
        return prepared

    def _warn_of_unused_settings(self) -> None:
        """
        Warn of settings of the buffer that have no effect in ``learn``.

        :warns IgnoredSettingWarning: for TD errors of new transitions that nobody gives, and a ``recency`` that the buffer is
            too small for
        """
        buffer = self.replay_buffer
        gets_td_errors = collecting_env_in(self.env) is not None or is_overridden(buffer, "add")
        if buffer.settings.initial_priority == "td_error" and not gets_td_errors:
            warnings.warn(
                "initial_priority='td_error' has no effect in learn(): SB3 passes no td_errors to add(), so new transitions "
                "get the largest priority. Use make_actors() for the environments, or call add() in a loop of your own",
                IgnoredSettingWarning,
            )
        recency_min = buffer.settings.recency_min
        capacity = buffer.numbering.capacity
        if buffer.settings.recency < 1.0 and recency_min >= capacity:
            warnings.warn(
                f"recency={buffer.settings.recency} has no effect: draws see the newest recency_min={recency_min} transitions "
                f"at least, and the buffer holds {capacity}",
                IgnoredSettingWarning,
            )

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
        """
        pretraining.pretrain(self, gradient_steps, log_interval, progress_bar)
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
        arguments: dict[str, Any] = {}  # a user's buffer may override `sample` with SB3's arguments alone
        if gradient_steps > 1 and self.replay_buffer.settings.recency < 1.0:
            arguments["series_progress"] = (gradient_step + 1) / gradient_steps  # k/K of step k of K, which `recency` needs
        size = self.batch_size if batch_size is None else batch_size
        batch: Any = self.replay_buffer.sample(size, env=self.get_vec_normalize_env(), **arguments)
        if not hasattr(batch, "weights"):
            # A user's `sample` may return SB3's class, e.g. to join batches of two buffers. Without ids no priority changes:
            # all stay equal, and weights of 1 are right.
            stock = ReplayBufferSamples(*batch)
            batch = PrioritizedReplayBufferSamples(*stock, th.ones_like(stock.rewards), np.empty(0, np.int64))
        drawn: PrioritizedReplayBufferSamples = batch
        return drawn

    def _update_priorities(self, batch: PrioritizedReplayBufferSamples, td_errors: Any, recorded: Recorded) -> None:
        """
        Set the priorities of a batch, and record its demonstrations.

        :param batch: the batch
        :param td_errors: its signed unweighted TD errors, an array or a tensor of shape (batch_size, n_critics)
        :param recorded: numbers of this call of ``train``
        :raises ValueError: for TD errors that are NaN or infinite. The networks have made their step then, but no priority
            has changed
        """
        if len(batch.indices):
            n_written = self.replay_buffer.update_priorities(batch.indices, td_errors)
            if n_written is not None:  # a user's class may return nothing
                self.n_stale_updates += len(batch.indices) - n_written
        if batch.is_demonstration is not None:
            record(recorded, demonstration_metrics(batch.is_demonstration, td_errors, self.replay_buffer.scheme))

    def _log(self, recorded: Recorded) -> None:
        """
        Log the means over a call of ``train``.

        :param recorded: numbers of its gradient steps. A name without a slash is logged as ``train/name``
        """
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in recorded.items():
            self.logger.record(name if "/" in name else f"train/{name}", sum(values) / len(values))
        self.logger.record("per/beta", self.replay_buffer.beta)
        self.logger.record("per/max_priority", self.replay_buffer.max_priority)

    # ---- files of the model

    def save(self, path: PathOrFile, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """
        Save the model, see SB3. The stock algorithm can load the zip too, and ignores the settings of prioritization. A zip of
        the same name stays until this one is complete.

        :param path: path of the zip file
        :param exclude: names of further attributes to leave out
        :param include: names of attributes to save even if they are left out by default
        """
        # SB3 saves attributes as they are: those of a copy become what the stock algorithm knows. A class of the user's may
        # say how it is copied and pickled, which is not what is wanted here.
        stock = object.__new__(type(self))
        vars(stock).update(vars(self))
        if self.replay_buffer_class in (PrioritizedHerReplayBuffer, *self._default_buffer_classes):  # no user's class
            stock.replay_buffer_class = stock_choice(self.replay_buffer_class)
        buffer = getattr(self, "replay_buffer", None)  # a user may have deleted it
        beta = 0.0 if buffer is None else buffer.beta
        stock.replay_buffer_kwargs, entry = settings_to_save(self.replay_buffer_kwargs, beta)
        setattr(stock, ZIP_ENTRY, entry)
        write_zip(path, lambda file: super(PrioritizedAlgorithm, stock).save(file, exclude, include))

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_buffer_continues", "n_stale_updates", "saved_buffers"]

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
        Load a model from a zip of this class or of the stock algorithm, see SB3. ``replay_buffer_kwargs`` replaces all
        settings of the zip. Beta goes on where it was.

        :param path: path of the zip file
        :param env: environment to continue with
        :param device: device of the networks
        :param custom_objects: objects that replace objects of the zip
        :param print_system_info: print the system info of the zip and the current one
        :param force_reset: reset the environment before training
        :param kwargs: attributes to change
        :return: the model
        :raises TypeError: for a setting of the buffer that is given as an attribute
        """
        misplaced = kwargs.keys() & set(SETTING_NAMES) - inspect.signature(cls).parameters.keys()
        for name in sorted(misplaced):
            raise TypeError(
                f"{cls.__name__} has no argument {name!r}: did you mean {cls.__name__}.load(..., "
                f"replay_buffer_kwargs=dict({name}={kwargs[name]!r}))?"
            )
        # SB3 makes keyword arguments attributes. `_setup_model` looks at this one, and removes it.
        kwargs[GIVEN_TO_LOAD] = [*kwargs, *(custom_objects or {})]
        return super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)

    # ---- files of the buffer

    @functools.cached_property
    def saved_buffers(self) -> dict[Path, SavedBuffer]:
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
        if isinstance(path, (str, Path)) and Path(path).suffix == SUFFIX:
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
        :raises ValueError: for a damaged buffer, or one with another shape, number of environments or kind
        :raises FileNotFoundError: if there is no such file or directory
        """
        before = getattr(self, "replay_buffer", None)  # a user may have deleted it
        if isinstance(path, (str, Path)) and is_buffer_path(Path(path)):
            if before is None:
                raise ValueError(
                    f"{path} holds transitions alone, and this model has no buffer, which has class and settings: load the "
                    "model again"
                )
            directory, generation = located(path)
            saved = self.saved_buffers.get(directory, SavedBuffer(directory))
            loaded = saved.load(before, generation)
            if truncate_last_traj and isinstance(loaded, HerReplayBuffer):
                loaded.truncate_last_trajectory()
            self.replay_buffer = loaded
            self.saved_buffers[directory] = saved
        else:
            with unpickling(path):
                super().load_replay_buffer(path, truncate_last_traj)
            self.replay_buffer = self._with_own_settings(self.replay_buffer)
        if before is not None:
            self.replay_buffer.beta_schedule.go_on_from(before.beta)
        if isinstance(self.replay_buffer, HerReplayBuffer) and not truncate_last_traj:
            self._buffer_continues = True  # unless `learn` resets the environments

    def _with_own_settings(self, buffer: PrioritizedReplayBuffer) -> PrioritizedReplayBuffer:
        """
        Give an unpickled buffer the class and the settings that this model names, and warn of those that differ. The others
        stay.

        :param buffer: prioritized buffer from a file
        :return: the same buffer, or one with the same transitions
        """
        found = {name: getattr(buffer.settings, name) for name in BufferSettings.names()}
        found.update((name, getattr(buffer, name)) for name in buffer.extra_arguments)
        wanted = {**self._buffer_settings(), "n_steps": self.n_steps}
        of_scheme = {name: wanted.pop(name) for name in SCHEME_SETTINGS if name in wanted}
        changed = {}
        described = []
        for name, value in wanted.items():
            if name in found and not np.array_equal(value, found[name]):  # also of arrays
                changed[name] = value
                described.append(f"{name}={found[name]!r} (this model: {value!r})")
        if of_scheme:  # a model that names any setting of a scheme means its whole scheme
            scheme = make_scheme(**{"scheme": BufferSettings.scheme, **of_scheme})
            if not scheme.equals(buffer.scheme):
                changed["scheme"] = scheme
                described.append(f"scheme={buffer.scheme!r} (this model: {scheme!r}, all priorities become the largest)")
        if described:
            warnings.warn(f"The loaded buffer has other settings. Those of this model count: {', '.join(described)}")
        own_class: Any = self.replay_buffer_class
        if own_class is not type(buffer) and issubclass(own_class, type(buffer)):
            # A user's class may need arguments that the loaded buffer does not have.
            return own_class.from_replay_buffer(buffer, **{**wanted, **changed})
        return type(buffer).from_replay_buffer(buffer, **changed) if changed else buffer
