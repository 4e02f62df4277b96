// Guards (MADV_GUARD_INSTALL), at random, on memory that does not fit: a touch of one is SIGSEGV, by system calls EFAULT, everything else is as it was.
// guard SIZE_MIB
#include "common.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static sigjmp_buf back;
static volatile int code, expected;

static void on_segv(int n, siginfo_t *info, void *context) {
    (void)n;
    (void)context;
    CHECK(expected, "a fault at %p", info->si_addr);
    code = info->si_signo == SIGSEGV ? info->si_code : -1;
    siglongjmp(back, 1);
}

static int faults(volatile char *p, int write) {
    int faulted = 1;
    expected = 1;
    if (!sigsetjmp(back, 1)) {
        if (write)
            *p = 1;
        else
            (void)*p;
        faulted = 0;
    }
    expected = 0;
    return faulted;
}

static uint64_t x = 88172645463325252u;

static uint64_t draw(void) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

// 0: as filled, 1: zeros; 2 more: a guard.
static void look(char *p, const unsigned char *is, size_t n, size_t step) {
    for (size_t i = step % 11; i < n; i += 11) {
        uint64_t *word = (uint64_t *)(p + i * PAGE + 64);
        if (is[i] & 2) {
            if (i % 5 == 0) {
                CHECK(faults((char *)word, i % 2), "page %zu is no guard", i);
                CHECK(code == SEGV_MAPERR, "page %zu: code %d", i, code);
            }
        } else {
            uint64_t want = is[i] & 1 ? 0 : i * 7 + 1;
            CHECK(*word == want, "page %zu, step %zu: %lu and not %lu", i, step, (unsigned long)*word, (unsigned long)want);
        }
    }
}

static void calls(char *p, const unsigned char *is, size_t n) {
    int zero = open("/dev/zero", O_RDONLY), null[2];
    CHECK(zero >= 0 && pipe(null) == 0, "files");
    size_t guards = 0, others = 0;
    for (size_t i = 0; i < n && (guards < 20 || others < 20); i++) {
        char *at = p + i * PAGE;
        ssize_t out = write(null[1], at, 16);
        if (is[i] & 2) {
            CHECK(out == -1 && errno == EFAULT, "write of a guard: %zd", out);
            CHECK(read(zero, at, 16) == -1 && errno == EFAULT, "read to a guard");
            guards++;
        } else {
            char got[16];
            CHECK(out == 16 && read(null[0], got, 16) == 16 && memcmp(got, at, 16) == 0, "write of page %zu: %zd", i, out);
            CHECK(read(zero, at, 16) == 16, "read to page %zu", i);
            others++;
        }
    }
    // As much as a call takes before the guard.
    for (size_t i = 1; i < n; i++)
        if ((is[i] & 2) && !(is[i - 1] & 2)) {
            CHECK(read(zero, p + i * PAGE - 16, 8) == 8, "before the guard");
            break;
        }
    close(zero), close(null[0]), close(null[1]);
}

static void tell(char *p, const unsigned char *is, size_t n) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    uint64_t *e = calloc(n, 8);
    CHECK(fd >= 0 && e, "pagemap");
    CHECK(pread(fd, e, n * 8, (size_t)p / PAGE * 8) == (ssize_t)n * 8, "pread");
    int told = 0;
    for (size_t i = 0; i < n; i++)
        told |= e[i] >> 58 & 1;
    // (Since Linux 6.15.)
    for (size_t i = 0; i < n && told; i++)
        CHECK((e[i] >> 58 & 1) == (is[i] & 2u) / 2, "page %zu is told as %#lx", i, (unsigned long)e[i]);
    free(e), close(fd);
}

// In memory that is paged out, and that nobody may touch: the rest of it keeps its bytes, and is not opened.
static void without_access(void) {
    size_t len = 8 << 20, n = len / PAGE;
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    for (size_t i = 0; i < n; i++)
        *(uint64_t *)(p + i * PAGE) = i + 3;
    CHECK(madvise(p, len, MADV_PAGEOUT) == 0 && mprotect(p, len, PROT_NONE) == 0, "out, and closed");
    for (size_t i = 700; i < 703; i++)
        CHECK(madvise(p + i * PAGE, PAGE, GUARD_INSTALL) == 0, "install where there is no access");
    for (size_t i = 0; i < n; i += 25)
        CHECK(faults(p + i * PAGE, i % 2) && code == SEGV_ACCERR, "page %zu is open, or code %d", i, code);
    CHECK(mprotect(p, len, PROT_READ | PROT_WRITE) == 0, "mprotect");
    for (size_t i = 0; i < n; i++) {
        int guard = i >= 700 && i < 703;
        if (guard)
            CHECK(faults(p + i * PAGE, i % 2) && code == SEGV_MAPERR, "page %zu is no guard", i);
        else
            CHECK(*(uint64_t *)(p + i * PAGE) == i + 3, "page %zu", i);
    }
    CHECK(madvise(p, len, GUARD_REMOVE) == 0 && *(uint64_t *)(p + 701 * PAGE) == 0, "remove");
    CHECK(munmap(p, len) == 0, "munmap");
}

int main(int argc, char **argv) {
    size_t len = (argc > 1 ? strtoul(argv[1], 0, 0) : 32) << 20, n = len / PAGE;
    struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *is = calloc(n, 1);
    CHECK(p != MAP_FAILED && is, "mmap");
    if (madvise(p, PAGE, GUARD_INSTALL)) {
        CHECK(errno == EINVAL, "MADV_GUARD_INSTALL");
        puts("no guards here");
        return 0;
    }
    CHECK(madvise(p, PAGE, GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    for (size_t i = 0; i < n; i++)
        *(uint64_t *)(p + i * PAGE + 64) = i * 7 + 1;
    for (size_t step = 0; step < 300; step++) {
        uint64_t r = draw();
        size_t first = (r >> 8) % n, pages = (size_t)1 << (r >> 40 & 7);
        if (pages > n - first)
            pages = n - first;
        char *at = p + first * PAGE;
        switch (r % 4) {
        case 0:
        case 1:
            CHECK(madvise(at, pages * PAGE, GUARD_INSTALL) == 0, "install");
            memset(is + first, 3, pages);
            break;
        case 2:
            CHECK(madvise(at, pages * PAGE, GUARD_REMOVE) == 0, "remove");
            for (size_t i = first; i < first + pages; i++)
                is[i] &= ~2;
            break;
        default:
            CHECK(madvise(at, pages * PAGE, MADV_DONTNEED) == 0, "discard");
            for (size_t i = first; i < first + pages; i++)
                is[i] |= 1;
        }
        look(p, is, n, step);
    }
    tell(p, is, n);
    pid_t child = fork();
    if (child == 0) {
        look(p, is, n, 3);
        calls(p, is, n);
        look(p, is, n, 5);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
    calls(p, is, n);
    look(p, is, n, 7);
    // Elsewhere.
    char *q = mremap(p, len, len + (8 << 20), MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap");
    look(q, is, n, 9);
    tell(q, is, n);
    CHECK(madvise(q, len, GUARD_REMOVE) == 0, "remove all");
    for (size_t i = 0; i < n; i++)
        is[i] &= ~2;
    for (size_t step = 0; step < 11; step++)
        look(q, is, n, step);
    CHECK(munmap(q, len + (8 << 20)) == 0, "munmap");
    without_access();
    puts("ok");
    return 0;
}
