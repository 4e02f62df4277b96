// Writes words of untouched memory at random, as usemem of vm-scalability does, then reads them again in the same order.
//   gcc -O2 -o usemem bench/programs/usemem.c && ./usemem MIB WRITES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x;
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? strtoul(argv[1], 0, 0) : 2048, words = mib << 17;
    size_t writes = argc > 2 ? strtoul(argv[2], 0, 0) : 100000;
    uint64_t *memory = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return perror("mmap"), 1;
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < writes; i++) {
        uint64_t r = next(&x);
        memory[r % words] = r % words + 1;
    }
    x = 88172645463325252u;
    size_t wrong = 0;
    for (size_t i = 0; i < writes; i++) {
        uint64_t at = next(&x) % words;
        wrong += memory[at] != at + 1;
    }
    printf("%zu MiB, %zu writes, %zu words wrong\n", mib, writes, wrong);
    return wrong != 0;
}
