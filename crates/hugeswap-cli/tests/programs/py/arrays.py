"""numpy: arithmetic, sorting, matrices, views, in-place work on arrays that do not fit."""

import numpy as np

from common import show

n = 2_000_000  # 16 MB an array
a = np.arange(n, dtype=np.float64)
b = np.sqrt(a) * 3.0 + 1.0
a *= 0.5
show("a*b", a * b - b)
show("where", np.where(a > b, a, b))
c = np.concatenate([a[::2], b[1::2]])
show("concatenate", c)
c.sort()
show("sort", c)
show("cumsum", np.cumsum(b))
r = np.random.default_rng(7)
x = r.integers(0, 1 << 60, 1_500_000)
show("random", x)
order = np.argsort(x, kind="stable")
show("argsort", x[order])
m = r.standard_normal((700, 700))
# Threads of a linear algebra library may sum in another order: whole numbers have one sum.
w = np.floor(m * 8)
show("matmul", w @ w.T)
t = np.ascontiguousarray(b[: 1000 * 2000].reshape(1000, 2000).T)
show("transpose", t)
s = np.array([b"%d" % i for i in range(75_000)])
show("strings", np.sort(s))
grown = []
for i in range(20):
    grown.append(np.full(150_000, i, dtype=np.int64))
show("vstack", np.vstack(grown))
big = bytearray()
for i in range(15):
    big += b"%d" % i * 200_000
show("bytearray", big)
text = "".join(str(i) for i in range(750_000))
show("text", text)
show("replace", text.replace("12", "hugeswap"))
numbers = list(range(1_500_000))
print(sum(numbers[::-3]), len(set(numbers[:500_000])))
