// Memory that swaps while the program itself has nearly as many mappings as the kernel allows.
// crowd PART_MIB LEFT
#include "common.h"

// Takes mappings, each unlike its neighbours, until only `left` more can be made.
static size_t crowd(size_t left) {
    size_t most = 1 << 20, made = 0;
    char *p = mmap(NULL, most * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "room for the crowd");
    while (2 * made + 1 < most && mprotect(p + (2 * made + 1) * PAGE, PAGE, PROT_READ) == 0)
        made++;
    CHECK(errno == ENOMEM && made > left, "%zu mappings made", made);
    for (size_t i = 0; i < left / 2; i++)
        CHECK(mprotect(p + (2 * (made - i) - 1) * PAGE, PAGE, PROT_NONE) == 0, "mprotect back");
    return made;
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 3, "two arguments");
    size_t n = strtoul(argv[1], 0, 0) * MIB;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, n, 1);
    crowd(strtoul(argv[2], 0, 0));
    for (int round = 1; round < 4; round++) {
        verify(p, n, round, "in the crowd");
        fill(p, n, round + 1);
    }
    // Here and there, as what brings in single pages does.
    for (size_t i = 0, at = 0; i < 3000; i++, at = (at + 7919 * PAGE + 64) % (n - 8)) {
        size_t word = at / 8;
        CHECK(((uint64_t *)p)[word] == value(word, 4), "word %zu in the crowd", word);
    }
    puts("crowd");
    done();
    return 0;
}
