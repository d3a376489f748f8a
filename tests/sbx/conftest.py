"""
Settings of JAX: compiling takes nearly all of the time of these tests, and unoptimized code takes half of that. Flags of the
user are kept, and win.
"""

import os

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}".strip()
