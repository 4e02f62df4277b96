"""multiprocessing.shared_memory: one process makes it, workers find it by its name, change it, and send parts of it to each other."""

import sys
from multiprocessing import get_context, shared_memory

import numpy

from common import show

MIB = 1 << 20
SIZE = 80 * MIB
WORKERS = 4


def work(name, number, turns):
    memory = shared_memory.SharedMemory(name=name)
    words = numpy.ndarray((memory.size // 8,), dtype=numpy.uint64, buffer=memory.buf)
    part = len(words) // WORKERS
    for turn in range(2):
        # Each changes a part of its own, from what another one has made of it in the turn before.
        mine = (number + turn) % WORKERS
        piece = words[mine * part : (mine + 1) * part]
        numpy.multiply(piece, 0x9E3779B97F4A7C15, out=piece)
        numpy.add(piece, number + 1, out=piece)
        turns.wait()
    del words, piece
    memory.close()


def main(how):
    context = get_context(how)
    memory = shared_memory.SharedMemory(create=True, size=SIZE)
    words = numpy.ndarray((SIZE // 8,), dtype=numpy.uint64, buffer=memory.buf)
    assert memory.size == SIZE and not words.any()
    words[:] = numpy.arange(SIZE // 8, dtype=numpy.uint64)
    turns = context.Barrier(WORKERS)
    workers = [context.Process(target=work, args=(memory.name, i, turns)) for i in range(WORKERS)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
        assert w.exitcode == 0, w.exitcode
    show("words", words)
    # A second time in the same process.
    again = shared_memory.SharedMemory(name=memory.name)
    show("again", again.buf)
    again.buf[5] ^= 255
    assert memory.buf[5] == again.buf[5]
    again.close()
    del words
    memory.close()
    last = shared_memory.SharedMemory(name=memory.name)
    show("kept by its name", last.buf)
    last.close()
    last.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
