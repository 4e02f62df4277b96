// Programs that say where they want huge pages and where not, and treat parts of them.
// huge BALLAST_MIB
// Under hugeswap it also looks, by mincore, at what a touch brought in.
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

static int managed;
static sigjmp_buf jump;
static volatile sig_atomic_t caught;

static void on_fault(int sig) {
    caught = sig;
    siglongjmp(jump, 1);
}

static char *map(size_t len) {
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu", len);
    return p;
}

static void advise(char *p, size_t len, int advice) {
    CHECK(madvise(p, len, advice) == 0, "madvise %d", advice);
}

// Pages of [p, p+len) in memory.
static size_t present(char *p, size_t len) {
    static unsigned char vec[64 * MIB / PAGE];
    CHECK(len / PAGE <= sizeof vec && mincore(p, len, vec) == 0, "mincore");
    size_t n = 0;
    for (size_t i = 0; i < len / PAGE; i++)
        n += vec[i] & 1;
    return n;
}

static void expect(char *p, size_t len, size_t pages, const char *what) {
    size_t n = present(p, len);
    CHECK(!managed || n == pages, "%s: %zu pages in memory, not %zu", what, n, pages);
}

// Touches a page in the middle of each unit.
static void touch(char *p, size_t len) {
    for (size_t at = 0; at < len; at += UNIT)
        p[at + UNIT / 2] = 1;
}

static void where_it_was_said(void) {
    size_t len = 32 * MIB;
    char *p = map(len);
    advise(p, len / 2, MADV_NOHUGEPAGE);
    touch(p, len);
    expect(p, len / 2, 8, "advised against");
    expect(p + len / 2, len / 2, 8 * 512, "not advised");
    // It goes with the memory, and holds for what is added to it.
    char *q = mremap(p, len / 2, len, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap");
    for (size_t at = 0; at < len; at += UNIT)
        CHECK(q[at + UNIT / 2] == (at < len / 2), "moved, at %zu", at);
    advise(q, len, MADV_DONTNEED);
    touch(q, len);
    expect(q, len, 16, "moved and grown");
    // A child has it too, and its own from then on.
    pid_t child = fork();
    if (child == 0) {
        advise(q, len, MADV_DONTNEED);
        touch(q, len / 2);
        expect(q, len / 2, 8, "in the child");
        advise(q, len, MADV_HUGEPAGE);
        touch(q + len / 2, len / 2);
        expect(q + len / 2, len / 2, 8 * 512, "in the child, advised otherwise");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
    advise(q, len, MADV_DONTNEED);
    touch(q, len);
    expect(q, len, 16, "after the child");
    CHECK(munmap(q, len) == 0 && (q != p ? munmap(p + len / 2, len / 2) : 0) == 0, "munmap");
    // New memory knows nothing of it.
    p = map(len);
    touch(p, len);
    expect(p, len, 16 * 512, "mapped anew");
    CHECK(munmap(p, len) == 0, "munmap");
    // Nor has a block that is given out again.
    for (int i = 0; i < 2; i++) {
        CHECK(posix_memalign((void **)&p, UNIT, 4 * MIB) == 0, "posix_memalign");
        memset(p, 1, 4 * MIB);
        advise(p, 4 * MIB, MADV_DONTNEED);
        touch(p, 4 * MIB);
        expect(p, 4 * MIB, 2 * 512, "a block");
        advise(p, 4 * MIB, MADV_NOHUGEPAGE);
        free(p);
    }
}

// What a program does to memory by base pages, part by part.
static void treated(char *ballast, size_t ballast_len) {
    size_t len = 24 * MIB;
    char *p = map(len);
    advise(p, len, MADV_NOHUGEPAGE);
    verify_zero(p, 3 * MIB, "never written");
    fill(p, len, 1);
    fill(ballast, ballast_len, 2);
    verify(p, len, 1, "after the ballast");
    // Its own write to memory that it made read-only is SIGSEGV, whether the page is there or not.
    CHECK(mprotect(p, 8 * MIB, PROT_READ) == 0, "mprotect");
    char *there = p + UNIT + 5 * PAGE;
    CHECK(*(volatile char *)there == *there, "read");
    char *wrong[] = {there, there + 9 * PAGE, p + 2 * UNIT};
    for (int i = 0; i < 3; i++) {
        caught = 0;
        if (sigsetjmp(jump, 1) == 0) {
            *(volatile char *)wrong[i] = 1;
            CHECK(0, "a write to read-only memory, %d, went through", i);
        }
        CHECK(caught == SIGSEGV, "signal %d for write %d", (int)caught, i);
    }
    verify(p, len, 1, "read-only");
    CHECK(mprotect(p, 8 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    fill(p, 8 * MIB, 1);
    char *q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, map(len));
    CHECK(q != MAP_FAILED, "mremap");
    verify(q, len, 1, "moved");
    fill(q, len, 3);
    q = mremap(q, len, 40 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap");
    verify(q, len, 3, "grown");
    verify_zero(q + len, 40 * MIB - len, "grown by");
    CHECK(munmap(q + 10 * MIB, 30 * MIB) == 0, "munmap of a part");
    verify(q, 10 * MIB, 3, "cut");
    CHECK(munmap(q, 10 * MIB) == 0, "munmap");
}

// Advice for parts of units.
static void parts(char *ballast, size_t ballast_len, int advice) {
    size_t len = 16 * MIB;
    char *p = map(len);
    advise(p, len, advice);
    fill(p, len, 1);
    fill(ballast, ballast_len, 4);
    // Across the border of two units, and within one.
    advise(p + UNIT - 3 * PAGE, 7 * PAGE, MADV_DONTNEED);
    advise(p + 4 * UNIT + 9 * PAGE, 100 * PAGE, MADV_DONTNEED);
    verify_zero(p + UNIT - 3 * PAGE, 7 * PAGE, "given up");
    verify_zero(p + 4 * UNIT + 9 * PAGE, 100 * PAGE, "given up");
    verify_from(p, 0, UNIT - 3 * PAGE, 1, "before");
    size_t next = UNIT + 4 * PAGE;
    verify_from(p + next, next / 8, 4 * UNIT + 9 * PAGE - next, 1, "between");
    next = 4 * UNIT + 109 * PAGE;
    verify_from(p + next, next / 8, len - next, 1, "after");
    fill(p, len, 1);
    fill(ballast, ballast_len, 5);
    advise(p + 3 * UNIT + PAGE, 50 * PAGE, MADV_FREE);
    advise(p + 5 * UNIT + PAGE, 50 * PAGE, MADV_WILLNEED);
    advise(p + 6 * UNIT - PAGE, 50 * PAGE, 21 /* MADV_PAGEOUT */);
    advise(p + UNIT + PAGE, 50 * PAGE, 20 /* MADV_COLD */);
    p[3 * UNIT + PAGE] = 1;
    CHECK(p[3 * UNIT + PAGE] == 1, "written after it was freed");
    fill(p + 3 * UNIT + PAGE, 50 * PAGE, 6);
    verify(p + 3 * UNIT + PAGE, 50 * PAGE, 6, "freed and filled");
    verify_from(p, 0, 3 * UNIT + PAGE, 1, "before what was freed");
    next = 3 * UNIT + 51 * PAGE;
    verify_from(p + next, next / 8, len - next, 1, "after what was freed");
    // A hole in the middle of a unit, and new memory in it.
    CHECK(munmap(p + 2 * UNIT + 7 * PAGE, 300 * PAGE) == 0, "munmap of a part");
    verify_from(p, 0, 2 * UNIT + 7 * PAGE, 1, "before the hole");
    char *q = mmap(NULL, 300 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(q != MAP_FAILED, "mmap");
    verify_zero(q, 300 * PAGE, "new memory");
    memset(q, 3, 300 * PAGE);
    next = 2 * UNIT + 307 * PAGE;
    verify_from(p + next, next / 8, UNIT - 307 * PAGE, 1, "after the hole");
    CHECK(munmap(q, 300 * PAGE) == 0 && munmap(p, len) == 0, "munmap");
}

// Every page of a range is there after it was asked for.
static void populated(int advice, int populate) {
    char *p = map(8 * MIB);
    advise(p, 8 * MIB, advice);
    if (madvise(p + 5 * PAGE, 4 * MIB, populate)) {
        CHECK(errno == EINVAL, "populate");
        munmap(p, 8 * MIB);
        return;
    }
    CHECK(present(p + 5 * PAGE, 4 * MIB) == 1024, "%zu pages populated", present(p + 5 * PAGE, 4 * MIB));
    verify_zero(p, 8 * MIB, "populated");
    CHECK(munmap(p, 8 * MIB) == 0, "munmap");
}

int main(int argc, char **argv) {
    size_t ballast_len = (size_t)atoi(argc > 1 ? argv[1] : "96") * MIB;
    managed = getenv("HUGESWAP_POOL") != NULL;
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    where_it_was_said();
    char *ballast = malloc(ballast_len);
    CHECK(ballast, "malloc");
    treated(ballast, ballast_len);
    parts(ballast, ballast_len, MADV_NOHUGEPAGE);
    parts(ballast, ballast_len, MADV_NORMAL);
    parts(ballast, ballast_len, MADV_SEQUENTIAL);
    parts(ballast, ballast_len, MADV_RANDOM);
    memset(ballast, 0, ballast_len);
    madvise(ballast, ballast_len, MADV_DONTNEED);
    populated(MADV_NOHUGEPAGE, 22 /* MADV_POPULATE_READ */);
    populated(MADV_NOHUGEPAGE, 23 /* MADV_POPULATE_WRITE */);
    populated(MADV_NORMAL, 23);
    fill(ballast, ballast_len, 9);
    verify(ballast, ballast_len, 9, "ballast");
    printf("%lx\n", (unsigned long)sum(ballast, ballast_len));
    free(ballast);
    return 0;
}
