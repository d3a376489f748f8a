"""Settings of the tests of actors."""

import pytest
import torch as th


@pytest.fixture(autouse=True)
def one_thread():
    """Let learners compute with one thread, as actors do: rounding may depend on the number of threads."""
    n_threads = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(n_threads)
