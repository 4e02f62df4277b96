// As heap.py.
using System;
using System.Collections.Generic;

class Heap {
    class Entry { public int i; public string v; }

    static void Main(string[] a) {
        var d = new Dictionary<string, Entry>();
        uint x = 12345, h = 0;
        for (int i = 0; i < int.Parse(a[0]); i++) {
            x = (x * 1103515245 + 12345) & 0x7fffffff;
            d["k" + x] = new Entry { i = i, v = "v" + (x % 1000) };
        }
        for (int r = 0; r < 2; r++)
            foreach (var p in d) h = h * 31 + (uint)(p.Value.i + p.Key.Length + p.Value.v.Length);
        Console.WriteLine(d.Count + " " + h);
    }
}
