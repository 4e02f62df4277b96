// Threads that have pages of the same huge pages make random calls on them: each knows what its own pages hold and may
// be used for, whatever the others do to those beside them. What a call answers, what a touch raises and what system
// calls on the memory say is compared with that.
#include "common.h"
#include "faults.h"
#include "processes.h"
#include <fcntl.h>
#include <pthread.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define RESERVE (ANON | MAP_NORESERVE)
enum { THREADS = 4, UNITS = 12, PER_PIECE = 16, PIECES = UNITS * 512 / PER_PIECE / THREADS };
#define PIECE (PER_PIECE * PAGE)

// What may be done with a page. What is reserved holds nothing.
enum access { RESERVED, CLOSED, READABLE, OPEN };
struct page {
    enum access access;
    uint64_t seed; // 0: zeros
};

struct worker {
    char *heap;
    uint64_t number, state;
    int file, steps;
    char *elsewhere;
    struct page pages[PIECES][PER_PIECE];
};

static uint64_t draw(struct worker *w, uint64_t n) {
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (w->state >> 33) % n;
}

static void check_page(struct worker *w, const char *at, const struct page *p, const char *what) {
    if (p->access < READABLE)
        return;
    if (p->seed)
        verify(at, PAGE, p->seed, what);
    else
        verify_zero(at, PAGE, what);
    (void)w;
}

// A touch raises what it should.
static void poke(struct worker *w, char *at, struct page *p) {
    int code = touch(at), expected_code = p->access < READABLE ? SEGV_ACCERR : 0;
    CHECK(code == expected_code, "thread %lu: reading %p of access %d raised %d", w->number, (void *)at, p->access, code);
    int raised = touch_to_write(at);
    expected_code = p->access < OPEN ? SEGV_ACCERR : 0;
    CHECK(raised == expected_code, "thread %lu: writing %p of access %d raised %d", w->number, (void *)at, p->access, raised);
}

// Calls of the kernel's on the memory of a page.
static void pass(struct worker *w, char *at, struct page *p) {
    long wrote = pwrite(w->file, at, PAGE, 0);
    CHECK(p->access < READABLE ? wrote == -1 && errno == EFAULT : wrote == (long)PAGE, "thread %lu: %ld from access %d",
          w->number, wrote, p->access);
    static const uint64_t zeros[PAGE / 8];
    uint64_t content[PAGE / 8], seed = 1 + draw(w, 1 << 20);
    fill(content, PAGE, seed);
    CHECK(pwrite(w->file, content, PAGE, PAGE) == (long)PAGE && pwrite(w->file, zeros, PAGE, 2 * PAGE) == (long)PAGE, "write");
    long got = pread(w->file, at, PAGE, PAGE);
    CHECK(p->access < OPEN ? got == -1 && errno == EFAULT : got == (long)PAGE, "thread %lu: %ld to access %d", w->number, got,
          p->access);
    if (p->access == OPEN)
        p->seed = seed;
}

static void step(struct worker *w, int n) {
    uint64_t piece = draw(w, PIECES), first = draw(w, PER_PIECE), len = 1 + draw(w, PER_PIECE - first);
    struct page *p = &w->pages[piece][first];
    char *at = w->heap + (piece * THREADS + w->number) * PIECE + first * PAGE;
    size_t bytes = len * PAGE;
    int open = 1, readable = 1;
    for (uint64_t i = 0; i < len; i++) {
        open &= p[i].access == OPEN;
        readable &= p[i].access >= READABLE;
    }
#define EACH(...)                                                                                                          \
    for (uint64_t i = 0; i < len; i++) {                                                                               \
        __VA_ARGS__;                                                                                                   \
    }
    switch (draw(w, 20)) {
    case 0:
    case 1:
        CHECK(mprotect(at, bytes, RW) == 0, "errno %d", errno);
        EACH(p[i].access = OPEN);
        break;
    case 2:
    case 3:
        CHECK(mmap(at, bytes, RW, ANON | MAP_FIXED, -1, 0) == at, "errno %d", errno);
        EACH(p[i] = (struct page){OPEN, 0});
        break;
    case 4:
    case 5:
    case 6:
        EACH(if (p[i].access == OPEN) {
            check_page(w, at + i * PAGE, &p[i], "before it is written");
            p[i].seed = 1 + draw(w, 1 << 20);
            fill(at + i * PAGE, PAGE, p[i].seed);
        });
        break;
    case 7:
    case 8:
        EACH(check_page(w, at + i * PAGE, &p[i], "as it was left"));
        break;
    case 9:
        CHECK(mmap(at, bytes, PROT_NONE, RESERVE | MAP_FIXED, -1, 0) == at, "errno %d", errno);
        EACH(p[i] = (struct page){RESERVED, 0});
        break;
    case 10:
        CHECK(mprotect(at, bytes, PROT_NONE) == 0, "errno %d", errno);
        EACH(p[i].access = p[i].access == RESERVED ? RESERVED : CLOSED);
        break;
    case 11:
        CHECK(mprotect(at, bytes, PROT_READ) == 0, "errno %d", errno);
        EACH(p[i].access = READABLE);
        break;
    case 12:
        CHECK(madvise(at, bytes, MADV_DONTNEED) == 0, "errno %d", errno);
        EACH(p[i].seed = 0);
        break;
    case 13:
        // (Under hugeswap a hole in a huge page may be touched until all of that is unmapped.)
        CHECK(munmap(at, bytes) == 0, "errno %d", errno);
        CHECK(mmap(at, bytes, RW, ANON | MAP_FIXED, -1, 0) == at, "errno %d", errno);
        EACH(p[i] = (struct page){OPEN, 0});
        break;
    case 14:
    case 15:
        EACH(poke(w, at + i * PAGE, &p[i]));
        break;
    case 16:
        EACH(pass(w, at + i * PAGE, &p[i]));
        break;
    case 17: {
        int advice = draw(w, 2) ? MADV_PAGEOUT : MADV_COLD;
        CHECK(madvise(at, bytes, advice) == 0, "advice %d: errno %d", advice, errno);
        break;
    }
    case 18: {
        int writes = draw(w, 2), advice = writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
        int done = madvise(at, bytes, advice);
        CHECK((done == 0) == (writes ? open : readable), "thread %lu: populating is %d, errno %d", w->number, done, errno);
        break;
    }
    default:
        // It moves away and back, page by page: all may be several mappings.
        if (draw(w, 4) == 0 && open) {
            enum { FLAGS = MREMAP_MAYMOVE | MREMAP_FIXED };
            char *to = w->elsewhere;
            EACH(CHECK(mremap(at + i * PAGE, PAGE, PAGE, FLAGS, to + i * PAGE) == to + i * PAGE, "errno %d", errno));
            EACH(check_page(w, to + i * PAGE, &p[i], "moved"));
            EACH(CHECK(mremap(to + i * PAGE, PAGE, PAGE, FLAGS, at + i * PAGE) == at + i * PAGE, "errno %d", errno));
        } else if (draw(w, 8) == 0 && readable) {
            if (mlock(at, bytes) == 0)
                CHECK(munlock(at, bytes) == 0, "errno %d", errno);
        } else if (n % 512 == 0) {
            pid_t child = fork();
            CHECK(child >= 0, "fork");
            if (child == 0) {
                EACH(check_page(w, at + i * PAGE, &p[i], "child"));
                EACH(poke(w, at + i * PAGE, &p[i]));
                _exit(42);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %#x", status);
        }
        EACH(check_page(w, at + i * PAGE, &p[i], "in the end"));
    }
}

static pthread_barrier_t all_there;

static void *work(void *arg) {
    struct worker *w = arg;
    // (A stack that is made later could be mapped where a page is unmapped.)
    pthread_barrier_wait(&all_there);
    for (int n = 1; n <= w->steps; n++)
        step(w, n);
    for (int k = 0; k < PIECES; k++)
        for (int i = 0; i < PER_PIECE; i++) {
            char *at = w->heap + (k * THREADS + w->number) * PIECE + i * PAGE;
            check_page(w, at, &w->pages[k][i], "at the end");
            poke(w, at, &w->pages[k][i]);
        }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 4, "SEED COUNT STEPS");
    int seed = atoi(argv[1]), count = atoi(argv[2]), steps = atoi(argv[3]);
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    static struct worker workers[THREADS];
    for (int s = seed; s < seed + count; s++) {
        // Every second heap is accessible from the beginning.
        int open = s & 1;
        char *all = open ? mmap(NULL, (UNITS + 1) * UNIT, RW, ANON, -1, 0) : mmap(NULL, (UNITS + 1) * UNIT, PROT_NONE, RESERVE, -1, 0);
        CHECK(all != MAP_FAILED, "errno %d", errno);
        char *heap = (char *)(((uintptr_t)all + UNIT - 1) & ~(UNIT - 1));
        pthread_t threads[THREADS];
        pthread_barrier_init(&all_there, NULL, THREADS);
        for (int i = 0; i < THREADS; i++) {
            struct worker *w = &workers[i];
            memset(w, 0, sizeof *w);
            w->heap = heap, w->number = i, w->state = s * 1000 + i, w->steps = steps;
            w->file = memfd_create("pages", 0);
            w->elsewhere = mmap(NULL, PIECE, PROT_NONE, RESERVE, -1, 0);
            CHECK(w->file >= 0 && w->elsewhere != MAP_FAILED, "errno %d", errno);
            for (int k = 0; k < PIECES; k++)
                for (int j = 0; j < PER_PIECE; j++)
                    w->pages[k][j].access = open ? OPEN : RESERVED;
            CHECK(pthread_create(&threads[i], NULL, work, w) == 0, "thread");
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            close(workers[i].file);
            munmap(workers[i].elsewhere, PIECE);
        }
        CHECK(munmap(all, (UNITS + 1) * UNIT) == 0, "errno %d", errno);
    }
    printf("%d heaps of %d threads, %d steps each: as it should be\n", count, THREADS, steps);
    return 0;
}
