"""Processes: children that read and change the parent's arrays, programs started from it, pools of workers."""

import multiprocessing
import os
import subprocess
import sys
import zlib

import numpy as np

from common import show

a = np.arange(6_000_000, dtype=np.int64) * 7  # 48 MB
b = np.ones(4_000_000, dtype=np.int64)


def in_child(work):
    """What `work` returns (0 to 255), computed by a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 254
        try:
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def checksum():
    return zlib.crc32(a) % 199


def change():
    a[::3] += 1
    b[:] = a[: len(b)]
    return zlib.crc32(b) % 199


def part(i):
    return zlib.crc32(a[i * 500_000 : (i + 1) * 500_000])


def echo(x):
    return x * 2


if __name__ == "__main__":
    print("child", in_child(checksum), checksum())
    print("child that changes", in_child(change))
    show("parent's own", a)
    show("parent's own", b)
    a[5::1000] = -1
    print("child again", in_child(checksum), checksum())
    print("grandchild", in_child(lambda: in_child(change)))
    show("parent's own", a)

    print(subprocess.run(["sh", "-c", "echo out; exit 3"], capture_output=True))
    data = a[:1_000_000].tobytes()  # 8 MB through two pipes
    done = subprocess.run(["cat"], input=data, capture_output=True, check=True)
    show("cat", done.stdout)
    code = "import sys,zlib; print(zlib.crc32(sys.stdin.buffer.read()))"
    print(subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout)
    print(subprocess.call(["true"]), subprocess.getoutput("echo shell"))
    print(os.system("exit 5") >> 8)

    fork = multiprocessing.get_context("fork")
    with fork.Pool(2) as pool:
        print("pool", pool.map(part, range(12)))
        for out in pool.map(echo, [a[i : i + 600_000] for i in range(3)]):  # 4.8 MB each way
            show("through the pool", out)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        show("spawned", pool.apply(echo, (b[:500_000],)))
    show("at the end", a)
