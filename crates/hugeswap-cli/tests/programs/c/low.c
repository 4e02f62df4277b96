// Memory below 2 GiB (MAP_32BIT), as runtimes with short pointers ask for: a heap that grows by pieces of several sizes,
// of which some are given back; reserved and made accessible; used by system calls of the C library's and of the
// program's own; code, a file and single pages beside it; fixed addresses there; a child, and the program once more,
// which inherits what watches its calls; and more than there is.
// low [ROUNDS]
#include "common.h"
#include <fcntl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define RW (PROT_READ | PROT_WRITE)
enum { PIECES = 96 };
#define LOW_END ((size_t)1 << 31)

static struct piece {
    char *at;
    size_t len;
    uint64_t seed;
} pieces[PIECES];
static uint64_t state = 88172645463325252u;

static size_t below(size_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

static char *low_at(void *hint, size_t len, int prot, int flags, int fd) {
    char *at = mmap(hint, len, prot, flags | MAP_32BIT, fd, 0);
    CHECK(at != MAP_FAILED, "%zu bytes below 2 GiB", len);
    CHECK((size_t)at + len <= LOW_END, "%p is above 2 GiB", (void *)at);
    return at;
}

static char *low(size_t len, int prot, int flags) { return low_at(NULL, len, prot, flags | ANON, -1); }

// A system call that no library sees.
static long raw(long nr, long a, long b, long c) {
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return ret;
}

static void map_new(struct piece *p) {
    static const size_t lens[] = {MIB, MIB + PAGE, 2 * MIB, 2 * MIB + 4 * PAGE, 3 * MIB, 5 * MIB};
    p->len = lens[below(sizeof lens / sizeof *lens)];
    if (below(3) == 0) {
        p->at = low(p->len, PROT_NONE, MAP_NORESERVE);
        CHECK(mprotect(p->at, p->len, RW) == 0, "mprotect");
    } else {
        p->at = low(p->len, RW, 0);
    }
    verify_zero(p->at, p->len, "a new piece");
    fill(p->at, p->len, p->seed = state);
}

static void check(struct piece *p) { verify(p->at, p->len, p->seed, "a piece"); }

static void give_up(struct piece *p) {
    check(p);
    CHECK(munmap(p->at, p->len) == 0, "munmap");
}

// What is in swap is read and written by system calls.
static void transfer(struct piece *p, int by_hand) {
    char path[] = "low-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0, "a file");
    evict(p->at, p->len);
    long n = by_hand ? raw(1 /* write */, fd, (long)p->at, (long)p->len) : write(fd, p->at, p->len);
    CHECK(n == (long)p->len, "wrote %ld of %zu", n, p->len);
    memset(p->at, 0, p->len);
    evict(p->at, p->len);
    CHECK(lseek(fd, 0, SEEK_SET) == 0, "lseek");
    struct iovec *parts = (struct iovec *)low(PAGE, RW, 0); // (Too small to be managed.)
    parts[0] = (struct iovec){p->at, p->len / 2};
    parts[1] = (struct iovec){p->at + p->len / 2, p->len - p->len / 2};
    n = by_hand ? raw(0 /* read */, fd, (long)p->at, (long)p->len) : readv(fd, parts, 2);
    CHECK(n == (long)p->len, "read %ld of %zu", n, p->len);
    CHECK(munmap(parts, PAGE) == 0, "munmap");
    close(fd);
    check(p);
}

// Code, a file, a stack and fixed addresses.
static void others(void) {
    unsigned char *code = (unsigned char *)low(2 * MIB, RW | PROT_EXEC, 0);
    static const unsigned char seven[] = {0xb8, 7, 0, 0, 0, 0xc3};
    memcpy(code + MIB, seven, sizeof seven);
    CHECK(((int (*)(void))(void *)(code + MIB))() == 7, "code");
    char path[] = "low-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, 3 * MIB) == 0, "a file");
    char *file = low_at(NULL, 3 * MIB, RW, MAP_SHARED, fd);
    file[2 * MIB] = 9;
    char got;
    CHECK(pread(fd, &got, 1, 2 * MIB) == 1 && got == 9, "the file");
    char *hinted = low_at(file, 2 * MIB, RW, ANON, -1);
    CHECK(hinted != file, "at an address in use");
    // MAP_FIXED says where it is, and nothing else does.
    char *four = low(8 * MIB, RW, 0);
    fill(four, 8 * MIB, 3);
    CHECK(mmap(four + 3 * MIB, MIB, RW, ANON | MAP_FIXED | MAP_32BIT, -1, 0) == four + 3 * MIB, "fixed");
    verify_zero(four + 3 * MIB, MIB, "mapped anew");
    verify(four, 3 * MIB, 3, "before it");
    verify_from(four + 4 * MIB, 4 * MIB / 8, 4 * MIB, 3, "behind it");
    errno = 0;
    CHECK(mmap(four, MIB, RW, ANON | MAP_FIXED_NOREPLACE | MAP_32BIT, -1, 0) == MAP_FAILED && errno == EEXIST, "taken");
    CHECK(munmap(four + MIB, MIB) == 0, "munmap");
    CHECK(mmap(four + MIB, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == four + MIB, "free");
    char *moved = mremap(four, MIB, 4 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    verify(moved, MIB, 3, "moved");
    CHECK(mprotect(four + 5 * MIB, MIB, PROT_READ) == 0, "mprotect");
    verify_from(four + 5 * MIB, 5 * MIB / 8, MIB, 3, "read only");
    CHECK(munmap(four, 8 * MIB) == 0 && munmap(hinted, 2 * MIB) == 0 && munmap(file, 3 * MIB) == 0, "munmap");
    CHECK((moved >= four && moved < four + 8 * MIB) || munmap(moved, 4 * MIB) == 0, "munmap");
    CHECK(munmap(code, 2 * MIB) == 0, "munmap");
    close(fd);
}

// All there is of such addresses, and an error after that.
static void all_of_it(void) {
    enum { MOST = 1024 };
    static char *at[MOST];
    int n = 0;
    while (n < MOST && (at[n] = mmap(NULL, 2 * MIB, PROT_NONE, ANON | MAP_NORESERVE | MAP_32BIT, -1, 0)) != MAP_FAILED) {
        CHECK((size_t)at[n] + 2 * MIB <= LOW_END, "%p is above 2 GiB", (void *)at[n]);
        n++;
    }
    CHECK(errno == ENOMEM && n > 128 && n <= 512, "%d times", n);
    for (int i = 0; i < n; i++)
        CHECK(munmap(at[i], 2 * MIB) == 0, "munmap");
}

int main(int argc, char **argv) {
    begin();
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int i = 0; i < PIECES; i++)
        map_new(&pieces[i]);
    for (int step = 0; step < 200; step++) {
        struct piece *p = &pieces[below(PIECES)];
        switch (below(4)) {
        case 0:
            give_up(p);
            map_new(p);
            break;
        case 1:
            transfer(p, (int)below(2));
            break;
        default:
            check(p);
        }
    }
    others();
    all_of_it();
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < PIECES; i++)
            check(&pieces[i]);
        transfer(&pieces[1], 1);
        fill(pieces[0].at, pieces[0].len, 5);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child: %#x", status);
    for (int i = 0; i < PIECES; i++)
        check(&pieces[i]);
    printf("%d to go\n", rounds - 1);
    done();
    if (rounds > 1) {
        char left[16];
        snprintf(left, sizeof left, "%d", rounds - 1);
        execl("/proc/self/exe", argv[0], left, NULL);
        CHECK(0, "exec");
    }
    return 0;
}
