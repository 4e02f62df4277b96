// A heap that grows by aligned pieces of 256 KiB, of which some are given back, as V8's does: each is cut from a
// reservation of its own, and written to before the next is asked for.
// pieces COUNT
#include "common.h"
#include <sys/mman.h>

#define PIECE ((size_t)256 << 10)
#define RESERVE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static char *piece(void) {
    size_t len = 2 * PIECE - 4096;
    char *at = mmap(NULL, len, PROT_NONE, RESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    char *aligned = (char *)(((uintptr_t)at + PIECE - 1) & ~(PIECE - 1)), *end = aligned + PIECE;
    CHECK(aligned == at || munmap(at, (size_t)(aligned - at)) == 0, "munmap");
    CHECK(end == at + len || munmap(end, (size_t)(at + len - end)) == 0, "munmap");
    CHECK(mprotect(aligned, PIECE, PROT_READ | PROT_WRITE) == 0, "mprotect");
    return aligned;
}

static void use(char *at, uint64_t seed) {
    uint64_t *word = (uint64_t *)at;
    for (size_t i = 0; i < PIECE / 8; i++) {
        CHECK(word[i] == 0, "new memory has %#lx", (unsigned long)word[i]);
        word[i] = seed + i;
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 2, "pieces COUNT");
    size_t count = strtoul(argv[1], NULL, 10);
    char **at = calloc(count, sizeof *at);
    for (size_t k = 0; k < count; k++)
        use(at[k] = piece(), k << 32);
    for (size_t k = 0; k < count; k += 3) {
        CHECK(munmap(at[k], PIECE) == 0, "munmap");
        use(at[k] = piece(), (k + count) << 32);
    }
    uint64_t sum = 0;
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < PIECE / 8; i += 511)
            sum += ((uint64_t *)at[k])[i];
    printf("%zu pieces, %#lx\n", count, (unsigned long)sum);
    return 0;
}
