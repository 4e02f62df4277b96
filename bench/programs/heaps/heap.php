<?php
// As heap.py.
ini_set('memory_limit', '-1');
$d = []; $x = 12345; $h = 0;
for ($i = 0; $i < (int)$argv[1]; $i++) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; $d["k$x"] = [$i, "v" . ($x % 1000)]; }
for ($r = 0; $r < 2; $r++) foreach ($d as $k => $v) $h = ($h * 31 + $v[0] + strlen($k) + strlen($v[1])) & 0xffffffff;
echo count($d), " $h\n";
