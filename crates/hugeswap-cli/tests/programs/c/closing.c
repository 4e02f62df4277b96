// Threads commit and give up pieces of one huge page, so that it is often the last piece that goes while others touch
// theirs. A touch of what a thread has given up is SIGSEGV, and no other signal arrives.
#include "common.h"
#include "faults.h"
#include <pthread.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define RESERVE (ANON | MAP_NORESERVE)
enum { THREADS = 4, STEPS = 10000 };
#define PIECE (32 * KIB)

static char *heap;

static void *churn(void *arg) {
    uint64_t me = (uint64_t)(uintptr_t)arg, state = me;
    char *at = heap + me * 2 * MIB / THREADS;
    for (uint64_t step = 0; step < STEPS; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        if (state >> 60 & 1)
            CHECK(mprotect(at, PIECE, RW) == 0, "errno %d", errno);
        else
            CHECK(mmap(at, PIECE, RW, ANON | MAP_FIXED, -1, 0) == at, "errno %d", errno);
        size_t page = (state >> 40) % (PIECE / PAGE) * PAGE;
        volatile uint64_t *word = (volatile uint64_t *)(at + page);
        CHECK(*word == 0, "thread %lu, step %lu: not zero", me, step);
        *word = step + 1;
        CHECK(*word == step + 1, "thread %lu, step %lu: not kept", me, step);
        if (state >> 61 & 1)
            CHECK(munmap(at, PIECE) == 0 && mmap(at, PIECE, PROT_NONE, RESERVE | MAP_FIXED, -1, 0) == at, "errno %d", errno);
        else
            CHECK(mmap(at, PIECE, PROT_NONE, RESERVE | MAP_FIXED, -1, 0) == at, "errno %d", errno);
        int code = touch(at + page);
        CHECK(code == SEGV_ACCERR, "thread %lu, step %lu: code %d", me, step, code);
    }
    return NULL;
}

int main(void) {
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    char *reserved = mmap(NULL, 64 * MIB, PROT_NONE, RESERVE, -1, 0);
    CHECK(reserved != MAP_FAILED, "errno %d", errno);
    heap = (char *)(((uintptr_t)reserved + 2 * MIB - 1) & ~(2 * MIB - 1));
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)i) == 0, "thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    puts("closed");
    return 0;
}
