// Eight threads: each fills and verifies its own part, all add to counters they share, in rounds.
// threads PART_MIB SHARED_MIB ROUNDS
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8 };
static size_t part, shared, rounds;
static _Atomic uint64_t *counters;
static pthread_barrier_t barrier;
static uint64_t sums[THREADS];

static void *work(void *arg) {
    size_t me = (size_t)arg, n = shared / sizeof *counters;
    char *own = malloc(part);
    CHECK(own, "malloc");
    fill(own, part, 100 + me);
    for (size_t r = 0; r < rounds; r++) {
        pthread_barrier_wait(&barrier);
        // Each thread walks the shared part from a place of its own, in another order each round.
        for (size_t k = 0; k < n; k += 8) {
            size_t i = (k + me * n / THREADS) % n;
            if (r & 1)
                i = n - 1 - i;
            atomic_fetch_add_explicit(&counters[i / 8 * 8 + me], i / 8 + r, memory_order_relaxed);
        }
        verify(own, part, 100 + me + r * THREADS, "own part");
        fill(own, part, 100 + me + (r + 1) * THREADS);
    }
    verify(own, part, 100 + me + rounds * THREADS, "own part at the end");
    sums[me] = sum(own, part);
    free(own);
    return NULL;
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 4, "three arguments");
    part = strtoul(argv[1], 0, 0) * MIB;
    shared = strtoul(argv[2], 0, 0) * MIB;
    rounds = strtoul(argv[3], 0, 0);
    counters = calloc(1, shared);
    CHECK(counters, "calloc");
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t t[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, work, (void *)i) == 0, "thread %zu", i);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    size_t n = shared / sizeof *counters;
    uint64_t want = 0;
    for (size_t r = 0; r < rounds; r++)
        want += r;
    for (size_t i = 0; i < n; i++) {
        uint64_t w = want + rounds * (i / 8);
        CHECK(counters[i] == w, "counter %zu is %lu, not %lu", i, (unsigned long)counters[i], (unsigned long)w);
    }
    for (size_t i = 0; i < THREADS; i++)
        printf("%zu %016lx\n", i, (unsigned long)sums[i]);
    printf("shared %016lx\n", (unsigned long)sum((void *)counters, shared));
    return 0;
}
