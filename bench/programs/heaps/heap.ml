(* As heap.py, 1,000,000 entries. *)
let () =
  let d = Hashtbl.create 16 and x = ref 12345 and h = ref 0 in
  for i = 0 to 999999 do
    x := (!x * 1103515245 + 12345) land 0x7fffffff;
    Hashtbl.replace d ("k" ^ string_of_int !x) (i, "v" ^ string_of_int (!x mod 1000))
  done;
  Hashtbl.iter (fun k (i, v) -> h := (!h + i * String.length k + String.length v) land 0xffffffff) d;
  Printf.printf "%d %d\n" (Hashtbl.length d) !h
