# A dictionary of as many entries as the argument says, gone through twice.
import sys

d, x = {}, 12345
for i in range(int(sys.argv[1])):
    x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    d["k%d" % x] = [i, "v%d" % (x % 1000)]
h = 0
for _ in range(2):
    for k, v in d.items():
        h = (h * 31 + v[0] + len(k) + len(v[1])) & 0xFFFFFFFF
print(len(d), h)
