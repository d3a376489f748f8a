"""Sum trees of other libraries, to measure against: one sample at a time in Python, and level by level in NumPy."""

import numpy as np

from sb3_per import Proportional, SumTree
from sb3_per.sampling.sum_tree import ALL_WRITTEN, spread


class PythonTree(SumTree):
    """Binary tree in place of ours, which takes one sample at a time, and adds changes along the path."""

    def __init__(self, capacity: int, mass: float = 0.0):
        self.capacity, self.n_leaves = capacity, 1 << (capacity - 1).bit_length()
        self.nodes: list[float] = (mass * NumpyTree(capacity).nodes).tolist()

    def clear(self) -> None:
        """Empty all slots."""
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
        """See :meth:`SumTree.draw`."""
        leaves = np.minimum(self.find(spread(uniforms, self.total, stratified)), self.capacity - 1)  # its sums drift
        return leaves, scale * np.array([self.nodes[self.n_leaves + leaf] for leaf in leaves.tolist()])

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return self.nodes[1]

    @property
    def masses(self) -> np.ndarray:
        """Masses of all slots."""
        return np.array(self.nodes[self.n_leaves :][: self.capacity])


class PerSample(Proportional):
    """Proportional scheme on a :class:`PythonTree`."""

    def make_tree(self, capacity: int) -> SumTree:
        """See :meth:`PriorityScheme.make_tree`."""
        return PythonTree(capacity)


class NumpyTree:
    """Binary tree that takes the whole batch one level at a time, with NumPy. All masses are 1 at first."""

    def __init__(self, capacity: int):
        self.depth = (capacity - 1).bit_length()
        level = np.zeros(1 << self.depth)
        level[:capacity] = 1.0
        levels = [level]
        while len(levels[0]) > 1:
            levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
        self.nodes = np.concatenate([[0.0], *levels])

    def update(self, leaves: np.ndarray, masses: np.ndarray) -> None:
        """Recompute the parents of the batch, level by level."""
        nodes = leaves + (1 << self.depth)
        self.nodes[nodes] = masses
        for _ in range(self.depth):
            nodes = np.unique(nodes >> 1)
            self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Choose a child for the batch, level by level."""
        nodes = np.ones(len(prefix_sums), dtype=np.int64)
        values = prefix_sums.copy()
        for _ in range(self.depth):
            nodes *= 2
            left = self.nodes[nodes]
            right = values >= left
            values -= left * right
            nodes += right
        return nodes - (1 << self.depth)

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self.nodes[1])
