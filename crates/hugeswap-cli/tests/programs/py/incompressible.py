"""Data that do not compress: it says "ready" when they are there, reads a line, and reads all of them again
for some seconds."""

import os
import time
import zlib

PIECE = 1 << 20
data = bytearray(160 << 20)
view = memoryview(data)
for at in range(0, len(data), PIECE):
    view[at : at + PIECE] = os.urandom(PIECE)
wanted = zlib.crc32(data)
print("ready", flush=True)
input()
until = time.monotonic() + 4
while time.monotonic() < until:
    assert zlib.crc32(data) == wanted
print("end", flush=True)
