"""The programs of the museum: `cases.py NAME` makes its data, does its work and prints a checksum."""

import sys


def pandas_frames(rows):
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(1)
    left = pd.DataFrame({"key": rng.permutation(rows), "a": rng.random(rows), "b": rng.random(rows)})
    right = pd.DataFrame({"key": rng.permutation(rows), "c": rng.random(rows)})
    return left, right


def pandas_merge():
    left, right = pandas_frames(4_000_000)
    both = left.merge(right, on="key")
    return len(both), float((both.a * both.c).sum().round(3))


def pandas_groupby():
    left, _ = pandas_frames(6_000_000)
    left["group"] = left.key % 1_000_003
    out = left.groupby("group").agg({"a": ["mean", "max"], "b": "sum"})
    return len(out), float(out.sum().sum().round(2))


def pandas_copies():
    left, _ = pandas_frames(5_000_000)
    copies = [left.copy(deep=True) for _ in range(3)]
    for i, c in enumerate(copies):
        c["a"] = c["a"] + i
    return float(sum(c.a.sum() for c in copies).round(2))


def polars_collect():
    import polars as pl

    n = 5_000_000
    frame = pl.LazyFrame({"key": range(n)}).with_columns(
        *[((pl.col("key") * (2 * i + 3)) % 1_000_003).alias(f"c{i}") for i in range(12)]
    )
    out = frame.sort("c3", maintain_order=True).collect()
    return out.height, out["c5"].head(1000).sum()


def duckdb_join():
    import duckdb

    # Without this duckdb reads the control group's limit by itself, and spills.
    db = duckdb.connect(config={"memory_limit": "20GB", "threads": 2})
    db.execute("create table a as select range as k, range * 7 % 1000003 as v from range(8000000)")
    db.execute("create table b as select range * 3 % 8000000 as k, range as w from range(8000000)")
    return db.execute("select count(*), sum(v * 2 + w) from a join b using (k)").fetchone()


def numpy_argsort():
    import numpy as np

    a = np.random.default_rng(2).random(24_000_000)
    order = np.argsort(a, kind="stable")
    return int(order[::1000].sum()), float(a[order][::1000].sum().round(3))


def scipy_sparse():
    import scipy.sparse as sp

    m = sp.random(60_000, 60_000, density=2.5e-4, format="csr", rng=3)
    product = m @ m
    return int(product.nnz), float(round(product.sum(), 2))


def hnsw_build():
    import hnswlib
    import numpy as np

    data = np.random.default_rng(4).random((60_000, 768), dtype=np.float32)
    index = hnswlib.Index(space="l2", dim=768)
    index.init_index(max_elements=len(data), ef_construction=20, M=8, random_seed=5)
    index.add_items(data, num_threads=1)
    return int(index.knn_query(data[:50], k=1, num_threads=1)[0].sum())


def python_dict():
    d = {i: (i, str(i)) for i in range(2_500_000)}
    return sum(len(d[i][1]) for i in range(0, len(d), 7))


def sqlite_memory():
    import sqlite3

    db = sqlite3.connect(":memory:")
    db.execute("create table t (k integer primary key, v text)")
    db.executemany("insert into t values (?, ?)", ((i, f"{i * 2654435761 % 2**32:064d}") for i in range(4_000_000)))
    return db.execute("select count(*), sum(length(v)), max(v) from t").fetchone()


if __name__ == "__main__":
    print(globals()[sys.argv[1]]())
