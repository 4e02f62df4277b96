"""A budget for a part of a program: the command attaches this process, and gives it back at the end."""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import subprocess
import threading
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

from ._command import HugeswapError, Size, command, message, run, set_memory, stats

Swap = Union[str, "os.PathLike[str]"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# From linux/prctl.h.
_PR_SET_PTRACER = 0x59616D61

# The limits that were begun, the first one first: each is undone once it has ended, and all that were begun since. Changed under
# the lock. (A forked child has those of its parent among them, and ends none of these.)
_lock = threading.RLock()
_limits: List["limit"] = []


def is_managed() -> bool:
    """Is memory of this process managed: by ``hugeswap run``, which started it or a process that started
    it, or by a :class:`limit` of its own?

    (A process that somebody else has attached does not know it.)
    """
    return "HUGESWAP_POOL" in os.environ or bool(_limits)


class limit:
    """Keeps the memory of this process within a budget, for a ``with`` block, a function, or until ``stop()``.

    What is not in use beyond ``memory`` goes to swap and comes back when it is touched::

        with hugeswap.limit("2G", swap="/mnt/fast"):
            a = numpy.random.rand(600_000_000)      # 4.8 GB
            a.sort()

    Everything that the process allocates in it is managed in whole pieces of 2 MiB, by whatever library, and so
    is what it had before, but not stacks, shared memory and files. All threads are affected; forked children share the budget.
    Under ``hugeswap run``, or within another limit, the budget that there is becomes smaller for the time. Threads may begin
    and end limits in any order: the memory is given back with the last one.

    ``memory`` and ``total`` are bytes or strings as ``"800M"``: ``memory`` is for what is managed, ``total`` for
    all memory of the process. Without either, the limit of the container counts, or what the machine has available.
    ``swap`` is one place or several: directories, files, ``"mem"`` (compressed memory), as for ``hugeswap run``.
    ``encrypt`` encrypts what goes to swap. ``settings`` are those of ``hugeswap run --set``.

    It takes 0.1 s to begin and 0.2 s to end, and system calls some 2 us longer meanwhile. Needs Linux 5.11, and
    ptrace of a child, which Docker's profile permits. Raises HugeswapError with what the command says.

    When it ends, what is in swap comes back, so there must be room for what still exists: else it stays in
    force, and a RuntimeWarning says so. ``report`` has the figures of the whole time then, as
    ``hugeswap run --report json`` prints them (``None`` within another budget).
    """

    report: Optional[Dict[str, Any]]

    def __init__(
        self,
        memory: Optional[Size] = None,
        *,
        total: Optional[Size] = None,
        swap: Union[None, Swap, Sequence[Swap]] = None,
        encrypt: bool = False,
        settings: Optional[Mapping[str, object]] = None,
    ) -> None:
        if memory is not None and total is not None:
            raise ValueError("either memory or total can be limited, not both")
        self._options: List[str] = []
        if encrypt:
            self._options.append("--encrypt")
        places = [swap] if isinstance(swap, (str, os.PathLike)) else swap or []
        for place in places:
            self._options += ["--swap", os.fspath(place)]
        for name, value in (settings or {}).items():
            value = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
            self._options += ["--set", f"{name}={value}"]
        self._memory, self._total = memory, total
        # The process that has begun it; None: nobody has.
        self._pid: Optional[int] = None
        self._has_ended = False
        self._attach: Optional[subprocess.Popen] = None
        self._before: Optional[int] = None
        self.report = None

    def __enter__(self) -> "limit":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: _Function) -> _Function:
        """Has each call of a function keep to this limit: ``@hugeswap.limit("2G")``."""

        @functools.wraps(function)
        def limited(*args: Any, **named: Any) -> Any:
            # One of its own for each: it may call itself, or be called by several threads.
            own = limit(self._memory, total=self._total)
            own._options = self._options
            with own:
                return function(*args, **named)

        return limited  # type: ignore[return-value]

    def start(self) -> None:
        """Begins; for where ``with`` does not fit."""
        with _lock:
            if self._pid == os.getpid():
                raise HugeswapError("this limit is in force already")
            if is_managed():
                self._lower()
            else:
                self._attach_me()
            self._pid, self._has_ended = os.getpid(), False
            _limits.append(self)

    def stop(self) -> None:
        """Ends what ``start`` began: in the process that began it, and once; else it does nothing."""
        with _lock:
            if self._pid != os.getpid():
                return
            self._has_ended = True
            while _limits and _limits[-1]._has_ended and _limits[-1]._pid == os.getpid():
                if not _limits[-1]._undo():
                    _limits[-1]._has_ended = False
                    return
                _limits.pop()._pid = None

    def stats(self) -> Dict[str, Any]:
        """The figures of this process' pool: see :func:`hugeswap.stats`."""
        return stats()

    def _lower(self) -> None:
        """Within a budget: it becomes this one if that is less."""
        if self._total is not None:
            raise HugeswapError("total: this process has a budget already, of which only memory can be made less")
        if self._options:
            raise HugeswapError("swap, encrypt, settings: this process has a budget already, and uses what that was given")
        self._before = None
        if self._memory is None:
            return
        before = stats()["memory_bytes"]
        set_memory(self._memory)
        # (The command knows what a size is.)
        if stats()["memory_bytes"] > before:
            set_memory(before)
        else:
            self._before = before

    def _undo(self) -> bool:
        """False: it stays in force."""
        if self._attach is not None:
            return self._detach_me()
        if self._before is not None:
            set_memory(self._before)
        return True

    def _attach_me(self) -> None:
        args = [command(), "attach", str(os.getpid()), "--quiet", "--report", "json", *self._options]
        args += ["--memory", str(self._memory)] if self._memory is not None else []
        args += ["--total", str(self._total)] if self._total is not None else []
        # A process that has little memory gets some that can be managed, or there would be nothing to attach.
        some = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        reads, writes = os.pipe()
        self._said, self._report = (open(os.memfd_create(name), "w+b") for name in ("said", "report"))
        args += ["--report-file", f"/proc/self/fd/{self._report.fileno()}"]
        args += ["--ready-fd", str(writes)]
        try:
            _let_children_trace(True)
            # In a session of its own, so that Ctrl-C in a terminal is for the program alone.
            self._attach = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[writes, self._report.fileno()],
                start_new_session=True,
            )
            os.close(writes)
            writes = -1
            is_ready = os.read(reads, 1) != b""
            if not is_ready:
                self._attach.wait()
                self._attach = None
                raise HugeswapError(self._last_words())
        except BaseException:
            # Interrupted (Ctrl-C): what was begun is taken back.
            if self._attach is not None:
                self._attach.terminate()
                self._attach.wait()
                self._attach = None
            raise
        finally:
            _let_children_trace(False)
            os.close(reads)
            if writes >= 0:
                os.close(writes)
            some.close()

    def _detach_me(self) -> bool:
        """Has the memory given back; whether it was."""
        assert self._attach is not None
        try:
            _let_children_trace(True)
            run("detach", str(os.getpid()))
        except HugeswapError as e:
            warnings.warn(f"the limit stays in force: {e}", RuntimeWarning, stacklevel=4)
            return False
        finally:
            _let_children_trace(False)
        self._attach.wait()
        self._attach = None
        with self._said, self._report:
            self._report.seek(0)
            self.report = json.load(self._report)
        return True

    def _last_words(self) -> str:
        with self._said, self._report:
            self._said.seek(0)
            return message(self._said.read().decode(errors="replace"))


def _let_children_trace(allow: bool) -> None:
    """Where Yama restricts ptrace to ancestors: descendants of this process may trace it, or none."""
    libc = ctypes.CDLL(None)
    # (Fails where there is no Yama, and so nothing to allow.)
    pid = ctypes.c_ulong(os.getpid() if allow else 0)
    libc.prctl(_PR_SET_PTRACER, pid, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
