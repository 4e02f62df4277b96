// A heap as runtimes make it: addresses are reserved without access, made accessible by pages, given up and taken
// again, while other threads use its other parts. What it holds, what faults, and what calls answer is as without
// hugeswap.
#include "common.h"
#include "faults.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define RESERVE (ANON | MAP_NORESERVE)

static char *reserve(size_t len) {
    char *p = mmap(NULL, len, PROT_NONE, RESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "%zu bytes", len);
    return p;
}

static void commit(char *at, size_t len, int how) {
    if (how)
        CHECK(mprotect(at, len, RW) == 0, "mprotect %p %zu", (void *)at, len);
    else
        CHECK(mmap(at, len, RW, ANON | MAP_FIXED, -1, 0) == at, "mmap %p %zu", (void *)at, len);
}

static void decommit(char *at, size_t len, int how) {
    if (how) {
        CHECK(madvise(at, len, MADV_DONTNEED) == 0, "%p %zu", (void *)at, len);
        CHECK(mprotect(at, len, PROT_NONE) == 0, "%p %zu", (void *)at, len);
    } else {
        CHECK(mmap(at, len, PROT_NONE, RESERVE | MAP_FIXED, -1, 0) == at, "%p %zu", (void *)at, len);
    }
}

static void zeros(const char *at, size_t len, const char *what) {
    for (size_t i = 0; i < len; i += 8)
        CHECK(*(const uint64_t *)(at + i) == 0, "%s: not zero at %p", what, (const void *)(at + i));
}

// Steps of every size up a heap that is larger than the budget.
static char *grow(size_t total) {
    char *heap = reserve(1024 * MIB);
    size_t at = PAGE;
    CHECK(touch(heap) == SEGV_ACCERR, "code %d", code);
    for (size_t i = 0; at < total; i++) {
        size_t step = (1 + i * 37 % 400) * PAGE;
        commit(heap + at, step, i % 3 != 0);
        zeros(heap + at, step, "new");
        fill(heap + at, step, i);
        at += step;
        CHECK(touch(heap + at) == SEGV_ACCERR && touch(heap) == SEGV_ACCERR, "code %d at step %zu", code, i);
    }
    at = PAGE;
    for (size_t i = 0; at < total; i++) {
        size_t step = (1 + i * 37 % 400) * PAGE;
        verify(heap + at, step, i, "heap");
        at += step;
    }
    return heap;
}

// Pieces of 256 KiB, some of which come and go, as V8's do.
enum { PIECES = 400 };
#define PIECE (256 * KIB)
struct worker {
    char *heap;
    unsigned first, seed;
    int raised;
};

static void *churn(void *arg) {
    struct worker *w = arg;
    uint64_t held[PIECES / 4] = {0}, state = w->seed;
    for (int step = 0; step < 1500; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned k = (state >> 33) % (PIECES / 4);
        // Neighbours are other threads' pieces.
        char *at = w->heap + (w->first + 4 * k) * PIECE;
        if (held[k]) {
            verify(at, PIECE, held[k], "piece");
            decommit(at, PIECE, state >> 60 & 1);
            held[k] = 0;
            w->raised += touch(at + PAGE) == SEGV_ACCERR;
        } else {
            commit(at, PIECE, state >> 61 & 1);
            zeros(at, PIECE, "piece");
            held[k] = 1 + step + w->first * 100000;
            fill(at, PIECE, held[k]);
            w->raised++;
        }
    }
    for (unsigned k = 0; k < PIECES / 4; k++)
        if (held[k])
            verify(w->heap + (w->first + 4 * k) * PIECE, PIECE, held[k], "piece at the end");
    return NULL;
}

// Small reservations that are cut to what is aligned, used, and unmapped, in a heap of many.
static void small(void) {
    enum { MANY = 300 };
    char *at[MANY] = {0};
    uint64_t state = 7;
    for (int step = 0; step < 4000; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned k = (state >> 33) % MANY;
        if (at[k]) {
            verify(at[k], PIECE, k + 1, "small");
            CHECK(munmap(at[k], PIECE) == 0, "%p", (void *)at[k]);
            at[k] = NULL;
            continue;
        }
        char *p = reserve(2 * PIECE - PAGE);
        char *aligned = (char *)(((uintptr_t)p + PIECE - 1) & ~(PIECE - 1));
        if (aligned > p)
            CHECK(munmap(p, (size_t)(aligned - p)) == 0, "%p", (void *)p);
        char *end = p + 2 * PIECE - PAGE;
        if (end > aligned + PIECE)
            CHECK(munmap(aligned + PIECE, (size_t)(end - aligned) - PIECE) == 0, "%p", (void *)end);
        CHECK(madvise(aligned, PIECE, MADV_DONTFORK) == 0, "%p", (void *)aligned);
        CHECK(touch(aligned) == SEGV_ACCERR, "code %d", code);
        commit(aligned, PIECE, 1);
        zeros(aligned, PIECE, "small");
        fill(aligned, PIECE, k + 1);
        at[k] = aligned;
    }
    // A child does not inherit them.
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        for (int k = 0; k < MANY; k++)
            if (at[k])
                CHECK(touch(at[k]) > 0 && touch(at[k] + PIECE - 1) > 0, "code %d", code);
        _exit(42);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %#x", status);
    for (int k = 0; k < MANY; k++)
        if (at[k]) {
            verify(at[k], PIECE, k + 1, "small at the end");
            CHECK(munmap(at[k], PIECE) == 0, "%p", (void *)at[k]);
        }
}

// Memory of several units that becomes executable is one mapping for the program, and moves as one.
static void executable(void) {
    enum { RWX = RW | PROT_EXEC };
    char *p = mmap(NULL, 7 * MIB, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p + MIB, 5 * MIB, 21);
    CHECK(mprotect(p + MIB, 5 * MIB, RWX) == 0, "mprotect");
    char *q = mremap(p + MIB, 5 * MIB, 9 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "errno %d", errno);
    verify(q, 5 * MIB, 21, "moved");
    zeros(q + 5 * MIB, 4 * MIB, "new");
    CHECK(touch(p + MIB) != 0, "code %d", code);
    // To an address, and shorter.
    char *r = mmap(NULL, 8 * MIB, RW, ANON, -1, 0);
    fill(r, 8 * MIB, 22);
    CHECK(mprotect(r, 8 * MIB, RWX) == 0, "mprotect");
    CHECK(mremap(r + MIB, 6 * MIB, 5 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q, "errno %d", errno);
    verify_from(q, MIB / 8, 5 * MIB, 22, "shorter");
    verify(r, MIB, 22, "before");
    verify_from(r + 7 * MIB, 7 * MIB / 8, MIB, 22, "behind");
    CHECK(touch(r + 5 * MIB) != 0 && touch(r + 6 * MIB + PAGE) != 0, "code %d", code);
    // Both ranges stay.
    char *s = mmap(NULL, 6 * MIB, RW, ANON, -1, 0);
    fill(s, 6 * MIB, 23);
    CHECK(mprotect(s, 6 * MIB, RWX) == 0, "mprotect");
    char *t = mremap(s + MIB, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(t != MAP_FAILED, "errno %d", errno);
    verify_from(t, MIB / 8, 4 * MIB, 23, "taken");
    zeros(s + MIB, 4 * MIB, "left");
    verify(s, MIB, 23, "before");
    // Of different access, it is several mappings.
    CHECK(mprotect(s + 2 * MIB, MIB, RW) == 0, "mprotect");
    CHECK(mremap(s + MIB, 4 * MIB, 6 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "errno %d", errno);
    munmap(p, MIB), munmap(p + 6 * MIB, MIB), munmap(s, 6 * MIB), munmap(t, 4 * MIB), munmap(q, 5 * MIB), munmap(r, MIB), munmap(r + 7 * MIB, MIB);
}

// Units that are locked in memory while others bring their pages in and out.
static volatile int stop;
static void *page_out(void *at) {
    while (!stop) {
        madvise((char *)at + MIB, MIB, MADV_PAGEOUT);
        ((volatile char *)at)[MIB + (rand() % 256) * PAGE];
    }
    return NULL;
}

static void locked(void) {
    for (int i = 0; i < 12; i++) {
        pthread_t threads[2];
        char *p = reserve(4 * MIB);
        commit(p + MIB, MIB, i & 1);
        commit(p + 3 * MIB, MIB, i & 1);
        fill(p + MIB, MIB, i);
        stop = 0;
        for (int t = 0; t < 2; t++)
            CHECK(pthread_create(&threads[t], NULL, page_out, p) == 0, "thread");
        usleep(2000 + i * 100);
        CHECK(mlock(p + MIB, 16 * PAGE) == 0, "errno %d", errno);
        stop = 1;
        for (int t = 0; t < 2; t++)
            pthread_join(threads[t], NULL);
        verify(p + MIB, MIB, i, "locked");
        CHECK(touch(p) == SEGV_ACCERR && touch(p + 2 * MIB) == SEGV_ACCERR, "code %d", code);
        munmap(p, 4 * MIB);
    }
}

static void tell(const char *call, long result) { printf("%s %ld errno %d, ", call, result, result < 0 ? errno : 0); }

static void answers(void) {
    char *p = reserve(8 * MIB);
    int ends[2], zero = open("/dev/zero", O_RDONLY);
    CHECK(pipe(ends) == 0 && zero >= 0, "pipe");
    for (int i = 0; i < 2; i++) {
        tell("write", write(ends[1], p + MIB, 1));
        tell("read", read(zero, p + MIB, 10));
        for (int advice = 0; advice < 24; advice++)
            if (advice != MADV_DONTFORK && advice != 7) {
                printf("%d: ", advice);
                tell("advice", madvise(p + MIB, PAGE, advice));
            }
        // (Only here: the kernel refuses it, and yet has the pages for locked.)
        tell("lock", mlock(p + 2 * MIB, PAGE));
        puts("");
        // The second time some of the same 2 MiB is accessible.
        commit(p, MIB, 1);
        fill(p, MIB, 5);
    }
    CHECK(read(zero, p + 10, 100) == 100, "read");
    zeros(p + 16, 88, "read");
    // Protected pages keep what they hold.
    CHECK(mprotect(p + 64 * KIB, PAGE, PROT_NONE) == 0 && touch(p + 64 * KIB) == SEGV_ACCERR, "code %d", code);
    CHECK(mprotect(p + 64 * KIB, PAGE, RW) == 0, "mprotect");
    verify_from(p + 64 * KIB, 64 * KIB / 8, MIB - 64 * KIB, 5, "protected");
    // Guards in memory that was never touched.
    char *q = mmap(NULL, 4 * MIB, RW, ANON, -1, 0);
    CHECK(q != MAP_FAILED && mprotect(q + MIB, PAGE, PROT_NONE) == 0, "mprotect");
    fill(q, MIB, 6);
    fill(q + MIB + PAGE, 3 * MIB - PAGE, 7);
    CHECK(touch(q + MIB) == SEGV_ACCERR && touch(q + MIB + PAGE) == 0, "code %d", code);
    verify(q, MIB, 6, "before the guard");
    verify(q + MIB + PAGE, 3 * MIB - PAGE, 7, "after the guard");
    // A unit without access, of which a part is reserved and another becomes the kernel's.
    char *u = mmap(NULL, 4 * MIB, RW, ANON, -1, 0);
    CHECK(u != MAP_FAILED && mprotect(u, 4 * MIB, PROT_NONE) == 0, "mprotect");
    decommit(u + 3 * MIB, MIB, 0);
    CHECK(mmap(u + MIB, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == u + MIB, "mmap");
    CHECK(mmap(u + 2 * MIB, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == u + 2 * MIB, "mmap");
    fill(u + 2 * MIB, PAGE, 8);
    CHECK(touch(u + 2 * MIB + PAGE) == SEGV_ACCERR && touch(u + 3 * MIB) == SEGV_ACCERR, "code %d", code);
    verify(u + 2 * MIB, PAGE, 8, "the kernel's");
    // A unit that can only be read, of which a part is reserved, and all of it is to be written to.
    char *v = mmap(NULL, 4 * MIB, RW, ANON, -1, 0);
    CHECK(v != MAP_FAILED, "mmap");
    fill(v, 4 * MIB, 10);
    madvise(v, 4 * MIB, MADV_PAGEOUT);
    CHECK(mprotect(v, 4 * MIB, PROT_READ) == 0, "mprotect");
    decommit(v, MIB, 0);
    CHECK(mprotect(v, 3 * MIB, RW) == 0, "mprotect");
    zeros(v, MIB, "reserved");
    verify_from(v + MIB, MIB / 8, 3 * MIB, 10, "read");
    fill(v, 3 * MIB, 11);
    verify(v, 3 * MIB, 11, "written");
    verify_from(v + 3 * MIB, 3 * MIB / 8, MIB, 10, "behind");
    // A reservation that moves and grows.
    char *r = reserve(3 * MIB);
    char *s = mremap(r, 3 * MIB, 64 * MIB, MREMAP_MAYMOVE);
    CHECK(s != MAP_FAILED && touch(s + 63 * MIB) == SEGV_ACCERR, "code %d", code);
    commit(s + 5 * MIB + PAGE, MIB, 1);
    zeros(s + 5 * MIB + PAGE, MIB, "moved");
    CHECK(mremap(s, 64 * MIB, 128 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "several mappings");
    // Memory that can be read, or executed.
    CHECK(mprotect(s, MIB, PROT_READ) == 0 && touch(s) == 0, "code %d", code);
    CHECK(mprotect(s + 2 * MIB, PAGE, RW | PROT_EXEC) == 0, "mprotect");
    s[2 * MIB] = (char)0xc3;
    ((void (*)(void))(s + 2 * MIB))();
    CHECK(touch(s + 3 * MIB) == SEGV_ACCERR, "code %d", code);
    // What a child has of it, it has for itself.
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        CHECK(touch(s + 40 * MIB) == SEGV_ACCERR, "code %d", code);
        commit(s + 40 * MIB, PAGE, 1);
        zeros(s + 40 * MIB, PAGE, "child");
        fill(s + 40 * MIB, PAGE, 9);
        verify(q, MIB, 6, "child");
        _exit(42);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %#x", status);
    CHECK(touch(s + 40 * MIB) == SEGV_ACCERR, "code %d", code);
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? (size_t)atoi(argv[1]) : 96;
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    answers();
    puts("answers");
    executable();
    locked();
    puts("locked");
    char *heap = grow(mib * MIB);
    CHECK(munmap(heap, 1024 * MIB) == 0, "munmap");
    puts("grown");
    small();
    puts("small");
    struct worker workers[4];
    pthread_t threads[4];
    heap = reserve(PIECES * PIECE);
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){heap, i, i + 1, 0};
        CHECK(pthread_create(&threads[i], NULL, churn, &workers[i]) == 0, "thread");
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        printf("worker %u: %d\n", i, workers[i].raised);
    }
    return 0;
}
