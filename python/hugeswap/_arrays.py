"""Numpy arrays in mappings of their own: they begin at a page, are told what to do with, and are gone at once.

Plain arrays are managed as well (numpy gets large ones from ``malloc``, which maps them); these are for advice,
which concerns whole pages.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

if TYPE_CHECKING:
    import numpy
    import numpy.typing

Shape = Union[int, Tuple[int, ...]]

# What madvise(2) may be told of memory whose content counts (MADV_DONTNEED and MADV_FREE, which destroy it, are not
# among them).
_ADVICE = {
    "normal": 0,
    "random": 1,
    "sequential": 2,
    "willneed": 3,
    "hugepage": 14,
    "nohugepage": 15,
    "cold": 20,
    "pageout": 21,
    "populate_read": 22,
    "populate_write": 23,
}


def empty(shape: Shape, dtype: Any = float) -> "numpy.ndarray":
    """An array in a mapping of its own, which is unmapped with the last array that looks into it.

    The same as :func:`zeros`: new memory is zero, and takes no room before it is written.
    """
    return zeros(shape, dtype)


def zeros(shape: Shape, dtype: Any = float) -> "numpy.ndarray":
    """An array of zeros in a mapping of its own, which is unmapped with the last array that looks into it.

    Raises MemoryError where the kernel has no room for it, TypeError for types that hold Python objects.
    """
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"{kind} holds Python objects, which cannot be in such memory")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = kind.itemsize
    for n in shape:
        if n < 0:
            raise ValueError("negative dimensions are not allowed")
        size *= int(n)
    if size == 0:
        return numpy.zeros(shape, kind)
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as e:
        raise MemoryError(f"there is no room for an array of {size} bytes") from e
    return numpy.frombuffer(memory, dtype=kind).reshape(shape)


def array(data: Any, dtype: Any = None) -> "numpy.ndarray":
    """A copy of ``data`` in a mapping of its own: see :func:`zeros`."""
    import numpy

    data = numpy.asarray(data, dtype)
    copy = zeros(data.shape, data.dtype)
    copy[...] = data
    return copy


def from_file(
    path: "Union[str, os.PathLike[str]]",
    dtype: Any = float,
    shape: Optional[Shape] = None,
    *,
    offset: int = 0,
) -> "numpy.ndarray":
    """What is in a file, from byte ``offset`` on, as an array in a mapping of its own: see :func:`zeros`.

    Without ``shape`` it has all that there is, which must be whole items. Raises ValueError if the file has
    less than ``shape`` takes. (``numpy.memmap`` maps the file itself: such memory is the kernel's.)
    """
    import numpy

    kind = numpy.dtype(dtype)
    with open(path, "rb", buffering=0) as file:
        there = os.fstat(file.fileno()).st_size - offset
        if shape is None:
            if there < 0 or there % kind.itemsize:
                raise ValueError(f"{os.fspath(path)}: {there} bytes from {offset} on are no whole items of {kind.itemsize}")
            shape = there // kind.itemsize
        into = zeros(shape, kind)
        if into.nbytes > there:
            raise ValueError(f"{os.fspath(path)}: there are {there} bytes from {offset} on, and {into.nbytes} are wanted")
        file.seek(offset)
        rest = memoryview(into.reshape(-1).view(numpy.uint8))
        while rest:
            # In pieces, so that it can be interrupted.
            n = file.readinto(rest[: 64 << 20])
            if not n:
                raise ValueError(f"{os.fspath(path)}: it became shorter while it was read")
            rest = rest[n:]
    return into


def advise(what: Any, advice: str) -> None:
    """Tells how an array, or anything else with a buffer, will be used: advice of madvise(2), in lower case.

    ``"willneed"`` has it brought in, ``"pageout"`` and ``"cold"`` have it leave (first), ``"sequential"`` and
    ``"random"`` say how it is gone through, ``"normal"`` takes that back, ``"hugepage"`` and ``"nohugepage"``,
    ``"populate_read"`` and ``"populate_write"`` are as in madvise(2). Its content stays. It concerns the whole pages in it: a small one
    has none, and nothing is done. Raises ValueError for other words or a buffer with gaps, OSError where madvise fails.
    """
    if advice not in _ADVICE:
        raise ValueError(f"no advice is called {advice!r}: there are {', '.join(_ADVICE)}")
    import numpy

    # (Not every array has a buffer: those of dates have none.)
    what = numpy.asarray(what if hasattr(what, "__array_interface__") else memoryview(what))
    if not what.flags.forc:
        raise ValueError("only what lies in one piece can be advised: advise the array that it is a part of")
    start, size = what.ctypes.data, what.nbytes
    page = mmap.PAGESIZE
    first, end = -(-start // page) * page, (start + size) // page * page
    if end <= first:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(_ADVICE[advice])) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"madvise: {os.strerror(error)}")
