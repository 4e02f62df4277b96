# As heap.py.
d, x, h = {}, 12345, 0
ARGV[0].to_i.times { |i| x = (x * 1103515245 + 12345) & 0x7fffffff; d["k#{x}"] = [i, "v#{x % 1000}"] }
2.times { d.each { |k, v| h = (h * 31 + v[0] + k.size + v[1].size) & 0xffffffff } }
puts "#{d.size} #{h}"
