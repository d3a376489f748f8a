"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# No deadline: kernels are compiled at their first call, and machines are shared, so times show nothing.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
