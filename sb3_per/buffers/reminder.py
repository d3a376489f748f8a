"""Remind a user whose learner draws by priority and never updates priorities."""

import warnings

# Number of draws in a row without an update after which a warning is given, once.
_MANY_DRAWS = 10


class UpdateReminder:
    """Count draws without an update of priorities, and warn once when there are many."""

    def __init__(self) -> None:
        #: a user's method that draws, for the warning; ``None``: it is not known
        self.learner: str | None = None
        self._n_draws = 0
        self._has_warned = False

    def count_draw(self) -> None:
        """Count a draw by priority, and warn at the tenth in a row."""
        self._n_draws += 1
        if self._n_draws >= _MANY_DRAWS and not self._has_warned:
            self._has_warned = True
            warnings.warn(self._message())

    def count_update(self) -> None:
        """Count an update of priorities."""
        self._n_draws = 0

    def expect_update(self) -> None:
        """Take note that priorities are updated later, after further draws."""
        self._n_draws = 0

    def _message(self) -> str:
        start = f"{_MANY_DRAWS} batches were drawn by priority and update_priorities() was not called. "
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
