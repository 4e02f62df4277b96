"""Groups a table in duckdb, joins it with the groups and sorts it; argument: millions of rows. Needs 95 bytes each."""

import sys

import duckdb

n = int(float(sys.argv[1]) * 1e6)
c = duckdb.connect()
c.execute("set threads = 2; set memory_limit = '12GB'; set preserve_insertion_order = false")
c.execute(
    f"""create table a as select (hash(i) % {n // 4})::int k, hash(i * 7) % 1000 t,
    'name-' || (hash(i * 3) % 50000) s, hash(i * 5) / 1e19 v from range({n}) r(i)"""
)
c.execute("create table b as select k, sum(t) st, count(*) c, max(s) s from a group by k")
join = "select sum(a.t * b.c), count(*), max(b.s || a.s) from a join b using (k)"
print(c.execute(join).fetchone())
print(c.execute("select k, s from a order by s, k limit 3").fetchall())
