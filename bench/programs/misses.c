// How many pages of hash.rs's map come back from swap, if what leaves memory is the page that was used least
// recently, or any page: what a policy can reach. Arguments: MiB of memory, lru or random.
//
// The map is Rust's: a table of 2^k places of 16 bytes and as many bytes of control, which grows to twice the size
// when it is seven eighths full. Keys are random, so that a place is; growing goes through the old table in order,
// and an entry of place i goes to i or to i + 2^k.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES = 1 << 19, ENTRIES = 8000000, LOOKUPS = ENTRIES / 20, NONE = -1 };

static int newer[PAGES], older[PAGES], newest = NONE, oldest = NONE; // in order of use
static int held[PAGES], at[PAGES];                                  // the same pages in no order, and where each is
static char in_memory[PAGES], in_swap[PAGES];
static long memory, n, came_back, went;
static int random_page;

static uint64_t rnd(void) {
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x * 0x2545f4914f6cdd1du;
}

static void unlink_page(int p) {
    *(newer[p] == NONE ? &newest : &older[newer[p]]) = older[p];
    *(older[p] == NONE ? &oldest : &newer[older[p]]) = newer[p];
}

static void link_newest(int p) {
    newer[p] = NONE, older[p] = newest;
    *(newest == NONE ? &oldest : &newer[newest]) = p;
    newest = p;
}

static void leave(int p) {
    unlink_page(p);
    int last = held[--n];
    held[at[p]] = last, at[last] = at[p];
    in_memory[p] = 0;
}

static void touch(long page) {
    int p = (int)page;
    if (in_memory[p]) {
        unlink_page(p), link_newest(p);
        return;
    }
    came_back += in_swap[p];
    if (n == memory) {
        int victim = random_page ? held[rnd() % (uint64_t)n] : oldest;
        leave(victim);
        in_swap[victim] = 1, went++;
    }
    held[n] = p, at[p] = (int)n++, in_memory[p] = 1;
    link_newest(p);
}

// Place i of the table of 2^k that begins at page `base`.
static void use(long base, int k, long i) {
    touch(base + (1L << k) / 256 + i / 4096);
    touch(base + i / 256);
}

int main(int argc, char **argv) {
    if (argc != 3 || (memory = atol(argv[1]) * 256) <= 0) {
        fprintf(stderr, "misses MIB lru|random\n");
        return 2;
    }
    random_page = strcmp(argv[2], "random") == 0;
    int k = 16;
    long base = 0, entries = (1L << k) * 7 / 8;
    while (entries < ENTRIES) {
        if (entries == (1L << k) * 7 / 8) {
            long grown = base ? 0 : PAGES / 2;
            for (long i = 0; i < 1L << k; i++) {
                use(base, k, i);
                use(grown, k + 1, rnd() & 1 ? i + (1L << k) : i);
            }
            for (long p = base; p <= base + (1L << k) / 256 + (1L << k) / 4096; p++) {
                if (in_memory[p])
                    leave((int)p);
                in_swap[p] = 0;
            }
            base = grown, k++;
        }
        use(base, k, (long)(rnd() & ((1u << k) - 1)));
        entries++;
    }
    for (long i = 0; i < LOOKUPS; i++)
        use(base, k, (long)(rnd() & ((1u << k) - 1)));
    printf("%ld pages came back, %ld went\n", came_back, went);
}
