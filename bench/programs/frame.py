"""Groups a table of polars, joins it with the groups and sorts it; argument: millions of rows. Needs 125 bytes each."""

import sys

import numpy
import polars

n = int(float(sys.argv[1]) * 1e6)
r = numpy.random.default_rng(1)
table = polars.DataFrame({"k": r.integers(0, n // 4, n), "v": r.random(n), "t": r.integers(0, 1000, n)})
groups = table.group_by("k").agg(polars.col("v").sum(), polars.col("t").max())
joined = table.join(groups, on="k")
# (Sums of floating-point numbers depend on the order in which threads add.)
print(joined.select(polars.len(), polars.col("t").sum(), polars.col("t_right").sum(), polars.col("v_right").max().round(6)))
print(table.sort("v").head(3))
