//! The C compiler at work on a large file. It asks for memory in small pieces, so more of them are
//! managed.

use crate::util::*;
use std::fmt::Write;

const FUNCTIONS: usize = 75;
const TABLES: usize = 4;
const ROWS: usize = 12_500;

pub fn cases() -> Vec<Case> {
    vec![case("compiler", compile_large)]
}

fn compile_large() {
    let dir = directory();
    std::fs::write(dir.path().join("large.c"), program()).expect("write");
    let cc =
        |out: &str| Program::new(dir.path(), compiler()).args(["-O1", "-c", "-o", out, "large.c"]);
    let plain = cc("plain.o").plain();
    for mode in Mode::permitted() {
        let setup = Setup::new(mode, 32)
            .on_disk()
            .option("--set", "route.malloc_min=128K")
            .option("--set", "route.mmap_min=128K");
        cc("managed.o").managed(&setup).same_as(&plain);
        same_files(&dir.path().join("plain.o"), &dir.path().join("managed.o"));
    }
}

/// The text of functions that call each other, and of tables that take much more memory to compile
/// than to hold.
fn program() -> String {
    let mut c = String::from("#include <stddef.h>\n#include <stdint.h>\n");
    for i in 0..FUNCTIONS {
        let (fields, limit, shift, odd) = (i % 7 + 2, i % 100 + 10, i % 13 + 7, i * 2 + 1);
        let next = match i % 5 {
            0 => "h".to_owned(),
            _ => format!("h + f{}((const void *)p, h)", i - 1),
        };
        write!(
            c,
            "struct s{i} {{ uint64_t a[{fields}]; struct s{i} *next; uint32_t k; }};
uint64_t f{i}(const struct s{i} *p, uint64_t x) {{
    uint64_t h = x ^ {odd}u;
    for (size_t n = 0; p && n < {limit}; p = p->next, n++) {{
        for (size_t j = 0; j < {fields}; j++)
            h = (h ^ p->a[j]) * 0x100000001b3u + (h >> {shift});
        switch ((h + p->k) % 9) {{
        case 0: h += p->a[0] * {odd}; break;
        case 1: h ^= p->a[1] << {shift}; break;
        case 5: h = h * h + {i}; break;
        case 7: if (h & 1) return h; break;
        default: h = ~h;
        }}
    }}
    return {next};
}}
"
        )
        .expect("a string takes everything");
    }
    let mut random = 1u64;
    for t in 0..TABLES {
        writeln!(c, "const uint32_t t{t}[] = {{").expect("a string takes everything");
        for _ in 0..ROWS {
            for _ in 0..8 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                write!(c, "{}u,", random >> 33).expect("a string takes everything");
            }
            c.push('\n');
        }
        c.push_str("};\n");
    }
    c
}
