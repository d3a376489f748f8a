"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# Kernels are compiled at their first call, and the machines are shared: time says nothing here.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
