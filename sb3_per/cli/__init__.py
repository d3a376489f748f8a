"""The command line ``sb3-per``."""
