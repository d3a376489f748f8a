"""An object of a user in place of an array of observations, as in the developer guide."""

from typing import Any

import numpy as np

from sb3_per import PrioritizedReplayBuffer


class OwnStore:
    """Holds rows in a dictionary, and takes and gives no more than the developer guide asks for."""

    def __init__(self, array: np.ndarray):
        self.shape, self.dtype = array.shape, array.dtype
        self.store = dict(enumerate(array))

    def __setitem__(self, row: int, values: np.ndarray) -> None:
        self.store[row] = np.array(values, self.dtype)

    def __getitem__(self, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        rows, envs = places
        return np.array([self.store[row][env] for row, env in zip(rows.tolist(), envs.tolist(), strict=True)])


class OwnStoreBuffer(PrioritizedReplayBuffer):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.observations = OwnStore(self.observations)  # type: ignore[assignment]
        if not self.optimize_memory_usage:
            self.next_observations = OwnStore(self.next_observations)  # type: ignore[assignment]
