"""``%%hugeswap`` for notebooks: runs a cell in a limit, with a bar that shows where its memory is.

IPython, "Defining custom magics", says what magics are.
"""

from __future__ import annotations

import argparse
import html
import shlex
import threading
from typing import Any, Dict, Optional

from ._command import HugeswapError, stats
from ._limit import limit

# A second has several pictures, and a figure costs some milliseconds.
_INTERVAL = 0.5

# Colours that differ in light and in dark themes, and for those who do not see all of them.
_MEMORY, _SWAP, _FREE = "#0072b2", "#e69f00", "#8884"


class Bar:
    """Where the memory of this process is: a bar for notebooks, a line elsewhere."""

    def __init__(self, figures: Optional[Dict[str, Any]] = None, note: str = "") -> None:
        f = figures or {}
        self.budget = f.get("memory_bytes", 0)
        self.resident = f.get("resident_bytes", 0)
        self.swapped = f.get("swap_used_bytes", 0)
        self.note = note

    def __repr__(self) -> str:
        text = f"{_size(self.resident)} in memory of {_size(self.budget)}, {_size(self.swapped)} in swap"
        return f"{text}; {self.note}" if self.note else text

    def _repr_html_(self) -> str:
        whole = max(self.budget, self.resident) + self.swapped or 1
        parts = [(_MEMORY, self.resident), (_FREE, max(self.budget - self.resident, 0)), (_SWAP, self.swapped)]
        bar = "".join(
            f'<span style="display:inline-block;height:100%;width:{100 * n / whole:.2f}%;background:{colour}"></span>'
            for colour, n in parts
        )
        return (
            f'<div role="img" aria-label="{html.escape(repr(self))}" style="max-width:40em">'
            f'<div style="height:0.8em;border-radius:0.2em;overflow:hidden;font-size:1em;line-height:0">{bar}</div>'
            f'<small><span style="color:{_MEMORY}">&#9632;</span> {_size(self.resident)} in memory of {_size(self.budget)} '
            f'&ensp;<span style="color:{_SWAP}">&#9632;</span> {_size(self.swapped)} in swap'
            f"{'&ensp;' + html.escape(self.note) if self.note else ''}</small></div>"
        )


def _size(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"


class _Usage(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise _Usage(f"{message} (%%hugeswap --help tells more)")


def _parser() -> argparse.ArgumentParser:
    p = _Parser(
        prog="%%hugeswap",
        description="Runs a cell with its memory, and that of the notebook, within a budget; the rest is in swap meanwhile.",
        epilog="example: %%hugeswap 2G --swap /mnt/fast",
    )
    p.add_argument("memory", nargs="?", help="memory that is managed: 800M, 2G [default: the container's limit, or what there is]")
    p.add_argument("--total", help="limit for all memory of the notebook, managed or not")
    p.add_argument("--swap", action="append", help="where swap goes; may be repeated (as for hugeswap run)")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting; may be repeated")
    p.add_argument("--quiet", action="store_true", help="no bar")
    return p


def hugeswap(line: str, cell: str) -> None:
    """The magic; ``%%hugeswap --help`` says what it takes."""
    from IPython import get_ipython
    from IPython.display import display

    try:
        given = _parser().parse_args(shlex.split(line))
    except SystemExit:
        # (It has printed its help.)
        return
    except (_Usage, ValueError) as e:
        raise HugeswapError(str(e)) from None
    settings = {}
    for s in given.set:
        name, equals, value = s.partition("=")
        if not equals:
            raise HugeswapError(f"--set {s}: KEY=VALUE is wanted")
        settings[name] = value
    within = limit(given.memory, total=given.total, swap=given.swap, settings=settings)
    done = threading.Event()
    with within:
        handle = None if given.quiet else display(Bar(stats()), display_id=True)

        def show() -> None:
            while not done.wait(_INTERVAL):
                try:
                    handle.update(Bar(stats()))
                except HugeswapError:
                    return

        showing = threading.Thread(target=show, name="hugeswap-bar", daemon=True)
        if handle is not None:
            showing.start()
        try:
            get_ipython().run_cell(cell).raise_error()
        finally:
            done.set()
            if handle is not None:
                showing.join()
                last = stats()
    if handle is not None:
        note = ""
        if within.report is not None:
            r = within.report
            note = f"{_size(r['swapped_out_bytes'])} went to swap, {_size(r['swapped_in_bytes'])} came back"
        handle.update(Bar(last, note))


def load(ipython: Any) -> None:
    """Registers the magic: ``%load_ext hugeswap``."""
    ipython.register_magic_function(hugeswap, magic_kind="cell", magic_name="hugeswap")
