// What programs do with their memory: malloc and its kin, mmap, mremap, munmap, madvise, mprotect.
// memory BALLAST_MIB
#include "common.h"
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

static sigjmp_buf jump;
static volatile sig_atomic_t caught;
static void *volatile caught_at;
static char *volatile open_page;

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    caught = sig;
    caught_at = info->si_addr;
    if (open_page && (char *)info->si_addr >= open_page && (char *)info->si_addr < open_page + PAGE) {
        // As garbage collectors do: note the write and let it through.
        if (mprotect(open_page, PAGE, PROT_READ | PROT_WRITE))
            _exit(4);
        open_page = NULL;
        return;
    }
    siglongjmp(jump, 1);
}

// Touching `p` must bring SIGSEGV with that address to the program's own handler.
static void must_fault(volatile char *p, int writing, const char *what) {
    caught = 0;
    if (sigsetjmp(jump, 1) == 0) {
        if (writing)
            *p = 1;
        else
            (void)*p;
        CHECK(0, "%s: a touch of %p went through", what, (void *)p);
    }
    CHECK(caught == SIGSEGV, "%s: signal %d", what, (int)caught);
    CHECK(caught_at == p, "%s: fault said to be at %p, not %p", what, (void *)caught_at, (void *)p);
}

static void sizes(void) {
    static const size_t list[] = {1 * MIB,          1 * MIB + 1,  3 * MIB + 4095, 2 * MIB - 24, 5 * MIB, 8 * MIB,
                                  17 * MIB + 12345, 32 * MIB - 1, 64 * MIB};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        size_t n = list[k];
        char *p = malloc(n);
        CHECK(p && ((size_t)p & 15) == 0, "malloc %zu", n);
        CHECK(malloc_usable_size(p) >= n, "usable size");
        fill(p, n, k);
        evict(p, n);
        verify(p, n, k, "malloc");
        size_t more = n + n / 2;
        evict(p, n);
        CHECK((p = realloc(p, more)), "realloc to %zu", more);
        verify_from(p, 0, n & ~(size_t)7, k, "after growth");
        fill(p, more, k + 50);
        evict(p, more);
        CHECK((p = realloc(p, n / 2)), "realloc to %zu", n / 2);
        verify_from(p, 0, n / 2 & ~(size_t)7, k + 50, "after shrinking");
        CHECK((p = realloc(p, 1000)), "realloc to 1000");
        verify_from(p, 0, 1000, k + 50, "after shrinking to little");
        CHECK((p = realloc(p, n)), "realloc from 1000 to %zu", n);
        verify_from(p, 0, 1000, k + 50, "after growth from little");
        free(p);
        char *z = calloc(n / 3 + 1, 3);
        CHECK(z, "calloc");
        verify_zero(z, n / 3 * 3 + 3, "calloc");
        free(z);
    }
    errno = 0;
    volatile size_t absurd = SIZE_MAX / 2 + 1;
    CHECK(malloc(absurd) == NULL && errno == ENOMEM, "an absurd malloc");
    CHECK(calloc(absurd, 4) == NULL && errno == ENOMEM, "an absurd calloc");
    char *kept = malloc(3 * MIB);
    CHECK(kept, "malloc");
    fill(kept, 3 * MIB, 1);
    errno = 0;
    CHECK(realloc(kept, absurd) == NULL && errno == ENOMEM, "an absurd realloc");
    verify(kept, 3 * MIB, 1, "after an absurd realloc");
    volatile size_t freed = (size_t)kept;
    free(kept);
    // Freed blocks may be kept for the next request, until the program asks for what is idle.
    int trimmed = malloc_trim(0);
    if (getenv("HUGESWAP_POOL")) {
        unsigned char in[1];
        CHECK(trimmed == 1, "malloc_trim has nothing to give back");
        CHECK(mincore((void *)freed, 4096, in) == -1 && errno == ENOMEM, "a freed block after malloc_trim");
    }
    puts("sizes");
}

static void alignments(void) {
    for (size_t align = 16; align <= 16 * MIB; align *= 4) {
        void *p = NULL, *q = aligned_alloc(align, 4 * MIB), *r = memalign(align, 3 * MIB);
        CHECK(posix_memalign(&p, align, 3 * MIB) == 0, "posix_memalign %zu", align);
        CHECK(p && q && r && (((size_t)p | (size_t)q | (size_t)r) & (align - 1)) == 0, "alignment %zu", align);
        fill(p, 3 * MIB, 1), fill(q, 4 * MIB, 2), fill(r, 3 * MIB, 3);
        verify(p, 3 * MIB, 1, "posix_memalign"), verify(q, 4 * MIB, 2, "aligned_alloc");
        verify(r, 3 * MIB, 3, "memalign");
        free(p), free(q), free(r);
    }
    void *p = NULL;
    CHECK(posix_memalign(&p, 24, 4 * MIB) == EINVAL, "an alignment that is no power of two");
    puts("alignments");
}

// Blocks that live and die at random, more of them than fit.
static void churn(void) {
    enum { BLOCKS = 24 };
    struct block {
        char *p;
        size_t n;
        uint64_t seed;
    } b[BLOCKS] = {0};
    uint64_t rng = 42, total = 0;
    for (int step = 0; step < 160; step++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        struct block *x = &b[(rng >> 33) % BLOCKS];
        size_t n = (rng >> 38) % (12 * MIB) + 600 * KIB;
        if (x->p)
            verify(x->p, x->n, x->seed, "churn");
        if (x->p && (rng >> 60) < 5) {
            free(x->p);
            x->p = NULL;
            continue;
        }
        size_t keep = x->p ? (x->n < n ? x->n : n) : 0;
        x->p = realloc(x->p, n);
        CHECK(x->p, "realloc");
        verify_from(x->p, 0, keep & ~(size_t)7, x->seed, "churn after realloc");
        x->n = n, x->seed = step;
        fill(x->p, n, step);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (b[i].p) {
            verify(b[i].p, b[i].n, b[i].seed, "churn at the end");
            total += sum(b[i].p, b[i].n);
        }
        free(b[i].p);
    }
    printf("churn %016lx\n", (unsigned long)total);
}

static char *map(size_t len) {
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu", len);
    return p;
}

static void unmapping(void) {
    size_t n = 40 * MIB, a = 5 * MIB + 4 * KIB, z = 9 * MIB + 12 * KIB;
    char *p = map(n);
    fill(p, n, 1);
    evict(p, n);
    CHECK(munmap(p + a, z - a) == 0, "munmap");
    verify_from(p, 0, a, 1, "below the hole");
    verify_from(p + z, z / 8, n - z, 1, "above the hole");
    // Unmapped pages that share two megabytes with mapped ones are not watched; whole units are.
    char *whole = (char *)(((size_t)p + a + UNIT - 1) & ~(UNIT - 1));
    must_fault(whole, 0, "first byte of a unit in the hole");
    must_fault(whole + UNIT - 1, 1, "last byte of a unit in the hole");
    // Head and tail, in single pages.
    for (size_t i = 0; i < 8; i++) {
        CHECK(munmap(p + i * PAGE, PAGE) == 0, "munmap of a page");
        CHECK(munmap(p + n - (i + 1) * PAGE, PAGE) == 0, "munmap of a page");
    }
    verify_from(p + 8 * PAGE, PAGE, 1 * MIB, 1, "what is left of the head");
    // One call over mapped and unmapped.
    CHECK(munmap(p, n) == 0, "munmap over holes");
    must_fault(p + 20 * MIB, 0, "after all is unmapped");
    // New memory is clean, wherever it lies.
    for (int i = 0; i < 4; i++) {
        char *q = map(n);
        verify_zero(q, n, "new mapping");
        fill(q, n, 9);
        CHECK(munmap(q, n) == 0, "munmap");
    }
    puts("unmapping");
}

static void remapping(void) {
    size_t n = 20 * MIB;
    char *p = map(n);
    fill(p, n, 1);
    evict(p, n);
    char *q = mremap(p, n, 50 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap to grow");
    verify(q, n, 1, "after growth");
    verify_zero(q + n, 30 * MIB, "what was added");
    if (q != p)
        must_fault(p + n / 2, 0, "where it was");
    fill(q, 50 * MIB, 2);
    evict(q, 50 * MIB);
    CHECK(mremap(q, 50 * MIB, 10 * MIB + 4 * KIB, 0) == q, "mremap to shrink");
    verify(q, 10 * MIB + 4 * KIB, 2, "after shrinking");
    must_fault(q + 14 * MIB, 1, "what was cut off");
    // A piece from the middle, not aligned to units, over another mapping.
    char *r = map(16 * MIB);
    fill(r, 16 * MIB, 3);
    char *to = r + 3 * MIB + 20 * KIB;
    size_t len = 4 * MIB + 8 * KIB, off = 2 * MIB + 12 * KIB;
    CHECK(mremap(q + off, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap to a place");
    verify_from(to, off / 8, len, 2, "the piece moved");
    verify_from(r, 0, to - r, 3, "before it");
    verify_from(to + len, (to + len - r) / 8, r + 16 * MIB - to - len, 3, "behind it");
    must_fault((char *)(((size_t)q + off + UNIT - 1) & ~(UNIT - 1)), 0, "where the piece was");
    verify(q, off, 2, "below where the piece was");
    // Whole units, evicted, over other whole units.
    size_t u = 6 * MIB;
    char *s = map(u + UNIT), *d = map(u + UNIT);
    s = (char *)(((size_t)s + UNIT - 1) & ~(UNIT - 1)), d = (char *)(((size_t)d + UNIT - 1) & ~(UNIT - 1));
    fill(s, u, 4), fill(d, u, 5);
    evict(s, u), evict(d, u);
    CHECK(mremap(s, u, u, MREMAP_MAYMOVE | MREMAP_FIXED, d) == d, "mremap of whole units");
    verify(d, u, 4, "whole units moved");
    must_fault(s, 0, "where the units were");
    // In memory and changed, moved, and written out before anybody touches it where it is now.
    char *wide = map(3 * u + UNIT), *target = (char *)(((size_t)wide + UNIT - 1) & ~(UNIT - 1));
    fill(d, u, 6);
    CHECK(mremap(d, u, u, MREMAP_MAYMOVE | MREMAP_FIXED, target + u) == target + u, "mremap of units in memory");
    evict(target, 3 * u);
    verify(target + u, u, 6, "moved and written out");
    verify_zero(target, u, "before what was moved");
    d = target + u;
    fill(d, u, 4);
    char *k = mremap(d, u, u, MREMAP_MAYMOVE | 4 /* DONTUNMAP */, NULL);
    CHECK(k != MAP_FAILED, "mremap that keeps the old place");
    verify(k, u, 4, "moved, old place kept");
    verify_zero(d, u, "old place kept");
    CHECK(mremap(k + 1, u, u, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL, "mremap of an odd address");
    puts("remapping");
}

static void advice(void) {
    size_t n = 24 * MIB;
    char *p = map(n);
    fill(p, n, 1);
    evict(p, n);
    CHECK(madvise(p + 3 * MIB + 4 * KIB, 6 * MIB, MADV_DONTNEED) == 0, "DONTNEED");
    verify_from(p, 0, 3 * MIB + 4 * KIB, 1, "below what is not needed");
    verify_zero(p + 3 * MIB + 4 * KIB, 6 * MIB, "not needed");
    size_t rest = 9 * MIB + 4 * KIB;
    verify_from(p + rest, rest / 8, n - rest, 1, "above what is not needed");
    fill(p, n, 2);
    CHECK(madvise(p, n, MADV_SEQUENTIAL) == 0 && madvise(p, n, MADV_WILLNEED) == 0, "advice");
    CHECK(madvise(p, n, MADV_HUGEPAGE) == 0 && madvise(p, n, MADV_NOHUGEPAGE) == 0, "advice on huge pages");
    evict(p, n);
    verify(p, n, 2, "after advice");
    CHECK(madvise(p, n, MADV_FREE) == 0, "FREE");
    for (size_t i = 0; i < n / 8; i++) {
        uint64_t w = ((uint64_t *)p)[i];
        CHECK(w == 0 || w == value(i, 2), "freed word %zu is neither old nor zero", i);
    }
    fill(p, n, 3);
    evict(p, n);
    verify(p, n, 3, "written after FREE");
    CHECK(madvise(p, n, MADV_DONTNEED) == 0, "DONTNEED of all");
    verify_zero(p, n, "not needed, all");
    CHECK(munmap(p, n) == 0, "munmap");
    CHECK(madvise(p, n, MADV_DONTNEED) == -1 && errno == ENOMEM, "DONTNEED of nothing");
    puts("advice");
}

// What is in memory is told for each page, of units in swap too.
static void residency(void) {
    size_t n = 8 * UNIT;
    unsigned char there[8 * 512];
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, n, 70);
    evict(p, n);
    CHECK(mincore(p, n, there) == 0, "mincore");
    CHECK(mincore(p + 1, n, there) == -1 && errno == EINVAL, "mincore off a page's border");
    // It may leave again before we look.
    int seen = 0;
    for (int i = 0; i < 10000 && !seen; i++) {
        CHECK(((volatile uint64_t *)p)[(3 * UNIT + 5 * PAGE) / 8] == value((3 * UNIT + 5 * PAGE) / 8, 70), "a word");
        CHECK(mincore(p + 3 * UNIT + 5 * PAGE, PAGE, there) == 0, "mincore of a page");
        seen = there[0] & 1;
    }
    CHECK(seen, "a page just touched is not in memory");
    evict(p, n);
    CHECK(munmap(p + UNIT + 7 * PAGE, 9 * PAGE) == 0, "munmap of a part");
    CHECK(mincore(p + UNIT, UNIT, there) == -1 && errno == ENOMEM, "mincore over a hole");
    CHECK(mincore(p + UNIT + 16 * PAGE, PAGE, there) == 0, "mincore after a hole");
    // A part that may not be written is given up.
    CHECK(mprotect(p + 4 * UNIT, 2 * UNIT, PROT_READ) == 0, "mprotect");
    evict(p + 4 * UNIT, 2 * UNIT);
    CHECK(madvise(p + 4 * UNIT + 3 * PAGE, 5 * PAGE, MADV_DONTNEED) == 0, "DONTNEED of a part");
    verify_zero(p + 4 * UNIT + 3 * PAGE, 5 * PAGE, "given up");
    size_t parts[][2] = {{0, UNIT + 7 * PAGE}, {UNIT + 16 * PAGE, 4 * UNIT + 3 * PAGE}, {4 * UNIT + 8 * PAGE, n}};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        verify_from(p + parts[k][0], parts[k][0] / 8, parts[k][1] - parts[k][0], 70, "the rest");
    CHECK(munmap(p, n) == 0, "munmap over a hole");
    puts("residency");
}

static void protection(void) {
    size_t n = 16 * MIB;
    char *p = map(n), *guard = p + 5 * MIB + 8 * KIB;
    fill(p, n, 1);
    evict(p, n);
    CHECK(mprotect(guard, PAGE, PROT_NONE) == 0, "mprotect");
    must_fault(guard, 0, "guard page, read");
    must_fault(guard + PAGE - 1, 1, "guard page, write");
    CHECK(guard[-1] == ((char *)p)[guard - 1 - p], "page below the guard");
    verify_from(p, 0, guard - p, 1, "below the guard");
    verify_from(guard + PAGE, (guard + PAGE - p) / 8, n - (guard + PAGE - p), 1, "above the guard");
    CHECK(mprotect(guard, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back");
    verify(p, n, 1, "after the guard is gone");
    // A write barrier, let through by the handler; over whole units and over a page.
    for (int whole = 0; whole < 2; whole++) {
        char *at = whole ? (char *)(((size_t)p + UNIT - 1) & ~(UNIT - 1)) : p + 9 * MIB + 4 * KIB;
        size_t len = whole ? 2 * UNIT : 3 * PAGE;
        evict(at, len);
        CHECK(mprotect(at, len, PROT_READ) == 0, "mprotect read-only");
        verify_from(at, (at - p) / 8, len, 1, "read-only");
        must_fault(at + 100, 1, "write to read-only");
        open_page = at;
        caught = 0;
        *(volatile uint64_t *)(at + 8) = 77;
        CHECK(caught == SIGSEGV && *(uint64_t *)(at + 8) == 77, "a write the handler let through");
        CHECK(mprotect(at, len, PROT_READ | PROT_WRITE) == 0, "mprotect back");
        *(uint64_t *)(at + 8) = value((at - p) / 8 + 1, 1);
        evict(at, len);
    }
    verify(p, n, 1, "after the barriers");
    // Fixed mappings over parts.
    char *fixed = p + 10 * MIB + 4 * KIB;
    CHECK(mmap(fixed, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == fixed,
          "fixed mapping");
    verify_zero(fixed, 3 * MIB, "fixed mapping");
    verify_from(p, 0, fixed - p, 1, "below the fixed mapping");
    verify_from(fixed + 3 * MIB, (fixed + 3 * MIB - p) / 8, p + n - fixed - 3 * MIB, 1, "above the fixed mapping");
    fill(fixed, 3 * MIB, 5);
    evict(p, n);
    verify(fixed, 3 * MIB, 5, "fixed mapping");
    FILE *f = tmpfile();
    CHECK(f && fwrite(fixed, 1, 64 * KIB, f) == 64 * KIB && fflush(f) == 0, "tmpfile");
    char *file = p + 2 * MIB;
    CHECK(mmap(file, 64 * KIB, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(f), 0) == file, "file over memory");
    verify(file, 64 * KIB, 5, "file over memory");
    must_fault(file, 1, "write to a file mapped read-only");
    fclose(f);
    CHECK(munmap(p, n) == 0, "munmap of it all");
    must_fault((char *)16, 0, "a null pointer");
    puts("protection");
}

// Protection is mixed in a unit that the mapping has only a part of; its addresses are used again.
static void mixed_and_given_back(void) {
    size_t n = 8 * MIB, less = n - 181 * PAGE;
    for (int k = 0; k < 4; k++) {
        char *p = map(less);
        fill(p, less, k);
        evict(p, less);
        char *mixed = p + less - (size_t)(k + 1) * 20 * PAGE;
        CHECK(mprotect(mixed, 5 * PAGE, PROT_READ) == 0, "mprotect");
        verify(p, less, k, "after mprotect");
        CHECK(munmap(p, less) == 0, "munmap");
        char *q = map(n);
        for (size_t i = 0; i < n; i += PAGE)
            CHECK(q[i] == 0, "new memory at %#zx", i);
        for (int again = 0; again < 2; again++) {
            fill(q, n, k + 50 + again);
            evict(q, n);
            verify(q, n, k + 50 + again, "used again");
        }
        CHECK(munmap(q, n) == 0, "munmap");
    }
    puts("mixed and given back");
}

// System calls on memory whose access was taken and given back, which nothing has touched since.
static void calls_after_protection(void) {
    size_t n = 4 * UNIT;
    char *p = map(n), *closed = p + UNIT + 9 * PAGE;
    fill(p, n, 3);
    CHECK(mprotect(closed, PAGE, PROT_NONE) == 0, "mprotect of a page");
    for (int forked = 0; forked < 2; forked++) {
        pid_t child = forked ? fork() : 0;
        CHECK(child >= 0, "fork");
        if (child > 0) {
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0, "child ended %#x", (unsigned)status);
            break;
        }
        must_fault(closed, 0, "no access");
        char *q = p + 2 * UNIT, bytes[8 * PAGE];
        int ends[2];
        CHECK(pipe(ends) == 0, "pipe");
        CHECK(mprotect(q, 2 * UNIT, PROT_NONE) == 0, "mprotect");
        CHECK(mprotect(q, 2 * UNIT, PROT_READ | PROT_WRITE) == 0, "mprotect back");
        CHECK(write(ends[1], q + 96, sizeof bytes) == sizeof bytes, "write");
        CHECK(read(ends[0], bytes, sizeof bytes) == sizeof bytes, "read");
        CHECK(memcmp(bytes, q + 96, sizeof bytes) == 0, "bytes");
        CHECK(write(ends[1], bytes, sizeof bytes) == sizeof bytes, "write");
        CHECK(mprotect(q, 2 * UNIT, PROT_NONE) == 0, "mprotect again");
        CHECK(mprotect(q, 2 * UNIT, PROT_READ | PROT_WRITE) == 0, "mprotect back again");
        CHECK(read(ends[0], q + UNIT + 96, sizeof bytes) == sizeof bytes, "read to it");
        CHECK(memcmp(bytes, q + UNIT + 96, sizeof bytes) == 0, "bytes read");
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
        fill(q, 2 * UNIT, 3 + (uint64_t)forked);
        if (forked)
            _exit(0);
    }
    CHECK(munmap(p, n) == 0, "munmap");
    puts("calls after protection");
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 2, "one argument");
    struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &sa, NULL) == 0, "sigaction");
    ballast(strtoul(argv[1], 0, 0) * MIB);
    sizes();
    alignments();
    churn();
    unmapping();
    remapping();
    advice();
    residency();
    protection();
    mixed_and_given_back();
    calls_after_protection();
    done();
    return 0;
}
