"""Small objects: dictionaries, lists, strings and tuples, made, sorted and given up, and threads that
make some. Nothing but the interpreter is needed."""

import hashlib
import sys
import threading

n = int(sys.argv[1])


def show(what, value):
    print(what, hashlib.sha256(repr(value).encode()).hexdigest()[:16])


words = {f"word {i * 7919 % n}": [i, str(i), (i, i + 0.5)] for i in range(n)}
show("words", list(words.items())[:: n // 1000])
for i in range(0, n, 3):
    del words[f"word {i}"]
show("sorted", sorted(words)[::1000])
trees = [{"name": k, "inside": {"of": v}} for k, v in list(words.items())[: n // 4]]
show("trees", trees[::1000])
texts = ["x" * (i % 700) for i in range(n // 4)]
show("texts", sum(map(len, texts)))
lists = [list(range(i % 300)) for i in range(n // 20)]
show("lists", sum(map(sum, lists)))

sums = [0] * 4


def work(k):
    held = {}
    for i in range(n // 8):
        held[i * k % 5000] = [i] * (i % 120)
    sums[k] = sum(len(v) for v in held.values())


threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
show("threads", sums)
