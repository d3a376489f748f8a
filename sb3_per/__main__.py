"""``python -m sb3_per COMMAND``: the command ``sb3-per`` where its folder is not on the path."""

import sys

from sb3_per.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
