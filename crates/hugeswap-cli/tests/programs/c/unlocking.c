// Memory is unlocked while other threads make calls on what is beside it in the same huge pages, and so becomes managed
// again under them: calls that change it, and calls that have begun before and end after.
#include "common.h"
#include "faults.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
enum { UNITS = 6, CALLERS = 3, TURNS = 4, OWN = 4 };

static char *map(size_t len) {
    char *p = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    return p;
}

struct reader {
    int from;
    char *to;
    size_t len;
};

static void *reads(void *of) {
    struct reader *r = of;
    long got = read(r->from, r->to, r->len);
    CHECK(got == (long)r->len, "read: %ld of %zu", got, r->len);
    return NULL;
}

static void *sleeps(void *of) {
    struct reader *r = of;
    struct timespec *left = (struct timespec *)r->to;
    *left = (struct timespec){10, 0};
    CHECK(nanosleep(left, left) == -1 && errno == EINTR && left->tv_sec < 10, "nanosleep");
    return NULL;
}

static void on_usr1(int sig) { (void)sig; }

// A call that waits has begun while the memory was locked, and ends after it has left memory.
static void under_way(void *(*calls)(void *), size_t len) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    char *p = map(UNIT * 2), *unit = (char *)(((uintptr_t)p + UNIT - 1) & ~(UNIT - 1));
    fill(p, 2 * UNIT, 1);
    CHECK(mlock(unit, PAGE) == 0, "mlock");
    struct reader r = {ends[0], unit + 64 * PAGE, len};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, calls, &r) == 0, "thread");
    usleep(100000);
    CHECK(munlock(unit, PAGE) == 0, "munlock");
    evict(unit, UNIT);
    char *content = malloc(len);
    fill(content, len, 2);
    CHECK(write(ends[1], content, len) == (long)len, "write");
    free(content);
    // (Who does not read sleeps, and is told how long he would have gone on.)
    CHECK(calls == reads || pthread_kill(thread, SIGUSR1) == 0, "kill");
    CHECK(pthread_join(thread, NULL) == 0, "join");
    if (calls == reads)
        verify(r.to, len, 2, "what was read");
    close(ends[0]);
    close(ends[1]);
    CHECK(munmap(p, 2 * UNIT) == 0, "munmap");
}

static char *heap;
static _Atomic int round_now, ended, finished;

struct caller {
    uint64_t state;
    int number, rounds;
};

static uint64_t draw(struct caller *c, uint64_t n) {
    c->state = c->state * 6364136223846793005u + 1442695040888963407u;
    return (c->state >> 33) % n;
}

// Calls on the own pages of a unit, that the kernel or hugeswap has at that moment.
static void calls_on(struct caller *c, char *at, uint64_t *seed) {
    size_t len = (1 + draw(c, OWN)) * PAGE;
    if (*seed)
        verify(at, OWN * PAGE, *seed, "as it was left");
    switch (draw(c, 4)) {
    case 0:
        CHECK(madvise(at, OWN * PAGE, MADV_DONTNEED) == 0, "discard");
        verify_zero(at, OWN * PAGE, "discarded");
        break;
    case 1:
        CHECK(mprotect(at, len, PROT_NONE) == 0, "no access");
        CHECK(touch(at) == SEGV_ACCERR, "a touch raised %d", code);
        CHECK(mprotect(at, len, RW) == 0, "access");
        break;
    case 2:
        CHECK(madvise(at, OWN * PAGE, MADV_POPULATE_WRITE) == 0, "populate");
        break;
    default:
        CHECK(mprotect(at, len, RW) == 0, "as it is");
        break;
    }
    *seed = 1 + draw(c, 1000);
    fill(at, OWN * PAGE, *seed);
}

static void *calls(void *of) {
    struct caller *c = of;
    for (int round = 1; round <= c->rounds; round++) {
        while (atomic_load(&round_now) < round)
            sched_yield();
        uint64_t seeds[UNITS] = {0};
        while (atomic_load(&ended) < round) {
            uint64_t unit = draw(c, UNITS);
            calls_on(c, heap + unit * UNIT + (1 + (size_t)c->number * OWN) * PAGE, &seeds[unit]);
        }
        for (int unit = 0; unit < UNITS; unit++)
            if (seeds[unit])
                verify(heap + unit * UNIT + (1 + (size_t)c->number * OWN) * PAGE, OWN * PAGE, seeds[unit], "in the end");
        atomic_fetch_add(&finished, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0, "sigaction");
    struct sigaction woken = {.sa_handler = on_usr1};
    CHECK(sigaction(SIGUSR1, &woken, NULL) == 0, "sigaction");
    under_way(reads, 64);
    under_way(reads, 32 * KIB);
    under_way(sleeps, 16);
    puts("calls under way: end as they should");

    struct caller all[CALLERS];
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        all[i] = (struct caller){(uint64_t)i + 1, i, rounds};
        CHECK(pthread_create(&threads[i], NULL, calls, &all[i]) == 0, "thread");
    }
    for (int round = 1; round <= rounds; round++) {
        heap = mmap(NULL, UNITS * UNIT + UNIT, RW, ANON, -1, 0);
        CHECK(heap != MAP_FAILED, "mmap");
        char *all_of_it = heap;
        heap = (char *)(((uintptr_t)heap + UNIT - 1) & ~(UNIT - 1));
        for (int i = 0; i < UNITS; i++)
            heap[i * (long)UNIT] = 1;
        atomic_store(&round_now, round);
        for (int turn = 0; turn < TURNS; turn++)
            for (int i = 0; i < UNITS; i++) {
                char *unit = heap + i * (long)UNIT;
                CHECK(mlock(unit, PAGE) == 0, "mlock");
                CHECK(munlock(unit, PAGE) == 0, "munlock");
            }
        atomic_store(&ended, round);
        while (atomic_load(&finished) < round * CALLERS)
            sched_yield();
        CHECK(munmap(all_of_it, UNITS * UNIT + UNIT) == 0, "munmap");
    }
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "join");
    puts("calls beside: as they should");
    return 0;
}
