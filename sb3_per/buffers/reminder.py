"""Remind a user whose learner draws by priority and never updates priorities."""

import warnings

#: number of draws in a row without an update after which to warn
MANY_DRAWS = 10


class UpdateReminder:
    """Warn once of many draws in a row without an update of priorities. A buffer counts them."""

    def __init__(self) -> None:
        #: a user's method that draws, for the warning; ``None``: it is not known
        self.learner: str | None = None
        #: draws by priority since the last update, or since a learner said that updates follow later
        self.n_draws = 0
        self._has_warned = False

    def warn(self) -> None:
        """Say what to do, the first time."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(self._message())

    def _message(self) -> str:
        start = f"{MANY_DRAWS} batches were drawn by priority and update_priorities() was not called. "
        if self.learner is None:
            return (
                f"{start}A stock algorithm neither weights its loss nor updates priorities, and learns from a biased draw: "
                'use the class of sb3_per in its place (PERSAC for SAC, PERDQN for DQN, ...), or scheme="uniform". In a loop '
                "of your own, multiply the loss by batch.weights, and call update_priorities(batch.indices, td_errors) after "
                "each update"
            )
        return (
            f"{start}{self.learner} learns from a biased draw: multiply its loss by batch.weights, and call "
            "self.replay_buffer.update_priorities(batch.indices, td_errors) after each update. Or override _update() in place "
            'of train(), or set scheme="uniform"'
        )
