"""Memory beyond what a program may have: what of it is not in use is in swap, in user space.

The work is done by the command ``hugeswap``, which this package brings::

    hugeswap run --memory 2G -- python3 job.py

A program that runs so can look at its own pool, and change it, by the functions of this module. They
start the command, and take some milliseconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Dict, Optional, Union

__all__ = ["HugeswapError", "command", "is_managed", "set_memory", "stats"]


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


def is_managed() -> bool:
    """Does this process run under ``hugeswap run``, or was it started by one that does?

    (A process that was attached later does not know it.)
    """
    return "HUGESWAP_POOL" in os.environ


def stats(pid: Optional[int] = None) -> Dict[str, Any]:
    """The figures of the pool of a process (default: this one), as ``hugeswap stat --json`` prints them.

    Sizes are in bytes, times in seconds unless the name says otherwise; ``hugeswap explain NAME`` says
    what a figure is. Raises HugeswapError if the process has no pool.
    """
    return json.loads(_run("stat", "--json", pid=pid))


def set_memory(size: Union[int, str], pid: Optional[int] = None) -> None:
    """Changes the budget of the pool of a process (default: this one): bytes, or a string as ``"800M"``.

    Returns when what was above it has left. Raises HugeswapError if it cannot be.
    """
    _run("ctl", "memory", str(size), pid=pid)


def _run(*args: str, pid: Optional[int]) -> str:
    pool = ["--pool", str(os.getpid() if pid is None else pid)]
    done = subprocess.run(
        [command(), *args, *pool],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise HugeswapError(said.replace("hugeswap: ", "", 1))
    return done.stdout
