"""Data of other libraries, and of earlier runs."""
