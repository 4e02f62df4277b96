// What a program reads of its own memory in /proc/self/pagemap, in every way there is to read it, and by mincore.
// pagemap SIZE_MIB BUDGET_MIB PARTS: without a budget (0) nothing is in swap; PARTS: "whole", or, where pages leave
// memory by themselves, "huge" if they are those of huge pages at first, or "pages".
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PRESENT ((uint64_t)1 << 63)
#define SWAPPED ((uint64_t)1 << 62)
#define SOFT_DIRTY ((uint64_t)1 << 55)

static size_t budget;
static int has_parts, are_huge;

struct found {
    size_t present, swapped, none;
};

static struct found count(const uint64_t *e, size_t n) {
    struct found f = {0, 0, 0};
    for (size_t i = 0; i < n; i++) {
        CHECK((e[i] & (PRESENT | SWAPPED)) != (PRESENT | SWAPPED), "entry %zu: %#lx", i, (unsigned long)e[i]);
        if (e[i] & PRESENT)
            f.present++;
        else if (e[i] & SWAPPED)
            f.swapped++;
        else
            f.none++;
    }
    return f;
}

static int opened(const char *path) {
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    return fd;
}

static void pread_all(int fd, const char *p, size_t n, uint64_t *e) {
    ssize_t got = pread(fd, e, n * 8, (size_t)p / PAGE * 8);
    CHECK(got == (ssize_t)n * 8, "pread: %zd", got);
}

// All was written: it is in memory or in swap, and no more in memory than there may be.
static void must_be_all(const uint64_t *e, size_t n, const char *what) {
    struct found f = count(e, n);
    CHECK(f.none == 0, "%s: %zu of %zu pages are nowhere", what, f.none, n);
    CHECK(f.present > 0, "%s: nothing is in memory", what);
    if (budget) {
        CHECK(f.swapped > 0, "%s: nothing is in swap", what);
        CHECK(f.present * PAGE <= budget + budget / 50, "%s: %zu pages in memory", what, f.present);
    }
}

static void everything(char *p, size_t len) {
    size_t n = len / PAGE;
    uint64_t *e = calloc(n, 8);
    CHECK(e, "calloc");
    char path[64];
    int fd = opened("/proc/self/pagemap");
    pread_all(fd, p, n, e);
    must_be_all(e, n, "pread");
    int other = dup(fd);
    memset(e, 0, n * 8);
    pread_all(other, p, n, e);
    must_be_all(e, n, "dup");
    // The number is used again for another file.
    int zero = opened("/dev/zero");
    CHECK(dup2(zero, other) == other && read(other, e, 4096) == 4096, "dup2");
    for (int i = 0; i < 512; i++)
        CHECK(e[i] == 0, "zeros, of which word %d is %#lx", i, (unsigned long)e[i]);
    close(zero), close(other);
    // In pieces, where it stands.
    off_t at = (size_t)p / PAGE * 8;
    CHECK(lseek(fd, at, SEEK_SET) == at, "lseek");
    for (size_t i = 0; i < n; i += 1000) {
        size_t want = (n - i < 1000 ? n - i : 1000) * 8;
        CHECK(read(fd, e + i, want) == (ssize_t)want, "read");
        at += want;
        CHECK(lseek(fd, 0, SEEK_CUR) == at, "the place after a read");
    }
    must_be_all(e, n, "read");
    errno = 0;
    CHECK(read(fd, e, 12) == -1 && errno == EINVAL, "half an entry");
    CHECK(lseek(fd, 0, SEEK_CUR) == at, "the place after a read that failed");
    off_t end = (off_t)1 << 62;
    CHECK(pread(fd, e, 8, end) <= 0, "pread where no address is");
    CHECK(lseek(fd, end, SEEK_SET) == end && read(fd, e, 8) <= 0 && lseek(fd, 0, SEEK_CUR) == end, "the end");
    close(fd);
    // Under its other names.
    sprintf(path, "/proc/%d/pagemap", (int)getpid());
    pread_all(fd = opened(path), p, n, e), close(fd);
    must_be_all(e, n, path);
    pread_all(fd = opened("/proc/thread-self/pagemap"), p, n, e), close(fd);
    must_be_all(e, n, "thread-self");
    int dir = opened("/proc/self");
    pread_all(fd = openat(dir, "pagemap", O_RDONLY), p, n, e), close(fd), close(dir);
    must_be_all(e, n, "openat");
    fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY, 0);
    CHECK(syscall(SYS_pread64, fd, e, n * 8, (size_t)p / PAGE * 8) == (long)n * 8, "syscall");
    must_be_all(e, n, "syscall"), close(fd);
    FILE *f = fopen("/proc/self/pagemap", "rb");
    CHECK(f && fseek(f, (size_t)p / PAGE * 8, SEEK_SET) == 0, "fopen");
    for (size_t i = 0; i < n; i += 7) {
        size_t want = n - i < 7 ? n - i : 7;
        CHECK(fread(e + i, 8, want, f) == want, "fread");
    }
    must_be_all(e, n, "fread");
    fclose(f);
    free(e);
    puts("everything");
}

// The buffer may itself be where the entries tell of, and in swap.
static void managed_buffer(char *p, size_t len) {
    size_t n = len / PAGE;
    uint64_t *e = mmap(NULL, 4 * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(e != MAP_FAILED && n * 8 + 8 <= 4 * UNIT, "mmap");
    fill(e, 4 * UNIT, 3);
    evict(e, 4 * UNIT);
    int fd = opened("/proc/self/pagemap");
    char *odd = (char *)e + 3;
    pread_all(fd, p, n, (uint64_t *)odd);
    memmove(e, odd, n * 8);
    must_be_all(e, n, "a managed buffer");
    close(fd);
    munmap(e, 4 * UNIT);
    puts("managed buffer");
}

// One page more than once: the same is told by mincore. Reclaim goes on by itself, so it may take a few looks.
static void agrees(char *p, size_t len) {
    size_t n = len / PAGE;
    uint64_t *e = calloc(n, 8), *again = calloc(n, 8);
    unsigned char *there = calloc(n, 1);
    int fd = opened("/proc/self/pagemap");
    size_t same = 0, differ = 0;
    pread_all(fd, p, n, e);
    CHECK(mincore(p, len, there) == 0, "mincore");
    pread_all(fd, p, n, again);
    for (size_t i = 0; i < n; i++) {
        if ((e[i] ^ again[i]) & (PRESENT | SWAPPED))
            continue;
        // (What was read ahead is in swap for the one, and in memory for the other.)
        same += there[i] == (e[i] >> 63);
        differ += !there[i] && e[i] >> 63;
    }
    CHECK(differ == 0, "%zu pages are in memory, but not for mincore", differ);
    CHECK(same > n / 2, "mincore and pagemap agree of %zu pages of %zu", same, n);
    close(fd);
    free(e), free(again), free(there);
    puts("agrees");
}

static void nothing(void) {
    enum { N = 4 * 512 };
    static uint64_t e[N];
    static unsigned char there[N];
    char *p = mmap(NULL, N * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    int fd = opened("/proc/self/pagemap");
    for (int turn = 0; turn < 3; turn++) {
        pread_all(fd, p, N, e);
        CHECK(mincore(p, N * PAGE, there) == 0, "mincore");
        for (size_t i = 0; i < N; i++)
            CHECK((e[i] & ~SOFT_DIRTY) == 0 && !there[i], "turn %d: entry %zu is %#lx", turn, i, (unsigned long)e[i]);
        fill(p, N * PAGE, turn);
        if (turn == 0)
            evict(p, N * PAGE);
        pread_all(fd, p, N, e);
        CHECK(count(e, N).none == 0, "written, and nowhere");
        CHECK(madvise(p, N * PAGE, MADV_DONTNEED) == 0, "DONTNEED");
    }
    // Of what became the kernel's, the kernel tells.
    fill(p, N * PAGE, 9);
    CHECK(mprotect(p + PAGE, PAGE, PROT_READ) == 0, "mprotect");
    pread_all(fd, p, 512, e);
    CHECK(mincore(p, 512 * PAGE, there) == 0, "mincore");
    struct found f = count(e, 512);
    CHECK(f.none == 0, "%zu protected pages are nowhere", f.none);
    for (size_t i = 0; i < 512; i++)
        CHECK(there[i] == (e[i] >> 63), "protected page %zu: %#lx, %d", i, (unsigned long)e[i], there[i]);
    munmap(p, N * PAGE);
    close(fd);
    puts("nothing");
}

enum { READERS = 4, PIECE = 64 };
static size_t seen[READERS], pieces;
static int shared_fd;

static void *reader(void *arg) {
    uint64_t e[PIECE];
    for (size_t i = 0; i < pieces / READERS; i++) {
        ssize_t got = read(shared_fd, e, sizeof e);
        CHECK(got == sizeof e, "read: %zd", got);
        struct found f = count(e, PIECE);
        CHECK(f.none == 0 || f.none == PIECE, "%zu of a piece are nowhere", f.none);
        *(size_t *)arg += PIECE - f.none;
    }
    return NULL;
}

// Many read by one descriptor: what one has read nobody else reads.
static void at_once(void) {
    size_t n = 64 * UNIT;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    char *first = (char *)(((size_t)p + UNIT - 1) & ~(UNIT - 1));
    size_t units = (p + n - first) / UNIT / 2 * 2;
    for (size_t i = 0; i < units; i += 2)
        fill(first + i * UNIT, UNIT, i);
    pieces = units * (UNIT / PAGE) / PIECE;
    shared_fd = opened("/proc/self/pagemap");
    off_t at = (size_t)first / PAGE * 8;
    CHECK(lseek(shared_fd, at, SEEK_SET) == at, "lseek");
    pthread_t t[READERS];
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_create(&t[i], NULL, reader, &seen[i]) == 0, "pthread_create");
    size_t all = 0;
    for (int i = 0; i < READERS; i++)
        pthread_join(t[i], NULL), all += seen[i];
    CHECK(all == units / 2 * (UNIT / PAGE), "%zu pages seen of %zu units", all, units / 2);
    at += pieces * PIECE * 8;
    CHECK(lseek(shared_fd, 0, SEEK_CUR) == at, "the place after all");
    close(shared_fd);
    munmap(p, n);
    puts("at once");
}

// A child sees its own memory in its own file. (In one that it inherited it sees that of its parent, as the kernel has it.)
static void in_child(char *p, size_t len) {
    size_t n = len / PAGE;
    int parents = opened("/proc/self/pagemap");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        uint64_t *e = calloc(n, 8);
        int fd = opened("/proc/self/pagemap");
        pread_all(fd, p, n, e);
        struct found f = count(e, n);
        CHECK(f.none == 0 && f.present + f.swapped == n, "in a child %zu pages are nowhere", f.none);
        pread_all(parents, p, n, e);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
    close(parents);
    puts("in a child");
}

// Is page `i` at `p` in swap, by both files? (0: in memory.)
static int is_in_swap(int fd, char *p, size_t i) {
    uint64_t e;
    unsigned char there;
    pread_all(fd, p + i * PAGE, 1, &e);
    CHECK(mincore(p + i * PAGE, PAGE, &there) == 0, "mincore");
    // (What was read ahead of a whole unit is in swap for the one, and in memory for the other.)
    CHECK(!has_parts || (e & (PRESENT | SWAPPED)) == (there ? PRESENT : SWAPPED), "page %zu: %#lx, %d", i,
          (unsigned long)e, there);
    return !there;
}

// Pages of units that are whole in memory leave it, and others stay.
static void parts(void) {
    enum { UNITS = 4, N = UNITS * 512 };
    char *all = mmap(NULL, (UNITS + 1) * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED, "mmap");
    char *p = (char *)(((size_t)all + UNIT - 1) & ~(UNIT - 1));
    fill(p, UNITS * UNIT, 4);
    int fd = opened("/proc/self/pagemap");
    // Of the first unit a page; of the second and third what the range has of them; of the fourth all but a page; of the
    // first once more, which is in pages now.
    static const struct {
        size_t from, to;
    } all_parts[] = {{7, 8}, {512 + 500, 1024 + 3}, {1536 + 1, 2048}, {9, 12}};
    for (size_t k = 0; k < sizeof all_parts / sizeof *all_parts; k++) {
        size_t from = all_parts[k].from, to = all_parts[k].to, in_swap = 0;
        char *at = p + from * PAGE;
        // (Of the first unit the last time, which is in pages, they may go.)
        CHECK(madvise(at, (to - from) * PAGE, MADV_COLD) == 0, "MADV_COLD");
        CHECK(!has_parts || !are_huge || k == 3 || !is_in_swap(fd, p, from), "a huge page is cold in part");
        // (A page that was touched a moment ago may be held: it is asked for again.)
        for (int again = 0; again < 100 && in_swap < to - from; again++) {
            CHECK(madvise(at, (to - from) * PAGE, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
            in_swap = 0;
            for (size_t i = from; i < to; i++)
                in_swap += is_in_swap(fd, p, i);
            if (!has_parts)
                break;
        }
        if (!has_parts)
            continue;
        CHECK(in_swap == to - from, "part %zu: %zu of %zu pages are in swap", k, in_swap, to - from);
        CHECK(!is_in_swap(fd, p, from - 1) && (to == N || !is_in_swap(fd, p, to)), "pages beside part %zu", k);
        // What is beside it is written as before.
        uint64_t *beside = (uint64_t *)(p + (from - 1) * PAGE), was = *beside;
        *(volatile uint64_t *)beside = ~was, *(volatile uint64_t *)beside = was;
    }
    verify(p, UNITS * UNIT, 4, "parts");
    // What a child has as well, and what may not be written.
    fill(p, UNITS * UNIT, 5);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    CHECK(madvise(p + 20 * PAGE, PAGE, MADV_PAGEOUT) == 0, "MADV_PAGEOUT in two");
    verify(p, UNITS * UNIT, 5, "parts, in two");
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
    CHECK(mprotect(p, UNIT, PROT_READ) == 0 && madvise(p + 20 * PAGE, PAGE, MADV_PAGEOUT) == 0, "what is read");
    verify(p, UNITS * UNIT, 5, "parts, read");
    munmap(all, (UNITS + 1) * UNIT);
    close(fd);
    puts("parts");
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 4, "three arguments");
    // (Single pages take userfaultfd, which a container may not permit.)
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    has_parts = strcmp(argv[3], "whole") != 0 && uffd >= 0;
    are_huge = strcmp(argv[3], "huge") == 0;
    close(uffd);
    size_t len = strtoul(argv[1], 0, 0) * MIB;
    budget = strtoul(argv[2], 0, 0) * MIB;
    // Whole pages of a block, of all its pages.
    char *block = malloc(len + PAGE), *p = (char *)(((size_t)block + PAGE - 1) & ~(PAGE - 1));
    CHECK(block, "malloc");
    fill(p, len, 1);
    everything(p, len);
    managed_buffer(p, len);
    agrees(p, len);
    nothing();
    at_once();
    parts();
    in_child(p, len);
    verify(p, len, 1, "at the end");
    free(block);
    done();
    return 0;
}
