// A heap as JVMs from 25 on make it: its address is to be one of a few (MAP_FIXED_NOREPLACE), or at last any. And a
// program that can use one address only, and gets it after some attempts.
#include "common.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define RESERVE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static char *reserve_at(uintptr_t at, size_t len) {
    char *p = mmap((void *)at, len, PROT_NONE, RESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED)
        CHECK(errno == EEXIST, "%s", strerror(errno));
    else
        CHECK((uintptr_t)p == at, "%p instead of %p", (void *)p, (void *)at);
    return p;
}

static void use(char *heap, size_t len) {
    CHECK(mprotect(heap, len, PROT_READ | PROT_WRITE) == 0, "%p", (void *)heap);
    fill(heap, len, 7);
    verify(heap, len, 7, "heap");
}

int main(void) {
    size_t len = 512 * MIB;
    char *heap = MAP_FAILED;
    for (uintptr_t i = 0; heap == MAP_FAILED && i < 40; i++)
        heap = reserve_at(0xc1800000 + i * 16 * MIB, len);
    if (heap == MAP_FAILED)
        heap = mmap(NULL, len, PROT_NONE, RESERVE, -1, 0);
    CHECK(heap != MAP_FAILED, "%s", strerror(errno));
    use(heap, 96 * MIB);

    char *only = MAP_FAILED;
    for (int i = 0; only == MAP_FAILED && i < 300; i++)
        only = reserve_at((uintptr_t)1 << 42, 64 * MIB);
    CHECK(only != MAP_FAILED, "never");
    use(only, MIB);
    // What is there is not replaced.
    CHECK(reserve_at((uintptr_t)only, MIB) == MAP_FAILED, "replaced");
    CHECK(reserve_at((uintptr_t)heap, MIB) == MAP_FAILED, "replaced");
    puts("ok");
}
