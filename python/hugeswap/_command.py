"""The command that does the work, and what it says of the pool of a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Dict, Optional, Union

Size = Union[int, str]


class HugeswapError(RuntimeError):
    """The command failed; the message is what it said."""


def command() -> str:
    """The path of the command: the one that was installed with this package, or the first in PATH.

    Raises FileNotFoundError if there is none.
    """
    for where in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")):
        path = os.path.join(where, "hugeswap")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("hugeswap")
    if found is None:
        raise FileNotFoundError("the command hugeswap is not installed: pip install hugeswap")
    return found


def stats(pid: Optional[int] = None) -> Dict[str, Any]:
    """The figures of the pool of a process (default: this one), as ``hugeswap stat --json`` prints them.

    Sizes are in bytes, times in seconds unless the name says otherwise; ``hugeswap explain NAME`` says
    what a figure is. Raises HugeswapError if the process has no pool.
    """
    return json.loads(run("stat", "--json", *_pool(pid)))


def set_memory(size: Size, pid: Optional[int] = None) -> None:
    """Changes the budget of the pool of a process (default: this one): bytes, or a string as ``"800M"``.

    Returns when what was above it has left. Raises HugeswapError if it cannot be.
    """
    run("ctl", "memory", str(size), *_pool(pid))


def run(*args: str) -> str:
    """What the command prints; raises HugeswapError with what it says where it fails."""
    done = subprocess.run(
        [command(), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise HugeswapError(message(done.stderr or done.stdout))
    return done.stdout


def message(said: str) -> str:
    """What the command said, without its name: its last line, which is the error."""
    lines = said.strip().splitlines() or ["it ended without a word"]
    return lines[-1].replace("hugeswap: ", "", 1)


def _pool(pid: Optional[int]) -> "tuple[str, str]":
    return ("--pool", str(os.getpid() if pid is None else pid))
