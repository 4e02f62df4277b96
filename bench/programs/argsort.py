"""Sorts random numbers by their indices; argument: millions of them. Needs 32 bytes each."""

import sys

import numpy as np

n = int(float(sys.argv[1]) * 1e6)
x = np.random.default_rng(1).random(n)
i = np.argsort(x)
y = x[i]
print(bool((np.diff(y) >= 0).all()), int(i[n // 2]))
