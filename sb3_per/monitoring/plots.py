"""Plot a prioritized buffer with matplotlib, which comes with the extra ``extra``."""

from typing import Any

import numpy as np


def plot_buffer(buffer: Any, n_bins: int = 50) -> Any:
    """
    Plot sampling mass against age: the median, and the bands that hold half and 90% of the transitions.

    A second plot shows the number of draws against age, if a :class:`~sb3_per.monitoring.monitor.PriorityMonitor` counts them.

    :param buffer: prioritized buffer with transitions that can be drawn, or a model that has one
    :param n_bins: number of groups of equal age
    :return: ``matplotlib.figure.Figure``, e.g. for ``savefig``
    :raises ValueError: if no transition can be drawn
    :raises TypeError: for something that has no priorities, e.g. a buffer of Stable-Baselines3
    :raises ImportError: without matplotlib
    """
    buffer = getattr(buffer, "replay_buffer", buffer)
    if not hasattr(buffer, "priorities"):
        raise TypeError(f"plot_buffer() takes a prioritized buffer or a model that has one, not a {type(buffer).__name__}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        command = 'pip install "matplotlib", or pip install ".[extra]" in a clone of this package'
        raise ImportError(f"plot_buffer() needs matplotlib: {command}") from error
    masses = buffer.masses
    drawable = masses > 0.0
    if not drawable.any():
        raise ValueError("There is nothing to plot: no transition of the buffer can be drawn. Add transitions first")
    ids = buffer.transition_ids[drawable]
    ages = ids.max() - ids
    panels = [("sampling mass", masses[drawable], "log")]
    if buffer.draw_record is not None:
        panels.append(("draws since it was stored", buffer.draw_record.counts(ids), "linear"))

    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    groups = np.array_split(np.argsort(-ages), min(n_bins, len(ages)))  # oldest first
    middles = [float(np.mean(ages[group])) for group in groups]
    for axis, (title, values, scale) in zip(axes, panels, strict=True):
        quantiles = np.array([np.quantile(values[group], (0.05, 0.25, 0.5, 0.75, 0.95)) for group in groups])
        axis.plot(middles, quantiles[:, 2], color="C0", label="median")
        for low, high, alpha, label in ((1, 3, 0.4, "half of the transitions"), (0, 4, 0.2, "90% of them")):
            band = (quantiles[:, low], quantiles[:, high])
            axis.fill_between(middles, *band, color="C0", alpha=alpha, linewidth=0, label=label)
        axis.set(xlabel="age (transitions added since)", ylabel=title, yscale=scale)
        axis.legend()
    return figure
