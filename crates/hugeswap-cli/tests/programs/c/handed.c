// More memory than the budget, with a mixed protection in every unit, which only the kernel can have.
// handed MIB
#include "common.h"

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 2, "one argument");
    size_t n = strtoul(argv[1], 0, 0) * MIB, refused = 0;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, n, 1);
    char *first = (char *)(((size_t)p + UNIT - 1) & ~(UNIT - 1));
    for (char *unit = first; unit + UNIT <= p + n; unit += UNIT) {
        int done = mprotect(unit + 7 * PAGE, PAGE, PROT_READ);
        CHECK(done == 0 || errno == ENOMEM, "mprotect");
        refused += done != 0;
    }
    verify(p, n, 1, "with mixed protections");
    // What there is besides can be used, and given back.
    char *q = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(q != MAP_FAILED, "mmap");
    fill(q, n, 2);
    verify(q, n, 2, "besides");
    verify(p, n, 1, "afterwards");
    CHECK(munmap(p, n) == 0 && munmap(q, n) == 0, "munmap");
    fprintf(stderr, "refused %zu\n", refused);
    puts("handed");
    done();
    return 0;
}
