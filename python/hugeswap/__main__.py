"""``python -m hugeswap``: the command."""

import os
import sys

from . import command

if __name__ == "__main__":
    path = command()
    os.execv(path, [path, *sys.argv[1:]])
