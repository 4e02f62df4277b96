// Calls on the address space with arguments of every kind, most of them wrong, on memory of every kind. Prints of
// each call what it answers, and of what is there afterwards how much is mapped and what it holds: the kernel's
// answers are those of a plain run.
// refusals RAW EVICT EVERY
// RAW: 1 to make the calls by an instruction of the program's own. EVICT: 1 to push memory out before each call.
// EVERY: about one of so many calls is made (1: all 21,313).
#include "common.h"
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { REGION = 16, FILE_MIB = 2 };
static char *base;
static int file, unwritable, raw, evicting;
static unsigned long calls, every, made;
static char vec[64 * 1024];

// Parts of the region, in MiB; what is in none of them is not mapped.
static const struct part {
    double from, to;
    int prot, flags, which; // which: 1 file, 2 file that can only be read
} parts[] = {
    {0, 4, RW, ANON, 0},           {4.0078125, 5, RW, ANON, 0},      {5, 6, PROT_NONE, ANON, 0},
    {6, 8, PROT_READ, ANON, 0},    {8, 10, RW, MAP_SHARED | MAP_ANONYMOUS, 0}, {10, 11, RW, MAP_PRIVATE, 1},
    {11, 12, PROT_READ, MAP_SHARED, 2}, {12, 14.5, RW, ANON, 0},
};
enum { PARTS = sizeof parts / sizeof *parts };

static size_t bytes(double mib) { return (size_t)(mib * 1048576); }

static void lay_out(void) {
    CHECK(munmap(base, REGION * MIB) == 0, "munmap");
    for (int i = 0; i < PARTS; i++) {
        const struct part *p = &parts[i];
        char *at = base + bytes(p->from);
        size_t len = bytes(p->to) - bytes(p->from);
        int fd = p->which == 1 ? file : p->which == 2 ? unwritable : -1;
        int first = fd < 0 ? RW : p->prot;
        CHECK(mmap(at, len, first, p->flags | MAP_FIXED, fd, 0) == at, "part %d", i);
        if (fd < 0)
            for (size_t k = 0; k < len; k += 256 * KIB)
                *(uint64_t *)(at + k) = value(k, (uint64_t)i + 1);
        if (first != p->prot)
            CHECK(mprotect(at, len, p->prot) == 0, "protect part %d", i);
    }
    // One page without access, one that can only be read, and one page that is locked. (The unit from 2 MiB on stays
    // as it is, so that hugeswap has something to push out in every mode.)
    CHECK(mprotect(base + MIB, PAGE, PROT_NONE) == 0, "protect a page");
    CHECK(mprotect(base + 3 * MIB / 2, PAGE, PROT_READ) == 0, "protect a page");
    CHECK(mlock(base + 13 * MIB, PAGE) == 0, "lock a page");
}

static sigjmp_buf out;
static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info, (void)context;
    siglongjmp(out, 1);
}

// What can be done at an address: -, r, w; and 64 bits of it.
static char touch(volatile uint64_t *at, volatile uint64_t *holds) {
    volatile char can = '-';
    *holds = 0;
    if (sigsetjmp(out, 1) == 0) {
        *holds = *at;
        can = 'r';
        *at = *holds;
        can = 'w';
    }
    return can;
}

// A sum of what the region is.
static uint64_t state(char *can) {
    uint64_t h = 0;
    size_t n = 0;
    for (size_t at = 0; at < REGION * MIB; at += 256 * KIB) {
        uint64_t holds;
        unsigned char in;
        char c = mincore(base + at, PAGE, &in) ? '.' : touch((uint64_t *)(base + at), &holds);
        if (c == 'r' || c == 'w')
            h = (h ^ holds) * 0x100000001b3u + (h >> 29);
        can[n++] = c;
    }
    can[n] = 0;
    return h;
}

static long make(long nr, const long *a) {
    if (!raw)
        switch (nr) {
        case SYS_mmap:
            return (long)mmap((void *)a[0], (size_t)a[1], (int)a[2], (int)a[3], (int)a[4], a[5]);
        case SYS_munmap:
            return munmap((void *)a[0], (size_t)a[1]);
        case SYS_mremap:
            return (long)mremap((void *)a[0], (size_t)a[1], (size_t)a[2], (int)a[3], (void *)a[4]);
        case SYS_mprotect:
            return mprotect((void *)a[0], (size_t)a[1], (int)a[2]);
        case SYS_madvise:
            return madvise((void *)a[0], (size_t)a[1], (int)a[2]);
        case SYS_msync:
            return msync((void *)a[0], (size_t)a[1], (int)a[2]);
        case SYS_mincore:
            return mincore((void *)a[0], (size_t)a[1], (unsigned char *)a[2]);
        case SYS_mlock:
            return mlock((void *)a[0], (size_t)a[1]);
        case SYS_munlock:
            return munlock((void *)a[0], (size_t)a[1]);
        }
    long r;
    register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(nr), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (r < 0 && r > -4096) {
        errno = (int)-r;
        return -1;
    }
    return r;
}

// As it is printed: addresses of the program's own are the same word each time.
static const char *number(long n) {
    static char text[24];
    if ((char *)n == vec)
        return "vec";
    snprintf(text, sizeof text, "%#lx", n);
    return text;
}

static const char *name_of(int error) {
    static char text[24];
    switch (error) {
    case EINVAL:
        return "EINVAL";
    case ENOMEM:
        return "ENOMEM";
    case EFAULT:
        return "EFAULT";
    case EEXIST:
        return "EEXIST";
    case EACCES:
        return "EACCES";
    case EBUSY:
        return "EBUSY";
    }
    snprintf(text, sizeof text, "error %d", error);
    return text;
}

// Makes a call and prints what comes of it. Addresses in the region are printed from its beginning.
static void call(const char *name, long nr, long a0, long a1, long a2, long a3, long a4, long a5) {
    static char before[128], after[128];
    static uint64_t was;
    long a[6] = {a0, a1, a2, a3, a4, a5};
    // (Neighbours differ in one argument only: which are made follows no order of theirs. All are made of lengths that
    // somebody could want to go through page by page.)
    int long_one = nr == SYS_mremap && a1 == LONG_MIN && a3 == 0;
    if ((calls++ * 0x9e3779b97f4a7c15u >> 32) % every && !long_one)
        return;
    made++;
    if (!before[0])
        was = state(before);
    if (evicting)
        madvise(base, 4 * MIB, 21 /* MADV_PAGEOUT */);
    errno = 0;
    long got = make(nr, a);
    int error = got == -1 ? errno : 0;
    printf("%s(", name);
    for (int i = 0; i < 6; i++)
        if ((char *)a[i] >= base - REGION * MIB && (char *)a[i] < base + 2 * REGION * MIB)
            printf("%sbase%+ld", i ? ", " : "", a[i] - (long)base);
        else
            printf("%s%s", i ? ", " : "", number(a[i]));
    // A place of the kernel's choice, whichever that is, is given up again.
    int places = got != -1 && (nr == SYS_mmap || nr == SYS_mremap);
    int chosen = places && got != a0 && !(nr == SYS_mremap && a3 & MREMAP_FIXED && got == a4);
    if (chosen)
        CHECK(munmap((void *)got, (size_t)(nr == SYS_mmap ? a1 : a2)) == 0, "munmap of the new");
    uint64_t is = state(after);
    if (got == -1)
        printf(") = %s", name_of(error));
    else if (chosen)
        printf(") = elsewhere");
    else if (places)
        printf(") = base%+ld", got - (long)base);
    else
        printf(") = %ld", got);
    // (What may be freed is there for as long as nobody needs it.)
    int told = !(nr == SYS_madvise && a2 == MADV_FREE);
    if (!told || (is == was && strcmp(before, after) == 0))
        printf("\n");
    else
        printf(": %s %#lx\n", after, (unsigned long)is);
    if (!told || got != -1 || is != was || strcmp(before, after) != 0) {
        lay_out();
        was = state(before);
    }
}
#define CALL(nr, ...) call(#nr, SYS_##nr, __VA_ARGS__)

int main(int argc, char **argv) {
    CHECK(argc == 4, "refusals RAW EVICT EVERY");
    begin();
    raw = atoi(argv[1]), evicting = atoi(argv[2]), every = strtoul(argv[3], NULL, 10);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    FILE *f = tmpfile();
    CHECK(f && ftruncate(fileno(f), FILE_MIB * MIB) == 0, "a file");
    file = fileno(f);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    FILE *g = fopen(path, "r");
    CHECK(g, "the file again");
    unwritable = fileno(g);
    char *all = mmap(NULL, (REGION + 6) * MIB, RW, ANON, -1, 0);
    CHECK(all != MAP_FAILED, "a region");
    base = (char *)(((size_t)all + UNIT - 1) & ~(UNIT - 1)) + UNIT;
    munmap(all, (REGION + 6) * MIB);
    lay_out();

    // Places: in each part, not aligned, beside holes, beyond the end, and where no program has memory.
    double places[] = {0, 0.5, 1, 1.5, 2, 3, 4, 4.0078125, 4.5, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 14.5, 15.5};
    size_t lens[] = {1, PAGE, 2 * PAGE, 512 * KIB, MIB, 2 * MIB, 3 * MIB + PAGE};
    size_t odd[] = {0, (size_t)-1, (size_t)-(long)PAGE, (size_t)1 << 63};
    enum { PLACES = sizeof places / sizeof *places, LENS = sizeof lens / sizeof *lens, ODD = sizeof odd / sizeof *odd };
    static const int advice[] = {0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 5, 99, -1};
    static const int prots[] = {PROT_NONE, PROT_READ, RW, RW | PROT_EXEC, 0x40, RW | PROT_GROWSDOWN};
    for (int i = 0; i < PLACES; i++) {
        long at = (long)base + (long)bytes(places[i]);
        for (int k = 0; k < LENS + ODD; k++) {
            long len = (long)(k < LENS ? lens[k] : odd[k - LENS]);
            // What is mapped beyond the region is not ours.
            if (k < LENS && at + len > (long)base + REGION * (long)MIB)
                continue;
            CALL(munmap, at, len, 0L, 0L, 0L, 0L);
            for (size_t n = 0; n < sizeof prots / sizeof *prots - (k >= LENS); n++)
                CALL(mprotect, at, len, (long)prots[n], 0L, 0L, 0L);
            // (Half of all addresses are the stack's and hugeswap's, too.)
            for (size_t n = 0; n < sizeof advice / sizeof *advice && len != LONG_MIN; n++)
                CALL(madvise, at, len, (long)advice[n], 0L, 0L, 0L);
            for (long flags = 0; flags < 8 && len != LONG_MIN; flags++)
                CALL(msync, at, len, flags, 0L, 0L, 0L);
            if (k < LENS)
                CALL(mincore, at, len, (long)vec, 0L, 0L, 0L);
            CALL(mincore, at, len, 8L, 0L, 0L, 0L);
            CALL(mlock, at, len, 0L, 0L, 0L, 0L);
            CALL(munlock, at, len, 0L, 0L, 0L, 0L);
            for (long flags = 0; flags < 8; flags++)
                for (int n = 0; n < 5; n++) {
                    long to = (long)base + (long)bytes((double[]){0, 2, 4.5, 12, 14.75}[n]);
                    long more = (long[]){len, len + (long)PAGE, len - (long)PAGE, (long)MIB, 0}[n];
                    if ((flags & 2) == 0 && n > 4)
                        continue;
                    // (What a call that fails has done by then differs from kernel to kernel.)
                    if (flags & 2 && k >= LENS && n)
                        continue;
                    if (flags & 2 && to + more > (long)base + REGION * (long)MIB)
                        continue;
                    CALL(mremap, at, len, more, flags, to, 0L);
                }
            static const long flags[] = {ANON | MAP_FIXED, ANON | MAP_FIXED_NOREPLACE, ANON, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED,
                                         MAP_ANONYMOUS | MAP_FIXED, 3 | MAP_ANONYMOUS | MAP_FIXED, MAP_PRIVATE | MAP_FIXED,
                                         ANON | MAP_FIXED | MAP_NORESERVE | MAP_STACK, ANON | MAP_FIXED | MAP_POPULATE};
            for (size_t n = 0; n < sizeof flags / sizeof *flags; n++) {
                CALL(mmap, at, len, (long)RW, flags[n], -1L, 0L);
                CALL(mmap, at, len, (long)PROT_NONE, flags[n], -1L, 0L);
            }
            if (len <= FILE_MIB * (long)MIB && len > 0) {
                CALL(mmap, at, len, (long)RW, (long)(MAP_PRIVATE | MAP_FIXED), (long)file, 0L);
                CALL(mmap, at, len, (long)RW, (long)(MAP_PRIVATE | MAP_FIXED), (long)file, 100L);
                CALL(mmap, at, len, (long)RW, (long)(MAP_SHARED | MAP_FIXED), (long)unwritable, 0L);
            }
        }
        // Addresses that are no page's.
        for (long inside = 1; inside < (long)PAGE; inside += 2047) {
            CALL(munmap, at + inside, (long)PAGE, 0L, 0L, 0L, 0L);
            CALL(mprotect, at + inside, (long)PAGE, (long)PROT_READ, 0L, 0L, 0L);
            CALL(madvise, at + inside, (long)PAGE, (long)MADV_DONTNEED, 0L, 0L, 0L);
            CALL(msync, at + inside, (long)PAGE, 4L, 0L, 0L, 0L);
            CALL(mincore, at + inside, (long)PAGE, (long)vec, 0L, 0L, 0L);
            CALL(mlock, at + inside, (long)PAGE, 0L, 0L, 0L, 0L);
            CALL(mremap, at + inside, (long)PAGE, (long)(2 * PAGE), 1L, 0L, 0L);
            CALL(mmap, at + inside, (long)PAGE, (long)RW, (long)(ANON | MAP_FIXED), -1L, 0L);
        }
    }
    printf("%lu calls of %lu\n", made, calls);
    return 0;
}
