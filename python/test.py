"""Tries the module as a user would, where numpy is installed: `python test.py` (.ci/wheel does). What needs IPython is skipped,
and that is said, where there is none."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings

import numpy

import hugeswap

MIB = 1 << 20
SWAP = os.environ.get("TMPDIR", "/var/tmp")


def check(what, *about):
    if not what:
        raise SystemExit(f"line {sys._getframe(1).f_lineno}: {about}")


def fails(kind, what, function, *args, **named):
    try:
        function(*args, **named)
    except kind as e:
        check(what in str(e) and "\n" not in str(e), e)
    else:
        raise SystemExit(f"line {sys._getframe(1).f_lineno}: no {kind.__name__}")


def a_part_of_a_program():
    before = numpy.arange(8 * MIB)
    check(not hugeswap.is_managed())
    fails(hugeswap.HugeswapError, "belongs to no pool", hugeswap.stats)
    with hugeswap.limit("64MiB", swap=SWAP) as within:
        check(hugeswap.is_managed())
        made = numpy.random.default_rng(1).random(20 * MIB)
        total = made.sum()
        made.sort()
        figures = within.stats()
        check(figures["memory_bytes"] == 64 * MIB and figures["resident_bytes"] <= 64 * MIB, figures)
        check(figures["swap_used_bytes"] > 64 * MIB, figures)
        check(abs(made.sum() - total) < 1e-3 and (made[1:] >= made[:-1]).all())
        check((before == numpy.arange(8 * MIB)).all())
        # What the kernel is given by address, other programs, threads, files.
        with tempfile.TemporaryFile() as file:
            made.tofile(file)
            file.seek(0)
            check((numpy.fromfile(file) == made).all())
        shout = subprocess.run(["tr", "a-z", "A-Z"], input=b"hello", stdout=subprocess.PIPE, check=True)
        check(shout.stdout == b"HELLO")
        sums = []
        threads = [threading.Thread(target=lambda: sums.append(made.sum())) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        check(len(set(sums)) == 1 and len(sums) == 4)
        child = os.fork()
        if child == 0:
            within.stop()
            os._exit(7 if made.sum() == sums[0] and hugeswap.is_managed() else 1)
        check(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7)
        fails(hugeswap.HugeswapError, "in force already", within.start)
    check(not hugeswap.is_managed())
    check(made.sum() == sums[0] and (before == numpy.arange(8 * MIB)).all())
    report = within.report
    check(report["given_back"] and report["memory_bytes"] == 64 * MIB and report["swapped_out_bytes"] > 64 * MIB, report)
    check(report["peak_resident_bytes"] <= 64 * MIB, report)
    with open("/proc/self/maps") as maps:
        check("hugeswap" not in maps.read())


def without_a_disk():
    kept = numpy.arange(16 * MIB) // 512
    with hugeswap.limit(96 * MIB, swap=["mem"], settings={"zswap.enabled": "always", "swap.poll": True}):
        check((kept == numpy.arange(16 * MIB) // 512).all())
        check(hugeswap.stats()["zswap_bytes"] > 0)
    check((kept[::512] == numpy.arange(16 * MIB)[::512] // 512).all())


def threads_that_start_programs():
    """Children that share memory until they execute something (vfork), and threads that wait while limits end."""
    kept = numpy.arange(20 * MIB)
    over, wrong, started = threading.Event(), [], [0] * 4

    def work(i):
        while not over.is_set():
            done = subprocess.run(["sh", "-c", "exit $STATUS"], env={"STATUS": str(20 + i)}, stdout=subprocess.PIPE)
            started[i] += 1
            if done.returncode != 20 + i:
                wrong.append(done)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    try:
        for _ in range(6):
            # Each must leave nothing behind, or the next one is refused.
            with hugeswap.limit("64M", swap=SWAP, settings={"debug.storm": 50}):
                check((kept[::512] == numpy.arange(20 * MIB)[::512]).all())
    finally:
        over.set()
        [t.join() for t in threads]
    check(not wrong and min(started) > 0, wrong[:3], started)
    check((kept == numpy.arange(20 * MIB)).all())


def one_in_another():
    @hugeswap.limit("48M")
    def inner(depth):
        check(hugeswap.stats()["memory_bytes"] == 48 * MIB)
        return depth if depth == 0 else inner(depth - 1)

    threads = [threading.Thread(target=inner, args=(1,)) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check(not hugeswap.is_managed())
    with hugeswap.limit("96M", swap=SWAP):
        check(inner(1) == 0)
        check(hugeswap.stats()["memory_bytes"] == 96 * MIB)
        # More than there is: it stays what it was.
        with hugeswap.limit("1G"):
            check(hugeswap.stats()["memory_bytes"] == 96 * MIB)
        check(hugeswap.stats()["memory_bytes"] == 96 * MIB)
        # Those of threads end in any order.
        first, second = hugeswap.limit("90M"), hugeswap.limit("80M")
        first.start()
        second.start()
        first.stop()
        check(hugeswap.stats()["memory_bytes"] == 80 * MIB)
        second.stop()
        check(hugeswap.stats()["memory_bytes"] == 96 * MIB)
        fails(hugeswap.HugeswapError, "uses what that was given", hugeswap.limit("80M", swap="/tmp").start)
        fails(hugeswap.HugeswapError, "has a budget already", hugeswap.limit(total="80M").start)


def what_is_wrong():
    fails(ValueError, "not both", hugeswap.limit, "1G", total="2G")
    fails(hugeswap.HugeswapError, "'lots' is not a size", hugeswap.limit("lots").start)
    fails(hugeswap.HugeswapError, "/nowhere does not exist", hugeswap.limit("64M", swap="/nowhere").start)
    fails(hugeswap.HugeswapError, "no.such", hugeswap.limit("64M", settings={"no.such": 1}).start)
    check(not hugeswap.is_managed())
    # Nothing is left of those.
    with hugeswap.limit("64M", swap=SWAP):
        pass


def arrays():
    a = hugeswap.zeros((3, 1 << 20), "f4")
    check(a.shape == (3, 1 << 20) and a.dtype == numpy.float32 and a.flags.writeable and (a == 0).all())
    check(a.ctypes.data % 4096 == 0)
    a += 1
    b = hugeswap.array(a[1:], dtype=float)
    check(b.shape == (2, 1 << 20) and (b == 1).all() and b.dtype == float)
    check(hugeswap.empty(0).size == 0 and hugeswap.zeros((2, 0)).shape == (2, 0))
    days = hugeswap.array(numpy.arange("2026-01-01", "2026-03-01", dtype="M8[D]"))
    check(days[31] == numpy.datetime64("2026-02-01"))
    fails(TypeError, "Python objects", hugeswap.zeros, 5, object)
    fails(ValueError, "negative", hugeswap.zeros, (5, -1))
    fails(MemoryError, "no room", hugeswap.zeros, 1 << 60)
    with hugeswap.limit("32M", swap=SWAP):
        big = hugeswap.zeros(8 * MIB)
        big += 3
        for advice in "pageout", "willneed", "cold", "sequential", "random", "normal", "hugepage", "nohugepage":
            hugeswap.advise(big, advice)
        check((big == 3).all())
        hugeswap.advise(days, "pageout")
        hugeswap.advise(bytearray(5), "willneed")
        out = hugeswap.zeros(2 * MIB)
        out += 1
        hugeswap.advise(out, "pageout")
        check((out == 1).all())
    fails(ValueError, "no advice is called 'dontneed'", hugeswap.advise, big, "dontneed")
    fails(ValueError, "in one piece", hugeswap.advise, big[::2], "cold")
    with tempfile.NamedTemporaryFile() as file:
        a.tofile(file)
        file.flush()
        check((hugeswap.from_file(file.name, "f4", a.shape) == a).all())
        check((hugeswap.from_file(file.name, "f4", offset=4) == 1).all())
        check(hugeswap.from_file(file.name, "f4").size == a.size)
        fails(ValueError, "no whole items", hugeswap.from_file, file.name, "f4", offset=3)
        fails(ValueError, "are wanted", hugeswap.from_file, file.name, "f8", a.shape)
    fails(FileNotFoundError, "No such file", hugeswap.from_file, "/nowhere")


def within_a_run():
    """The same names under `hugeswap run`, whose budget there is."""
    script = """
import hugeswap, numpy
a = numpy.ones(20 << 20)
with hugeswap.limit("40M") as within:
    assert hugeswap.stats()["memory_bytes"] == 40 << 20
    assert a.sum() == 20 << 20
assert within.report is None and hugeswap.stats()["memory_bytes"] == 64 << 20
"""
    run = [hugeswap.command(), "run", "--memory", "64M", "--report", "none", "--", sys.executable, "-c", script]
    subprocess.run(run, check=True)


def not_enough_room():
    """What does not fit does not come back: the program is told, and goes on."""
    within = hugeswap.limit("64M", swap=SWAP)
    within.start()
    kept = numpy.ones(20 * MIB)
    # The command ends before its time: the worst case of all.
    within._attach.kill()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        within.stop()
    check(len(said) == 1 and "stays in force" in str(said[0].message), said)
    check(kept.sum() == 20 * MIB)


def notebooks():
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        print("skipped: %%hugeswap: IPython is not installed")
        return
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "hugeswap")
    shown = []
    shell.display_pub.publish = lambda data, *_, **__: shown.append(data)
    shell.run_cell_magic("hugeswap", f"64M --swap {SWAP}", "import numpy\nb = numpy.ones(20 << 20)\nb.sort()")
    check(shell.user_ns["b"].sum() == 20 * MIB and not hugeswap.is_managed())
    first, last = shown[0], shown[-1]
    check("of 64.0 MiB" in first["text/plain"], first)
    check(re.search(r"in swap; [\d.]+ MiB went to swap", last["text/plain"]), last)
    check(last["text/html"].startswith('<div role="img"') and "<script" not in last["text/html"], last)
    fails(hugeswap.HugeswapError, "unrecognized arguments", shell.run_cell_magic, "hugeswap", "--wrong", "1")
    fails(hugeswap.HugeswapError, "is not a size", shell.run_cell_magic, "hugeswap", "big", "1")
    shell.run_cell_magic("hugeswap", "--help", "c = 1")
    check("c" not in shell.user_ns)
    try:
        shell.run_cell_magic("hugeswap", "64M --quiet", "1 / 0")
    except ZeroDivisionError:
        check(not hugeswap.is_managed())
    else:
        raise SystemExit("the cell's error is lost")


TESTS = (
    a_part_of_a_program,
    without_a_disk,
    threads_that_start_programs,
    one_in_another,
    what_is_wrong,
    arrays,
    within_a_run,
    notebooks,
    not_enough_room,
)
for test in TESTS:
    test()
    print(f"{test.__name__}: ok", flush=True)
