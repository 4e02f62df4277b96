//! glibc's own tests of malloc, as programs that the distribution's compiler and C library make: those
//! that need no internals of glibc's, with the parts of its test framework that need none.

use crate::compare::*;
use crate::source::source_of;
use crate::util::*;
use std::path::{Path, PathBuf};

const KNOWN: &[Exception] = &[Exception {
    test: "tst-safe-linking",
    mode: None,
    why: "the block of 256 KiB whose allocation is to have glibc look at its free blocks is managed here, as it is not by default",
}];

/// Makes `hugeswap/TEST`, in the source, of each test that can be made so, and `hugeswap/run`.
const BUILD: &str = r#"
rm -rf hugeswap
mkdir -p hugeswap/include/malloc
cd hugeswap
ln -s ../../support include/support
for header in include/libc-diag.h include/array_length.h include/libc-pointer-arith.h \
    sysdeps/generic/malloc-size.h sysdeps/generic/malloc-alignment.h malloc/malloc-internal.h; do
    ln -s ../../$header include/
done
ln -s ../../../malloc/tst-malloc-usable.c include/malloc/
cat >include/scratch_buffer.h <<'END'
#define libc_hidden_proto(name)
#include "../../include/scratch_buffer.h"
END
echo 'const char support_objdir_root[] = ".";' >paths.c
flags="-O2 -pthread -w -D_GNU_SOURCE -D_ISOMAC -DTIMEOUTFACTOR=8 -include limits.h -Iinclude -I../support"
compile() {
    for file; do
        echo "gcc $flags -c $file -o ${file##*/}.o 2>/dev/null || :"
    done | xargs -P2 -d '\n' -n1 sh -c
}
compile $(ls ../support/*.c | grep -v -e /tst- -e container -e links-dso -e time64 -e _main.c -e test-driver) \
    paths.c ../support/support_test_main.c
ar rcs support.a *.o
# Linked statically they would not be managed; for mtrace it takes a script of glibc's.
tests=$(cd ../malloc && ls mallocbug.c tst-*.c | grep -v -e -aux -e skeleton -e static -e mtrace)
compile $(printf '../malloc/%s ' $tests) ../malloc/tst-interpose-aux-*thread.c
for test in $tests; do
    aux=
    case $test in tst-interpose-*) aux=tst-interpose-aux-${test#tst-interpose-}.o ;; esac
    [ ! -e "$test.o" ] || gcc -pthread -o "${test%.c}" "$test.o" $aux support.a 2>/dev/null || :
done
rm -f *.o *.a
# Not something else than glibc's tests.
[ -x tst-malloc ] && [ -x tst-mallocfork3 ] && [ "$(ls tst-* | wc -l)" -ge 30 ]
cat >run <<'END'
# run RESULTS TEST...: one line for each, with its status; as the makefile of glibc has them run.
results=$1
shift
cd "$(dirname "$0")"
for test; do
    case $test in
    tst-malloc-check | tst-malloc-usable) with="MALLOC_CHECK_=3 LD_PRELOAD=libc_malloc_debug.so.0" ;;
    tst-malloc-usable-tunables) with="GLIBC_TUNABLES=glibc.malloc.check=3 LD_PRELOAD=libc_malloc_debug.so.0" ;;
    tst-mxfast) with=GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0 ;;
    *) with=A= ;;
    esac
    echo "== $test"
    env $with "./$test"
    echo "$test $?" >>"$results"
done
END
"#;

pub fn cases() -> Vec<Case> {
    if !whole("glibc") {
        return Vec::new();
    }
    vec![case("glibc, malloc", || {
        let source = source_of("glibc", BUILD);
        let programs = source.join("hugeswap");
        same("glibc, malloc", &Tests { programs }, &setups(16), KNOWN);
    })]
}

struct Tests {
    programs: PathBuf,
}

impl Tests {
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.programs).expect("what was built");
        let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
        let mut tests: Vec<String> = names
            .filter(|n| n == "mallocbug" || n.starts_with("tst-"))
            .collect();
        tests.sort();
        tests
    }
}

impl Suite for Tests {
    fn run(&self, dir: &Path, setup: Option<&Setup>, only: Option<&[String]>) -> Ran {
        let results = dir.join("results");
        let tests = only.map_or_else(|| self.names(), <[String]>::to_vec);
        let program = Program::new(dir, "sh")
            .arg(self.programs.join("run"))
            .arg(&results)
            .args(&tests)
            .env("TMPDIR", dir);
        let (_, mut ran) = run(&program, setup);
        let text = std::fs::read_to_string(&results).unwrap_or_default();
        for (test, status) in text.lines().filter_map(|l| l.split_once(' ')) {
            ran.outcomes.insert(test.into(), status.into());
        }
        ran
    }
}
