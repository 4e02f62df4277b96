// Memory that was locked leaves memory again once it is unlocked: all of a mapping, a page of it, by munlockall, after a lock
// that failed; also while threads write to it, and lock it again. What is still locked stays, and so does what the kernel
// was told more of. Prints which of it has left.
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

static const size_t LEN = 8 * MIB;

static char *map(uint64_t seed) {
    char *p = mmap(NULL, LEN, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, LEN, seed);
    return p;
}

// How many of its pages are in memory.
static size_t there(char *p) {
    static unsigned char vec[8 * MIB / PAGE];
    CHECK(mincore(p, LEN, vec) == 0, "mincore");
    size_t n = 0;
    for (size_t i = 0; i < LEN / PAGE; i++)
        n += vec[i] & 1;
    return n;
}

// Says how many units of 2 MiB stay of what is to leave, checks the rest's bytes, and unmaps it.
static void leaves(const char *what, char *p, uint64_t seed) {
    // (It ends at the first unit that is locked.)
    for (size_t i = 0; i < LEN; i += UNIT)
        evict(p + i, UNIT);
    printf("%s: %zu of 4 stay\n", what, (there(p) + 511) / 512);
    verify(p, LEN, seed, what);
    fill(p, LEN, seed + 1);
    evict(p, LEN);
    verify(p, LEN, seed + 1, what);
    CHECK(munmap(p, LEN) == 0, "munmap");
}

static void *writes(void *of) {
    volatile char *p = of;
    for (int turn = 0; turn < 200; turn++)
        for (size_t i = 0; i < LEN; i += 16 * PAGE)
            p[i + 8]++;
    return NULL;
}

static void *locks(void *of) {
    for (int turn = 0; turn < 100; turn++) {
        char *p = (char *)of + (size_t)turn * 37 % 500 * PAGE;
        CHECK(mlock(p, PAGE) == 0, "mlock");
        CHECK(munlock(p, PAGE) == 0, "munlock");
    }
    return NULL;
}

static void *sleeps(void *of) {
    struct timespec *left = of;
    *left = (struct timespec){0, 300000000};
    CHECK(nanosleep(left, left) == 0, "nanosleep");
    return NULL;
}

static volatile sig_atomic_t handled;

static void on_signal(int sig) {
    char *volatile here = (char *)&here;
    handled = sig + (here != NULL);
}

int main(void) {
    char *p = map(1);
    CHECK(mlock(p, LEN) == 0, "mlock");
    printf("locked: %zu\n", there(p) / 512);
    CHECK(munlock(p, LEN) == 0, "munlock");
    leaves("all", p, 1);

    p = map(3);
    CHECK(mlock(p + 3 * MIB, PAGE) == 0, "mlock of a page");
    CHECK(munlock(p + 3 * MIB, PAGE) == 0, "munlock of a page");
    leaves("a page", p, 3);

    // Two locked pages of a unit, and one of another; one is left in each.
    p = map(5);
    CHECK(mlock(p, 2 * PAGE) == 0 && mlock(p + 5 * MIB, 3 * PAGE) == 0, "mlock of some");
    CHECK(munlock(p, PAGE) == 0 && munlock(p + 5 * MIB + PAGE, 2 * PAGE) == 0, "munlock of some");
    leaves("what is locked in part", p, 5);

    // What is mapped over a locked page is not locked.
    p = map(23);
    CHECK(mlock(p, PAGE) == 0 && mlock(p + MIB, PAGE) == 0, "mlock of two");
    CHECK(mmap(p, PAGE, RW, ANON | MAP_FIXED, -1, 0) == p && munlock(p + MIB, PAGE) == 0, "one is gone");
    verify_zero(p, PAGE, "mapped over");
    fill(p, LEN, 23);
    leaves("mapped over", p, 23);

    p = map(25);
    CHECK(mlock(p, PAGE) == 0 && mmap(p, PAGE, RW, ANON | MAP_FIXED, -1, 0) == p, "all of it is gone");
    fill(p, LEN, 25);
    leaves("all mapped over", p, 25);

    // A call uses it, and ends later.
    p = map(27);
    CHECK(mlock(p, LEN) == 0, "mlock");
    pthread_t sleeper;
    CHECK(pthread_create(&sleeper, NULL, sleeps, p + MIB) == 0, "thread");
    usleep(100000);
    CHECK(munlock(p, LEN) == 0, "munlock");
    CHECK(pthread_join(sleeper, NULL) == 0, "join");
    fill(p, LEN, 27);
    leaves("used by a call", p, 27);

    p = map(7);
    CHECK(mlock(p, PAGE) == 0 && mlock(p + 7 * MIB, PAGE) == 0, "mlock of two");
    CHECK(munlockall() == 0, "munlockall");
    leaves("by munlockall", p, 7);

    // The kernel was told more of it.
    p = map(9);
    CHECK(mlock(p, PAGE) == 0 && madvise(p, PAGE, MADV_WIPEONFORK) == 0, "wiped at a fork");
    CHECK(mlock(p + 2 * MIB, PAGE) == 0 && mprotect(p + 2 * MIB, PAGE, PROT_READ) == 0, "read-only");
    CHECK(munlock(p, LEN) == 0, "munlock");
    CHECK(mprotect(p + 2 * MIB, PAGE, RW) == 0, "writable");
    leaves("with advice, with access", p, 9);

    // It is used by its address: signals are handled there.
    p = map(21);
    const stack_t stack = {.ss_sp = p + MIB, .ss_size = 256 * KIB}, none_at_all = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&stack, NULL) == 0, "a stack");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "a handler");
    CHECK(mlock(p, PAGE) == 0 && munlock(p, PAGE) == 0, "locked beside it");
    for (size_t i = 0; i < LEN; i += UNIT)
        evict(p + i, UNIT);
    CHECK(raise(SIGUSR1) == 0 && handled == SIGUSR1 + 1, "handled");
    CHECK(sigaltstack(&none_at_all, NULL) == 0, "none");
    fill(p, LEN, 21);
    leaves("a stack", p, 21);

    // A child has what was locked, and it is not locked there.
    p = map(11);
    CHECK(mlock(p, LEN) == 0, "mlock");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        CHECK(munlock(p, LEN) == 0, "munlock in a child");
        verify(p, LEN, 11, "in a child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "child: %x", status);
    CHECK(munlock(p, LEN) == 0, "munlock");
    leaves("after a fork", p, 11);

    // Again and again: each turn costs more than the call, so it is the kernel's in the end.
    p = map(13);
    for (int i = 0; i < 20; i++)
        CHECK(mlock(p, PAGE) == 0 && munlock(p, PAGE) == 0, "turn %d", i);
    leaves("again and again", p, 13);

    // Moved while it is locked, and unlocked there.
    p = map(15);
    CHECK(mlock(p, LEN) == 0, "mlock");
    char *q = mremap(p, LEN, 2 * LEN, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED && munlock(q, 2 * LEN) == 0, "moved");
    verify(q, LEN, 15, "moved");
    verify_zero(q + LEN, LEN, "grown");
    CHECK(munmap(q + LEN, LEN) == 0, "munmap");
    evict(q, LEN);
    verify(q, LEN, 15, "moved, and evicted");
    CHECK(munmap(q, LEN) == 0, "munmap");

    // A lock beyond the limit fails, and nothing stays because of it.
    p = map(17);
    const struct rlimit none = {PAGE, PAGE};
    struct rlimit was;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &was) == 0, "limit");
    if (geteuid() != 0) {
        CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0, "no locks");
        CHECK(mlock(p, LEN) != 0, "a lock beyond the limit");
    }
    leaves("failed", p, 17);

    // Threads write to it while it becomes the kernel's and the engine's; two lock and unlock the same pages.
    p = map(19);
    for (size_t i = 0; i < LEN; i += 16 * PAGE)
        p[i + 8] = 0;
    pthread_t writer, other;
    CHECK(pthread_create(&writer, NULL, writes, p) == 0 && pthread_create(&other, NULL, locks, p) == 0, "threads");
    if (geteuid() == 0)
        locks(p);
    CHECK(pthread_join(writer, NULL) == 0 && pthread_join(other, NULL) == 0, "joined");
    for (size_t i = 0; i < LEN; i += 16 * PAGE)
        CHECK(p[i + 8] == (char)200, "byte %zu: %d", i, p[i + 8]);
    return 0;
}
