"""Settings of JAX: compiling takes nearly all of the time of these tests, and unoptimized code takes half of that."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
