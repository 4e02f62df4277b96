// Random updates of a table, as HPCC RandomAccess makes them: XOR of 64-bit words, four updates for each word of the table unless
// told otherwise. The same updates made once more restore the table, which is checked.
//   gcc -O2 -o gups bench/programs/gups.c && ./gups MIB [UPDATES]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t next(uint64_t ran) { return ran << 1 ^ ((int64_t)ran < 0 ? 7 : 0); }

static void update(uint64_t *table, size_t words, size_t updates) {
    uint64_t ran = 1;
    for (int i = 0; i < 64; i++)
        ran = next(ran);
    for (size_t i = 0; i < updates; i++) {
        ran = next(ran);
        table[ran * 0x9e3779b97f4a7c15u % words] ^= ran;
    }
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? strtoul(argv[1], 0, 0) : 256, words = mib << 17;
    size_t updates = argc > 2 ? strtoul(argv[2], 0, 0) : 4 * words;
    uint64_t *table = malloc(words * 8), sum = 0;
    for (size_t i = 0; i < words; i++)
        table[i] = i;
    update(table, words, updates);
    for (size_t i = 0; i < words; i += 512)
        sum = (sum ^ table[i]) * 0x100000001b3;
    update(table, words, updates);
    size_t wrong = 0;
    for (size_t i = 0; i < words; i++)
        wrong += table[i] != i;
    printf("%zu MiB, %zu updates, sum %016llx, %zu words wrong\n", mib, updates, (unsigned long long)sum, wrong);
    return wrong != 0;
}
