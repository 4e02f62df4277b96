// Random sequences of calls on the address space, against a model of it that says of each page whether it is mapped,
// with what access, and what it holds. After each step: the answer is the kernel's, nothing that is mapped
// overlaps, the pages of the step hold what they must, and some others; after every 64th, all do, and
// /proc/self/maps says of each what access it has.
// space FIRST_SEED SEEDS STEPS RAW [MIB]
// MIB: of memory besides, for a program that is attached. It does its steps, says "ready", reads a line, does as many,
// says "half", reads a line, and does as many again.
// RAW: 1 to make some calls by number, and some by an instruction of the program's own; 2: by number only; 0: neither;
// 3: as 1, and /proc/self/maps is not read (of statically linked programs it is the kernel's).
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

enum { ARENA = 20 * 512 + 37, FILE_PAGES = 1100, OUTSIDE = 6, OUTSIDE_PAGES = 1200, SEGMENT_PAGES = 600 };
#define RW (PROT_READ | PROT_WRITE)
#define LOW_END ((size_t)1 << 31) // of the addresses for MAP_32BIT
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum kind { FREE, PRIVATE, SHARED, FILE_PRIVATE, FILE_SHARED, SEGMENT };
struct page {
    uint8_t kind, prot, written; // written: of FILE_PRIVATE, no longer the file's
    uint8_t locked;
    uint32_t past;               // of mprotect and madvise: what has another is perhaps another mapping
    uint32_t mapping;            // which call made it
    uint32_t at;                 // page of the file or segment
    uint64_t stamp;              // what it holds, if that is its own; 0: zeros
};
struct region {
    char *base;
    size_t pages;
    struct page *page;
};
static struct page arena_pages[ARENA], outside_pages[OUTSIDE][OUTSIDE_PAGES], moved[OUTSIDE_PAGES];
static struct region arena, outside[OUTSIDE];
static uint64_t file_stamp[FILE_PAGES], segment_stamp[SEGMENT_PAGES];
static int file, segment, raw, reads_maps;
static uint32_t mappings;
static uint64_t seed, step, stamps, state;
static char what[256];

static uint64_t rnd(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
static size_t below(size_t n) { return rnd() % n; }

static void tell_maps(void);

#define MUST(cond, ...)                                                                                              \
    do {                                                                                                             \
        if (!(cond)) {                                                                                               \
            dprintf(2, "seed %lu step %lu: %s: ", (unsigned long)seed, (unsigned long)step, what);                   \
            dprintf(2, __VA_ARGS__);                                                                                 \
            dprintf(2, " (%s, line %d)\n", #cond, __LINE__);                                                         \
            tell_maps();                                                                                             \
            _exit(1);                                                                                                \
        }                                                                                                            \
    } while (0)

// What the kernel says is mapped.
static void tell_maps(void) {
    char text[4096];
    int fd = open("/proc/self/maps", O_RDONLY);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        if (write(2, text, (size_t)n) != n)
            break;
}

static long by_instruction(long nr, long a, long b, long c, long d, long e, long f) {
    long r;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (r < 0 && r > -4096) {
        errno = (int)-r;
        return -1;
    }
    return r;
}

// Makes a call in one of three ways; the answer is -1 with errno, or a result.
static long call(long nr, ...) {
    va_list ap;
    long a[6];
    va_start(ap, nr);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    errno = 0;
    switch (raw ? below(raw == 1 ? 4 : 3) : 0) {
    case 2:
        return syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
    case 3:
        return by_instruction(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    void *p = (void *)a[0];
    switch (nr) {
    case SYS_mmap:
        return (long)mmap(p, (size_t)a[1], (int)a[2], (int)a[3], (int)a[4], a[5]);
    case SYS_munmap:
        return munmap(p, (size_t)a[1]);
    case SYS_mremap:
        return (long)mremap(p, (size_t)a[1], (size_t)a[2], (int)a[3], (void *)a[4]);
    case SYS_mprotect:
        return mprotect(p, (size_t)a[1], (int)a[2]);
    case SYS_madvise:
        return madvise(p, (size_t)a[1], (int)a[2]);
    case SYS_msync:
        return msync(p, (size_t)a[1], (int)a[2]);
    case SYS_mincore:
        return mincore(p, (size_t)a[1], (unsigned char *)a[2]);
    case SYS_mlock:
        return mlock(p, (size_t)a[1]);
    case SYS_mlock2:
        return mlock2(p, (size_t)a[1], (unsigned)a[2]);
    case SYS_munlock:
        return munlock(p, (size_t)a[1]);
    case SYS_shmat:
        return (long)shmat((int)a[0], (void *)a[1], (int)a[2]);
    default:
        return shmdt(p);
    }
}

// ---- What pages hold.

static uint64_t *own(struct page *p) {
    switch (p->kind) {
    case FILE_SHARED:
        return &file_stamp[p->at];
    case FILE_PRIVATE:
        return p->written ? &p->stamp : &file_stamp[p->at];
    case SEGMENT:
        return &segment_stamp[p->at];
    default:
        return &p->stamp;
    }
}

static sigjmp_buf out;
static volatile int touching;
static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    MUST(touching, "signal %d, code %d, at %p", sig, info->si_code, info->si_addr);
    siglongjmp(out, 1);
}

// Does a touch go through?
static int touches(volatile uint64_t *at, int write) {
    int through = sigsetjmp(out, 1) == 0;
    touching = through;
    if (through && write)
        *at = *at;
    else if (through)
        (void)*at;
    touching = 0;
    return through;
}

static void check(struct region *r, size_t i) {
    struct page *p = &r->page[i];
    volatile uint64_t *w = (volatile uint64_t *)(r->base + i * PAGE);
    if (p->kind == FREE)
        return;
    // (What is locked cannot become cold.)
    if (p->locked && below(8) == 0)
        MUST(madvise(r->base + i * PAGE, PAGE, MADV_COLD) == -1 && errno == EINVAL, "page %zu at %p is not locked", i,
             (void *)w);
    if (!(p->prot & PROT_READ)) {
        // (While it is being written to swap it can be read.)
        int n = 0;
        while (touches(w, 0) && n++ < 20000)
            usleep(1000);
        MUST(n < 20000, "page %zu without access can be read", i);
        return;
    }
    uint64_t s = *own(p);
    for (size_t k = 0; k < 512; k += 73)
        MUST(w[k] == (s ? s + k : 0), "page %zu, word %zu at %p is %#lx, not %#lx; kind %d", i, k, (void *)&w[k],
             (unsigned long)w[k], (unsigned long)(s ? s + k : 0), p->kind);
    if (!(p->prot & PROT_WRITE) && below(16) == 0)
        MUST(!touches(w, 1), "read-only page %zu can be written", i);
}

static void check_range(struct region *r, size_t from, size_t n) {
    for (size_t i = from; i < from + n && i < r->pages; i++)
        check(r, i);
}

static void put(struct region *r, size_t i) {
    struct page *p = &r->page[i];
    if (p->kind == FREE || (p->prot & RW) != RW)
        return;
    p->written = 1;
    uint64_t *w = (uint64_t *)(r->base + i * PAGE), s = (++stamps << 12) + 1;
    *own(p) = s;
    for (size_t k = 0; k < 512; k++)
        w[k] = s + k;
}

// ---- What the model says.

static int any_mapped(struct region *r, size_t from, size_t n) {
    for (size_t i = from; i < from + n; i++)
        if (r->page[i].kind != FREE)
            return 1;
    return 0;
}

static int all_mapped(struct region *r, size_t from, size_t n) {
    for (size_t i = from; i < from + n; i++)
        if (r->page[i].kind == FREE)
            return 0;
    return 1;
}

static void set(struct region *r, size_t from, size_t n, enum kind kind, int prot, size_t at) {
    mappings++;
    for (size_t i = 0; i < n; i++)
        r->page[from + i] = (struct page){.kind = kind, .prot = (uint8_t)prot, .mapping = mappings, .at = (uint32_t)(at + i)};
}

static void changed(struct page *p) { p->past = (p->past ^ (uint32_t)step) * 0x9e3779b1u + 1; }

static void clear(struct region *r, size_t from, size_t n) { memset(&r->page[from], 0, n * sizeof(struct page)); }

// Nothing that is mapped is in [at, at+n pages).
static void must_be_free(char *at, size_t n) {
    for (int k = -1; k < OUTSIDE; k++) {
        struct region *r = k < 0 ? &arena : &outside[k];
        for (size_t i = 0; i < r->pages; i++)
            MUST(r->page[i].kind == FREE || r->base + (i + 1) * PAGE <= at || r->base + i * PAGE >= at + n * PAGE,
                 "%p, %zu pages, overlaps what is mapped at %p", (void *)at, n, (void *)(r->base + i * PAGE));
    }
}

// Where the kernel has put `n` pages of its own choice: the region and the page in it, or none if it is no place of ours.
static struct region *place(char *at, size_t n, size_t *page) {
    must_be_free(at, n);
    if (at >= arena.base && at + n * PAGE <= arena.base + ARENA * PAGE) {
        *page = (size_t)(at - arena.base) / PAGE;
        return &arena;
    }
    int meets = at < arena.base + ARENA * PAGE && at + n * PAGE > arena.base;
    struct region *spare = NULL;
    for (int k = 0; k < OUTSIDE; k++) {
        struct region *r = &outside[k];
        if (r->pages && !any_mapped(r, 0, r->pages))
            r->pages = 0;
        if (!r->pages)
            spare = r;
        else if (at < r->base + r->pages * PAGE && at + n * PAGE > r->base)
            meets = 1;
    }
    if (meets || !spare || n > OUTSIDE_PAGES)
        return NULL;
    *spare = (struct region){at, n, outside_pages[spare - outside]};
    *page = 0;
    return spare;
}

static void pick(struct region **r, size_t *from, size_t *n) {
    struct region *all[OUTSIDE + 1] = {&arena};
    size_t k = 1;
    for (int i = 0; i < OUTSIDE; i++)
        if (outside[i].pages)
            all[k++] = &outside[i];
    *r = below(4) ? &arena : all[below(k)];
    size_t most = below(3) ? 40 : below(3) ? 700 : 1500;
    *from = below((*r)->pages);
    *n = 1 + below(most);
    if (below(4) == 0)
        *from &= ~(size_t)511;
    if (below(6) == 0)
        *n = 512 * (1 + below(2));
    if (*n > (*r)->pages - *from)
        *n = (*r)->pages - *from;
}

static const int prots[] = {RW, RW, RW, RW, PROT_READ, PROT_NONE, RW | PROT_EXEC};

// ---- The steps.

static void map(int chosen) {
    struct region *r;
    size_t from, n, at = 0;
    pick(&r, &from, &n);
    enum kind kind = below(3) ? PRIVATE : (enum kind)(PRIVATE + below(4));
    int prot = prots[below(7)], flags = kind == FILE_SHARED || kind == SHARED ? MAP_SHARED : MAP_PRIVATE, fd = -1;
    if (kind == FILE_PRIVATE || kind == FILE_SHARED) {
        fd = file;
        if (n > FILE_PAGES)
            n = FILE_PAGES;
        at = below(FILE_PAGES - n + 1);
    } else {
        flags |= MAP_ANONYMOUS;
    }
    if (below(8) == 0)
        flags |= MAP_NORESERVE;
    char *want = chosen ? r->base + from * PAGE : NULL;
    int free = chosen && !any_mapped(r, from, n);
    if (chosen)
        flags |= (int[]){MAP_FIXED, MAP_FIXED, MAP_FIXED_NOREPLACE, 0}[below(4)];
    if (below(6) == 0)
        flags |= MAP_32BIT;
    // (A reservation that is to be there or nowhere is refused, but near code.)
    if (prot == PROT_NONE && (size_t)want < LOW_END)
        flags &= ~MAP_FIXED_NOREPLACE;
    int bad = below(40) == 0;
    if (bad && fd >= 0)
        fd = 999;
    int exact = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
    snprintf(what, sizeof what, "mmap(%p (page %zu), %zu pages, prot %d, flags %#x, kind %d)", (void *)want, from, n, prot,
             flags, kind);
    char *got = (char *)call(SYS_mmap, want, n * PAGE, (long)prot, (long)flags, (long)fd, at * PAGE);
    if (fd == 999 || (flags & MAP_FIXED_NOREPLACE && !free)) {
        MUST(got == MAP_FAILED && (errno == EEXIST || errno == EBADF), "%p, errno %d", (void *)got, errno);
        MUST(fd == 999 || errno == EEXIST, "errno %d", errno);
        check_range(r, from, n);
        return;
    }
    MUST(got != MAP_FAILED, "errno %d", errno);
    MUST(!exact || got == want, "at %p", (void *)got);
    int low = !exact && flags & MAP_32BIT;
    MUST(!low || (size_t)got + n * PAGE <= LOW_END, "at %p, above 2 GiB", (void *)got);
    if (chosen && r == &arena && !exact && !low && free && kind == PRIVATE && prot == RW)
        MUST(got == want, "at %p, not where the hint says, which is free", (void *)got);
    if (!exact) {
        r = place(got, n, &from);
        if (!r) {
            MUST(munmap(got, n * PAGE) == 0, "munmap: errno %d", errno);
            return;
        }
    }
    set(r, from, n, kind, prot, at);
    check_range(r, from, n);
    for (size_t i = 0; i < n; i += 1 + below(9))
        put(r, from + i);
}

static void unmap(void) {
    struct region *r;
    size_t from, n;
    pick(&r, &from, &n);
    snprintf(what, sizeof what, "munmap(%p (page %zu), %zu pages)", (void *)(r->base + from * PAGE), from, n);
    MUST(call(SYS_munmap, r->base + from * PAGE, n * PAGE) == 0, "errno %d", errno);
    clear(r, from, n);
}

static void protect(void) {
    struct region *r;
    size_t from, n, i;
    pick(&r, &from, &n);
    int prot = prots[below(7)];
    snprintf(what, sizeof what, "mprotect(%p (page %zu), %zu pages, %d)", (void *)(r->base + from * PAGE), from, n, prot);
    long got = call(SYS_mprotect, r->base + from * PAGE, n * PAGE, (long)prot);
    if (all_mapped(r, from, n))
        MUST(got == 0, "errno %d", errno);
    else
        MUST(got == -1 && errno == ENOMEM, "%ld, errno %d", got, errno);
    for (i = from; i < from + n && r->page[i].kind != FREE; i++)
        r->page[i].prot = (uint8_t)prot, changed(&r->page[i]);
    check_range(r, from, n);
}

// Advice that ends at the first page that it is not for, and does what is before: of a page, the error.
static int refuses(const struct page *p, int advice) {
    switch (advice) {
    case MADV_DONTNEED:
    case MADV_COLD:
    case MADV_PAGEOUT:
        return p->locked ? EINVAL : 0;
    case MADV_POPULATE_READ:
        return p->prot & PROT_READ ? 0 : EINVAL;
    case MADV_POPULATE_WRITE:
        return p->prot & PROT_WRITE ? 0 : EINVAL;
    case 12345:
        return EINVAL;
    }
    return 0;
}

static void advise(void) {
    struct region *r;
    size_t from, n;
    pick(&r, &from, &n);
    static const int list[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED,   MADV_WILLNEED,      MADV_DONTFORK, MADV_PAGEOUT,
                               MADV_COLD,     MADV_COLD,     MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_NOHUGEPAGE, 12345};
    int advice = list[below(12)], populates = advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE;
    snprintf(what, sizeof what, "madvise(%p (page %zu), %zu pages, %d)", (void *)(r->base + from * PAGE), from, n, advice);
    long got = call(SYS_madvise, r->base + from * PAGE, n * PAGE, (long)advice);
    int want = advice == 12345 ? EINVAL : 0;
    size_t end = from;
    for (; !want && end < from + n; end++) {
        struct page *p = &r->page[end];
        // (Holes end it only where memory is to be brought in.)
        want = p->kind != FREE ? refuses(p, advice) : populates ? ENOMEM : 0;
        if (want)
            break;
        changed(p);
        if (advice == MADV_DONTNEED) {
            if (p->kind == PRIVATE)
                p->stamp = 0;
            p->written = 0;
        }
        // (A page that is to be written is the program's own from now on.)
        if (advice == MADV_POPULATE_WRITE && p->kind == FILE_PRIVATE && !p->written) {
            p->stamp = file_stamp[p->at];
            p->written = 1;
        }
    }
    if (!want && !all_mapped(r, from, n))
        want = ENOMEM;
    MUST(want ? got == -1 && errno == want : got == 0, "%ld, errno %d, not %d", got, errno, want);
    check_range(r, from, n);
}

static size_t locked_pages(void) {
    size_t n = 0;
    for (int k = -1; k < OUTSIDE; k++)
        for (size_t i = 0; i < (k < 0 ? ARENA : outside[k].pages); i++)
            n += (k < 0 ? arena.page : outside[k].page)[i].locked;
    return n;
}

// Locks pages, a few at a time, or unlocks them.
static void lock(void) {
    struct region *r;
    size_t from, n, i;
    pick(&r, &from, &n);
    int locks = below(3) == 0, later = below(2);
    // (Few at a time, for those who may not lock more than 8 MiB.)
    if (locks && locked_pages() > 1200)
        return;
    if (locks && n > 100)
        n = 100;
    // (Of a file's, those that can be written would be the program's own from then on, or as they become writable.)
    for (i = from; locks && i < from + n; i++)
        if (r->page[i].kind == FILE_PRIVATE)
            return;
    char *at = r->base + from * PAGE;
    snprintf(what, sizeof what, "%s(%p (page %zu), %zu pages%s)", locks ? "mlock" : "munlock", (void *)at, from, n,
             later ? ", as they are touched" : "");
    long got = !locks ? call(SYS_munlock, at, n * PAGE)
               : later ? call(SYS_mlock2, at, n * PAGE, 1L /* MLOCK_ONFAULT */)
                       : call(SYS_mlock, at, n * PAGE);
    int closed = 0;
    for (i = from; i < from + n && r->page[i].kind != FREE; i++) {
        r->page[i].locked = (uint8_t)locks;
        closed |= !(r->page[i].prot & PROT_READ);
        changed(&r->page[i]);
    }
    // (What nobody can touch cannot be brought in.)
    if (i < from + n || (locks && !later && closed)) {
        MUST(got == -1 && errno == ENOMEM, "%ld, errno %d", got, errno);
        // What a call that fails leaves locked is not promised.
        if (locks && i > from) {
            MUST(call(SYS_munlock, at, (i - from) * PAGE) == 0, "munlock: errno %d", errno);
            while (i-- > from)
                r->page[i].locked = 0;
        }
    } else {
        MUST(got == 0, "errno %d", errno);
    }
    check_range(r, from, n);
}

static void ask(void) {
    struct region *r;
    size_t from, n;
    static unsigned char vec[2048];
    pick(&r, &from, &n);
    int sync = below(2);
    snprintf(what, sizeof what, "%s(%p (page %zu), %zu pages)", sync ? "msync" : "mincore",
             (void *)(r->base + from * PAGE), from, n);
    long got = sync ? call(SYS_msync, r->base + from * PAGE, n * PAGE, (long)MS_ASYNC)
                    : call(SYS_mincore, r->base + from * PAGE, n * PAGE, vec);
    if (all_mapped(r, from, n))
        MUST(got == 0, "errno %d", errno);
    else
        MUST(got == -1 && errno == ENOMEM, "%ld, errno %d", got, errno);
}

// How many pages from `from` on are one mapping for certain.
static size_t uniform(struct region *r, size_t from) {
    size_t i = from + 1;
    struct page *a = &r->page[from];
    while (i < r->pages && r->page[i].kind == a->kind && r->page[i].mapping == a->mapping && r->page[i].prot == a->prot && r->page[i].locked == a->locked && r->page[i].past == a->past &&
           r->page[i].at == a->at + (i - from))
        i++;
    return i - from;
}

static void move(void) {
    struct region *r, *to = NULL;
    size_t from, old, new, target, unused;
    pick(&r, &from, &old);
    if (r->page[from].kind == SEGMENT)
        return;
    int flags = below(3) ? MREMAP_MAYMOVE : 0;
    if (flags && below(2)) {
        flags |= MREMAP_FIXED;
        pick(&to, &target, &unused);
    }
    if (r->page[from].kind != FREE && old > uniform(r, from))
        old = uniform(r, from);
    new = below(3) ? old : 1 + below(2 * old);
    if (flags && below(5) == 0)
        flags |= MREMAP_DONTUNMAP, new = old;
    if (new > OUTSIDE_PAGES || old > OUTSIDE_PAGES)
        return;
    if (to && target + new > to->pages)
        return;
    struct page *a = &r->page[from];
    int of_file = a->kind == FILE_PRIVATE || a->kind == FILE_SHARED;
    // Beyond the object there is nothing to be touched.
    if ((of_file && a->at + new > FILE_PAGES) || (a->kind == SHARED && new > old))
        new = old;
    // (The kernel unlocks all of a mapping then, and not only the part that moves.)
    if (a->kind != PRIVATE || a->locked)
        flags &= ~MREMAP_DONTUNMAP;
    char *src = r->base + from * PAGE, *dst = to ? to->base + target * PAGE : NULL;
    snprintf(what, sizeof what, "mremap(%p (page %zu, kind %d), %zu, %zu pages, %d, %p)", (void *)src, from, a->kind, old,
             new, flags, (void *)dst);
    int overlaps = to && dst < src + old * PAGE && src < dst + new * PAGE;
    char *got = (char *)call(SYS_mremap, src, old * PAGE, new * PAGE, (long)flags, dst);
    if (overlaps) {
        MUST(got == MAP_FAILED && (errno == EINVAL || (errno == EFAULT && a->kind == FREE)), "%p, errno %d", (void *)got,
             errno);
        return;
    }
    if (a->kind == FREE) {
        MUST(got == MAP_FAILED && errno == EFAULT, "%p, errno %d", (void *)got, errno);
        if (to)
            check_range(to, target, new);
        return;
    }
    if (got == MAP_FAILED) {
        // It may be refused where it stands only if something is behind it; what is behind a region is not known.
        int room = from + new <= r->pages && !any_mapped(r, from + old, new > old ? new - old : 0);
        MUST(errno == ENOMEM && flags == 0 && new > old && !room, "errno %d", errno);
        check_range(r, from, old);
        return;
    }
    MUST(!to || got == dst, "at %p", (void *)got);
    size_t n = old < new ? old : new;
    if (got == src) {
        MUST(!to, "it has not moved");
        if (new < old)
            clear(r, from + new, old - new);
        struct page last = r->page[from + n - 1];
        for (size_t i = old; i < new; i++) {
            if (from + i >= r->pages) {
                // (What is beyond a region is given up again.)
                MUST(munmap(src + i * PAGE, (new - i) * PAGE) == 0, "errno %d", errno);
                new = i;
                break;
            }
            MUST(r->page[from + i].kind == FREE, "it grew over what is mapped");
            r->page[from + i] = (struct page){.kind = last.kind, .prot = last.prot, .locked = last.locked, .past = last.past, .mapping = last.mapping,
                                              .at = (uint32_t)(last.at + i - old + 1)};
        }
        check_range(r, from, new);
        return;
    }
    memcpy(moved, a, n * sizeof *a);
    struct page last = moved[n - 1];
    for (size_t i = n; i < new; i++)
        moved[i] = (struct page){.kind = last.kind, .prot = last.prot, .locked = last.locked, .past = last.past, .at = (uint32_t)(last.at + i - n + 1)};
    mappings++;
    for (size_t i = 0; i < new; i++)
        moved[i].mapping = mappings;
    if (flags & MREMAP_DONTUNMAP) {
        for (size_t i = 0; i < old; i++)
            a[i].stamp = 0;
        check_range(r, from, old);
    } else {
        clear(r, from, old);
    }
    if (!to)
        to = place(got, new, &target);
    if (!to) {
        MUST(munmap(got, new * PAGE) == 0, "munmap: errno %d", errno);
        return;
    }
    memcpy(&to->page[target], moved, new * sizeof *moved);
    check_range(to, target, new);
}

static void attach(void) {
    static char *attached;
    static uint32_t which;
    if (attached) {
        snprintf(what, sizeof what, "shmdt(%p)", (void *)attached);
        size_t left = 0;
        for (size_t i = 0; i < SEGMENT_PAGES; i++) {
            struct page *p = &arena.page[(size_t)(attached - arena.base) / PAGE + i];
            if (p->kind == SEGMENT && p->mapping == which && p->at == i) {
                left++;
                memset(p, 0, sizeof *p);
            }
        }
        long got = call(SYS_shmdt, attached);
        MUST(left ? got == 0 : got == -1 && errno == EINVAL, "%ld, errno %d, %zu pages left", got, errno, left);
        attached = NULL;
        return;
    }
    size_t from = below(ARENA - SEGMENT_PAGES);
    int replace = below(2), free = !any_mapped(&arena, from, SEGMENT_PAGES);
    char *at = arena.base + from * PAGE;
    snprintf(what, sizeof what, "shmat(%p (page %zu), %d)", (void *)at, from, replace);
    char *got = (char *)call(SYS_shmat, (long)segment, at, (long)(replace ? SHM_REMAP : 0));
    if (!replace && !free) {
        MUST(got == MAP_FAILED && errno == EINVAL, "%p, errno %d", (void *)got, errno);
        check_range(&arena, from, SEGMENT_PAGES);
        return;
    }
    MUST(got == at, "%p, errno %d", (void *)got, errno);
    set(&arena, from, SEGMENT_PAGES, SEGMENT, RW, 0);
    attached = at;
    which = mappings;
    check_range(&arena, from, SEGMENT_PAGES);
}

static void refused(void) {
    struct region *r = &arena;
    char *at = r->base + below(ARENA) * PAGE;
    snprintf(what, sizeof what, "what makes no sense, at %p", (void *)at);
    MUST(call(SYS_munmap, at + 1, PAGE) == -1 && errno == EINVAL, "munmap unaligned: errno %d", errno);
    MUST(call(SYS_munmap, at, 0L) == -1 && errno == EINVAL, "munmap of nothing: errno %d", errno);
    MUST(call(SYS_munmap, at, (size_t)1 << 62) == -1 && errno == EINVAL, "munmap of too much: errno %d", errno);
    MUST(call(SYS_mmap, at, 0L, (long)RW, (long)(ANON | MAP_FIXED), -1L, 0L) == -1 && errno == EINVAL,
         "mmap of nothing: errno %d", errno);
    MUST(call(SYS_mmap, at + 5, PAGE, (long)RW, (long)(ANON | MAP_FIXED), -1L, 0L) == -1 && errno == EINVAL,
         "mmap unaligned: errno %d", errno);
    MUST(call(SYS_mremap, at, PAGE, 0L, 1L, 0L) == -1 && errno == EINVAL, "mremap to nothing: errno %d", errno);
    MUST(call(SYS_mremap, at, PAGE, PAGE, 2L, at + MIB) == -1 && errno == EINVAL, "mremap fixed: errno %d", errno);
    MUST(call(SYS_mprotect, at + 3, PAGE, (long)RW) == -1 && errno == EINVAL, "mprotect unaligned: errno %d", errno);
    MUST(call(SYS_madvise, at + 3, PAGE, (long)MADV_DONTNEED) == -1 && errno == EINVAL, "madvise unaligned: errno %d",
         errno);
}

static void one_step(void) {
    size_t kind = below(100);
    if (kind < 22)
        map(1);
    else if (kind < 30)
        map(0);
    else if (kind < 52)
        unmap();
    else if (kind < 60)
        protect();
    else if (kind < 68)
        advise();
    else if (kind < 71)
        lock();
    else if (kind < 76)
        ask();
    else if (kind < 94)
        move();
    else if (kind < 97)
        attach();
    else
        refused();
}

// Compares a region with what /proc/self/maps says of it.
static void check_maps(const char *maps, struct region *r) {
    size_t i = 0;
    for (const char *line = maps; i < r->pages && *line; line = strchr(line, '\n') + 1) {
        char *end, *rest;
        size_t from = strtoul(line, &end, 16), to = strtoul(end + 1, &rest, 16), base = (size_t)r->base;
        for (; i < r->pages && base + i * PAGE < to; i++) {
            struct page *p = &r->page[i];
            if (p->kind == FREE)
                continue;
            MUST(from <= base + i * PAGE, "page %zu at %p is not in /proc/self/maps", i, (void *)(base + i * PAGE));
            int prot = (rest[1] == 'r' ? PROT_READ : 0) | (rest[2] == 'w' ? PROT_WRITE : 0) | (rest[3] == 'x' ? PROT_EXEC : 0);
            MUST(prot == p->prot, "page %zu at %p has access %d in /proc/self/maps, not %d; kind %d", i,
                 (void *)(base + i * PAGE), prot, p->prot, p->kind);
        }
    }
    for (; i < r->pages; i++)
        MUST(r->page[i].kind == FREE, "page %zu at %p is not in /proc/self/maps", i, (void *)(r->base + i * PAGE));
}

static void check_all(void) {
    static char maps[1 << 20];
    for (int k = -1; k < OUTSIDE; k++)
        check_range(k < 0 ? &arena : &outside[k], 0, k < 0 ? ARENA : outside[k].pages);
    if (!reads_maps)
        return;
    FILE *f = fopen("/proc/self/maps", "r");
    MUST(f, "no /proc/self/maps");
    size_t n = fread(maps, 1, sizeof maps - 1, f);
    fclose(f);
    MUST(n > 0 && n < sizeof maps - 1, "%zu bytes", n);
    maps[n] = 0;
    for (int k = -1; k < OUTSIDE; k++)
        check_maps(maps, k < 0 ? &arena : &outside[k]);
}

static void unmap_all(void) {
    for (int k = -1; k < OUTSIDE; k++) {
        struct region *r = k < 0 ? &arena : &outside[k];
        CHECK(r->pages == 0 || munmap(r->base, r->pages * PAGE) == 0, "munmap");
        clear(r, 0, r->pages);
        if (k >= 0)
            r->pages = 0;
    }
}

static void run(uint64_t steps) {
    state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u;
    for (step = 0; step < steps; step++) {
        one_step();
        snprintf(what + strlen(what), sizeof what - strlen(what), ", afterwards");
        for (int k = 0; k < 24; k++) {
            struct region *r = k % 3 ? &arena : &outside[below(OUTSIDE)];
            if (!r->pages)
                continue;
            size_t i = below(r->pages);
            check(r, i);
            put(r, i);
        }
        if (step % 64 == 63)
            check_all();
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 5 || argc == 6, "space FIRST_SEED SEEDS STEPS RAW [MIB]");
    uint64_t first = strtoull(argv[1], NULL, 10), seeds = strtoull(argv[2], NULL, 10), steps = strtoull(argv[3], NULL, 10);
    raw = atoi(argv[4]);
    reads_maps = raw != 3;
    raw = reads_maps ? raw : 1;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    FILE *f = tmpfile();
    CHECK(f && ftruncate(fileno(f), FILE_PAGES * PAGE) == 0, "a file");
    file = fileno(f);
    segment = shmget(IPC_PRIVATE, SEGMENT_PAGES * PAGE, IPC_CREAT | 0600);
    CHECK(segment >= 0, "a segment");
    size_t besides = argc > 5 ? strtoull(argv[5], NULL, 10) * MIB : 0;
    char *held = besides ? mmap(NULL, besides, RW, ANON, -1, 0) : NULL;
    CHECK(held != MAP_FAILED, "memory besides");
    if (held)
        fill(held, besides, 6);
    // (What is asked for before memory is managed has some of it there.)
    void *low = mmap(NULL, PAGE, RW, ANON | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED && munmap(low, PAGE) == 0, "below 2 GiB");
    arena = (struct region){mmap(NULL, ARENA * PAGE, RW, ANON, -1, 0), ARENA, arena_pages};
    CHECK(arena.base != MAP_FAILED, "an arena");
    void *keep = shmat(segment, NULL, 0);
    shmctl(segment, IPC_RMID, NULL);
    CHECK(keep != MAP_FAILED, "the segment attached");
    set(&arena, 0, ARENA, PRIVATE, RW, 0);
    for (size_t i = 0; i < ARENA; i++)
        put(&arena, i);
    // Most of it is given back.
    CHECK(munmap(arena.base + 700 * PAGE, 8000 * PAGE) == 0, "munmap");
    clear(&arena, 700, 8000);
    char line[8];
    for (int part = besides ? 0 : 2; part < 3; part++) {
        // (What was given back stays in several mappings, which mremap does not move as one.)
        if (besides && part == 2)
            unmap_all();
        for (seed = first + seeds * part; seed < first + seeds * (part + 1); seed++)
            run(steps);
        if (held)
            verify(held, besides, 6, "memory besides");
        if (besides)
            dprintf(1, "%s\n", (const char *[]){"ready", "half", "end"}[part]);
        CHECK(part == 2 || read(0, line, sizeof line) > 0, "a line");
    }
    if (!besides)
        printf("%lu seeds of %lu steps agree\n", (unsigned long)seeds, (unsigned long)steps);
    return 0;
}
