"""Run the command ``sb3-per`` as ``python -m sb3_per``."""

import sys

from sb3_per.cli.main import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m sb3_per"))
