"""Arrays and objects that are there when the program is attached: it says "ready" and "half" and reads a
line after each, and uses them with threads, children and files."""

import os
import subprocess
import sys
import threading
from array import array

WORDS = 6 << 20
words = array("Q", range(WORDS))
wanted = sum(words)
names = {i: f"name {i} " * 4 for i in range(100_000)}
over = threading.Event()


def beat():
    while not over.wait(0.005):
        with open("/dev/null", "w") as sink:
            sink.write(str(os.getpid()))


def work():
    assert sum(words) == wanted
    assert all(names[i] == f"name {i} " * 4 for i in range(0, len(names), 3))
    with open("words", "wb") as file:
        words.tofile(file)
    again = array("Q")
    with open("words", "rb") as file:
        again.fromfile(file, WORDS)
    assert again == words
    assert subprocess.run(["tr", "a-z", "A-Z"], input=b"hello", capture_output=True, check=True).stdout == b"HELLO"
    child = os.fork()
    if child == 0:
        os._exit(9 if sum(words) == wanted else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for i in range(0, len(names), 5):
        names[i] = f"name {i} " * 4


beats = threading.Thread(target=beat)
beats.start()
for said in "ready", "half":
    print(said, flush=True)
    sys.stdin.readline()
    work()
over.set()
beats.join()
print("end")
