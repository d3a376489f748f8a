"""Remind a user whose learner draws by priority and never updates priorities."""

import warnings

#: number of draws in a row without an update after which to warn
MANY_DRAWS = 10


_MESSAGE = (
    f"{MANY_DRAWS} batches were drawn by priority and update_priorities() was not called. A stock algorithm neither weights "
    "its loss nor updates priorities, and learns from a biased draw: use the class of sb3_per in its place (PERSAC for SAC, "
    'PERDQN for DQN, ...), or scheme="uniform". In a train() of your own, multiply the loss by batch.weights, and call '
    "update_priorities(batch.indices, td_errors) after each update. A sample() of your own that returns neither weights nor "
    "indices keeps all priorities equal"
)


class UpdateReminder:
    """Warn once of many draws in a row without an update of priorities. A buffer counts them."""

    def __init__(self) -> None:
        #: draws by priority since the last update, or since a learner said that updates follow later
        self.n_draws = 0
        self._has_warned = False

    def warn(self) -> None:
        """Say what to do, the first time."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(_MESSAGE)
