"""Recurrent algorithms: networks, policies, and training on windows."""
