"""A sparse matrix of 2 million rows, made and multiplied five times; argument: millions of entries."""

import sys

import numpy as np
import scipy.sparse

n, entries = 2_000_000, int(float(sys.argv[1]) * 1e6)
r = np.random.default_rng(1)
places = (r.integers(0, n, entries, dtype=np.int32), r.integers(0, n, entries, dtype=np.int32))
m = scipy.sparse.csr_matrix((r.random(entries), places), shape=(n, n))
v = np.ones(n)
for _ in range(5):
    v = m @ v
    v /= np.linalg.norm(v)
print("%.9f" % v.sum())
