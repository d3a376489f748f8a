"""Sum tree as in OpenAI Baselines, to measure against: one sample at a time, in Python."""

import numpy as np

from sb3_per import Proportional, SumTree
from sb3_per.sampling.sum_tree import ALL_WRITTEN, spread


class PythonTree(SumTree):
    """Binary tree in place of ours, which takes one sample at a time, and adds changes along the path."""

    def __init__(self, capacity: int, mass: float = 0.0):
        self.capacity, self.n_leaves = capacity, 1 << (capacity - 1).bit_length()
        self.nodes = [0.0] * self.n_leaves + [mass] * capacity + [0.0] * (self.n_leaves - capacity)
        for node in range(self.n_leaves - 1, 0, -1):
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def clear(self) -> None:
        self.nodes = [0.0] * len(self.nodes)

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        for leaf, mass in zip(leaves.tolist(), masses.tolist(), strict=True):
            node = self.n_leaves + leaf
            delta = mass - self.nodes[node]
            while node >= 1:
                self.nodes[node] += delta
                node //= 2
        return ALL_WRITTEN

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Walk down for every value."""
        found = []
        for value in prefix_sums.tolist():
            node = 1
            while node < self.n_leaves:
                node *= 2
                if value >= self.nodes[node]:
                    value -= self.nodes[node]
                    node += 1
            found.append(node - self.n_leaves)
        return np.array(found)

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        leaves = np.minimum(self.find(spread(uniforms, self.total, stratified)), self.capacity - 1)  # its sums drift
        return leaves, scale * np.array([self.nodes[self.n_leaves + leaf] for leaf in leaves.tolist()])

    @property
    def total(self) -> float:
        return self.nodes[1]

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        return np.array(self.nodes[self.n_leaves :])[leaves]


class PerSample(Proportional):
    def make_tree(self, capacity: int) -> SumTree:
        return PythonTree(capacity)
