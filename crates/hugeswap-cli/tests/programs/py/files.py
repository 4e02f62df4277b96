"""Arrays and buffers to files and back: numpy's ways, pickle, and plain reads and writes of 100 MB."""

import io
import mmap
import os
import pickle
import sys

import numpy as np

from common import show

os.chdir(sys.argv[1])
a = np.arange(12_500_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # 100 MB
np.save("a.npy", a)
show("load", np.load("a.npy"))
mapped = np.load("a.npy", mmap_mode="r")
print(int(mapped[::4099].sum() & np.uint64((1 << 60) - 1)))
del mapped
a.tofile("a.raw")
show("fromfile", np.fromfile("a.raw", dtype=np.uint64))
os.unlink("a.npy")
with open("p", "wb") as f:
    pickle.dump({"a": a, "again": a[:1000], "list": list(range(100_000))}, f, protocol=5)
with open("p", "rb") as f:
    back = pickle.load(f)
show("pickle", back["a"])
print(len(back["list"]), back["list"][-1])
del back
os.unlink("p")
text = pickle.dumps(a[:3_000_000], protocol=2)
show("dumps", text)
show("loads", pickle.loads(text))
del text

with open("a.raw", "rb") as f:
    whole = f.read()
show("read", whole)
del whole
buffer = bytearray(os.path.getsize("a.raw"))
with open("a.raw", "rb", buffering=0) as f:
    view, at = memoryview(buffer), 0
    while at < len(buffer):
        at += f.readinto(view[at : at + 18_500_001])
show("readinto", buffer)
with open("b.raw", "wb", buffering=0) as f:
    view, at = memoryview(buffer), 0
    while at < len(view):
        at += f.write(view[at:])
print(os.path.getsize("b.raw"))
del view, buffer
with open("b.raw", "r+b", buffering=4 << 20) as f:
    f.seek(25_000_003)
    piece = f.read(10_000_000)
    f.seek(1_000_001)
    f.write(piece)
with open("b.raw", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    show("mmap", m[500_000:15_000_000])
with mmap.mmap(-1, 32 << 20) as m:
    m[5 << 20 : 15 << 20] = piece.ljust(10 << 20, b".")
    m.move(0, 6 << 20, 8 << 20)
    show("anonymous mmap", m[:])
memory = io.BytesIO()
for i in range(20):
    memory.write(piece[i : i + 1_500_000])
show("BytesIO", memory.getbuffer())
np.savez("z.npz", a=a[:2_000_000], b=np.arange(1_000_000))
with np.load("z.npz") as z:
    show("savez", z["a"])
    show("savez", z["b"])
