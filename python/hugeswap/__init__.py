"""Memory beyond what a program may have: what of it is not in use is in swap, in user space.

A part of a program within a budget::

    import hugeswap

    with hugeswap.limit("2G", swap="/mnt/fast"):
        ...

Or all of it, by the command ``hugeswap``, which this package brings::

    hugeswap run --memory 2G -- python3 job.py

A program that is in a budget can look at its own pool, and change it. The functions for that start the
command, and take some milliseconds.
"""

from ._arrays import advise, array, empty, from_file, zeros
from ._command import HugeswapError, command, set_memory, stats
from ._limit import is_managed, limit

__all__ = [
    "HugeswapError",
    "advise",
    "array",
    "command",
    "empty",
    "from_file",
    "is_managed",
    "limit",
    "set_memory",
    "stats",
    "zeros",
]


def load_ipython_extension(ipython: object) -> None:
    """What ``%load_ext hugeswap`` calls: notebooks have ``%%hugeswap`` then."""
    from ._magic import load

    load(ipython)
