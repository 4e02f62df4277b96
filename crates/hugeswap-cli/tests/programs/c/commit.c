// Says of parts of a mapping that they are readable and writable, as they are: what allocators do that commit memory before they use it.
// commit MIB
#include "common.h"

#include <fcntl.h>

int main(int argc, char **argv) {
    CHECK(argc == 2, "how many MiB");
    size_t len = strtoul(argv[1], 0, 0) * MIB;
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < len; at += MIB) {
            CHECK(mprotect(p + at, 64 * KIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
            fill(p + at, MIB, at + round);
            CHECK(mprotect(p + at + 64 * KIB, 300 * KIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
        }
        for (size_t at = 0; at < len; at += MIB)
            verify(p + at, MIB, at + round, "a megabyte");
    }
    // A protection of a part counts, and is undone.
    CHECK(mprotect(p + MIB, 64 * KIB, PROT_READ) == 0, "mprotect");
    CHECK(read(open("/dev/zero", O_RDONLY), p + MIB, 10) < 0 && errno == EFAULT, "read to what is read-only");
    CHECK(mprotect(p + MIB, 64 * KIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    verify(p + MIB, MIB, MIB + 2, "at the end");
    fill(p + MIB, MIB, 9);
    puts("done");
    return 0;
}
