// Addresses that were given back and are chosen again: by MAP_FIXED and its kin, mremap, shmat; and what is mapped next.
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/shm.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define N (8 * MIB)

static int file;

static char *map(size_t len) {
    char *p = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu", len);
    return p;
}

static void unmap(void *p, size_t len) { CHECK(munmap(p, len) == 0, "munmap of %zu", len); }

// The page before the first mapping is the program's to map.
static void before_the_first(void) {
    char *p = map(8 * MIB);
    char *q = mmap(p - PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(q == p - PAGE, "the page before %p: %p", (void *)p, (void *)q);
    fill(q, PAGE, 5);
    fill(p, 8 * MIB, 6);
    verify(q, PAGE, 5, "the page before");
    verify(p, 8 * MIB, 6, "the first mapping");
    unmap(q, PAGE);
    unmap(p, 8 * MIB);
}

// Addresses that nothing is mapped at.
static char *given_back(size_t len) {
    char *p = map(len);
    fill(p, len, 99);
    unmap(p, len);
    return p;
}

static void must_be(void *got, void *want, const char *what) { CHECK(got == want, "%s: %p, not %p", what, got, want); }

// New mappings of every size take nothing that is there.
static void disturb(const void *p, size_t len, uint64_t seed, const char *what) {
    static const size_t sizes[] = {N, MIB, 3 * MIB, 2 * MIB};
    char *q[4];
    for (int i = 0; i < 4; i++) {
        q[i] = map(sizes[i]);
        CHECK(q[i] + sizes[i] <= (const char *)p || q[i] >= (const char *)p + len, "%s: two mappings at %p", what, (void *)q[i]);
        verify_zero(q[i], sizes[i], what);
        fill(q[i], sizes[i], 500 + (uint64_t)i);
    }
    verify(p, len, seed, what);
    for (int i = 0; i < 4; i++) {
        verify(q[i], sizes[i], 500 + (uint64_t)i, what);
        unmap(q[i], sizes[i]);
    }
}

static void anonymous(void) {
    static const int ways[] = {MAP_FIXED, MAP_FIXED_NOREPLACE, 0};
    static const size_t lens[] = {PAGE, 300 * KIB, MIB, 2 * MIB, 5 * MIB};
    for (int w = 0; w < 3; w++)
        for (int i = 0; i < 5; i++) {
            char *p = given_back(N) + (i & 1) * 3 * PAGE;
            must_be(mmap(p, lens[i], RW, ANON | ways[w], -1, 0), p, "chosen");
            verify_zero(p, lens[i], "chosen");
            fill(p, lens[i], 7);
            CHECK(mmap(p + lens[i] - PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST,
                  "over what is there");
            disturb(p, lens[i], 7, "chosen");
            unmap(p, lens[i]);
            char *r = map(N);
            verify_zero(r, N, "afterwards");
            r[0] = 7;
            r[2 * PAGE] = 8;
            CHECK(r[0] == 7 && r[2 * PAGE] == 8, "a write is lost");
            unmap(r, N);
        }
    puts("anonymous memory");
}

// Of a file, shared, executable, without access.
static void kernels(void) {
    for (int kind = 0; kind < 5; kind++) {
        static const int prots[] = {RW, RW, RW, RW | PROT_EXEC, PROT_NONE};
        int flags = kind == 1 || kind == 2 ? MAP_SHARED : MAP_PRIVATE, fd = kind < 2 ? file : -1;
        size_t len = MIB + 5 * PAGE;
        char *p = given_back(N) + 3 * PAGE;
        must_be(mmap(p, len, prots[kind], flags | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0), p, "chosen");
        if (kind == 4)
            CHECK(mprotect(p, len, RW) == 0, "mprotect");
        fill(p, len, 10 + (uint64_t)kind);
        disturb(p, len, 10 + (uint64_t)kind, "the kernel's");
        CHECK(msync(p, len, MS_SYNC) == 0, "msync");
        if (kind == 1) {
            static char back[PAGE];
            CHECK(pread(file, back, PAGE, 0) == (ssize_t)PAGE && !memcmp(back, p, PAGE), "the file has it");
        }
        unmap(p + PAGE, PAGE);
        unsigned char vec[1];
        CHECK(mincore(p + PAGE, PAGE, vec) == -1 && errno == ENOMEM, "mincore of a hole");
        CHECK(mprotect(p, 3 * PAGE, PROT_READ) == -1 && errno == ENOMEM, "mprotect over a hole");
        CHECK(madvise(p, 3 * PAGE, MADV_NORMAL) == -1 && errno == ENOMEM, "madvise over a hole");
        must_be(mmap(p + PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), p + PAGE, "into the hole");
        unmap(p - PAGE, len + 2 * PAGE);
        char *r = map(N);
        verify_zero(r, N, "afterwards");
        fill(r, N, 3);
        verify(r, N, 3, "afterwards");
        unmap(r, N);
    }
    puts("files and shared memory");
}

// A refusal costs nothing.
static void refused(void) {
    char *p = map(N);
    fill(p, N, 21);
    CHECK(mmap(p + MIB, MIB, RW, MAP_PRIVATE | MAP_FIXED, 9999, 0) == MAP_FAILED && errno == EBADF, "no file");
    CHECK(mmap(p + MIB, MIB, RW, MAP_SHARED | MAP_FIXED, file, 17) == MAP_FAILED && errno == EINVAL, "no offset");
    CHECK(munmap(p + MIB, (size_t)1 << 62) == -1 && errno == EINVAL, "munmap of too much");
    CHECK(mremap(p, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, p + MIB / 2) == MAP_FAILED && errno == EINVAL, "onto itself");
    CHECK(madvise(p, N, 12345) == -1 && errno == EINVAL, "no advice");
    verify(p, N, 21, "after what was refused");
    unmap(p, N);
    puts("refusals");
}

static sigjmp_buf out;

static void on_fault(int sig) {
    (void)sig;
    siglongjmp(out, 1);
}

static int can_write(volatile char *p) {
    if (sigsetjmp(out, 1))
        return 0;
    *p = *p;
    return 1;
}

static void moves(void) {
    // To addresses that were given back, and on from there.
    char *a = map(N), *h = given_back(N);
    fill(a, N, 31);
    char *b = mremap(a, N, N / 2, MREMAP_MAYMOVE | MREMAP_FIXED, h);
    must_be(b, h, "mremap");
    disturb(b, N / 2, 31, "moved");
    char *c = mremap(b, N / 2, N / 4, MREMAP_MAYMOVE);
    CHECK(c != MAP_FAILED, "mremap again");
    CHECK((c = mremap(c, N / 4, N, MREMAP_MAYMOVE)) != MAP_FAILED, "mremap to more");
    verify(c, N / 4, 31, "moved again");
    verify_zero(c + N / 4, N - N / 4, "what was added");
    unmap(c, N);
    // What is the kernel's: from the window, within it, into it.
    h = given_back(N);
    must_be(mmap(h, MIB, RW, MAP_SHARED | MAP_FIXED, file, 0), h, "a file");
    fill(h, MIB, 32);
    char *far = mremap(h, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, h + 4 * MIB + PAGE);
    must_be(far, h + 4 * MIB + PAGE, "mremap of a file");
    disturb(far, MIB, 32, "a file, moved");
    CHECK(mremap(far, MIB, 2 * MIB, 0) == far, "a file, in place: errno %d", errno);
    verify(far, MIB, 32, "a file, longer");
    char *again = mremap(far, 0, MIB, MREMAP_MAYMOVE);
    CHECK(again != MAP_FAILED, "a second mapping");
    verify(again, MIB, 32, "a second mapping");
    unmap(again, MIB);
    unmap(far, 2 * MIB);
    CHECK(mremap(far, MIB, MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "mremap of nothing");
    // What is protected, advised, or both, keeps its access.
    for (int w = 0; w < 3; w++) {
        char *p = map(N);
        fill(p, N, 33);
        size_t from = w == 0 ? 0 : 5 * PAGE, len = w == 0 ? 4 * MIB : 3 * MIB;
        CHECK(mprotect(p + from, len, PROT_READ) == 0, "mprotect");
        CHECK(w < 2 || madvise(p + from, len, MADV_DONTFORK) == 0, "madvise");
        char *q = mremap(p + from, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        CHECK(q != MAP_FAILED && q != p + from, "mremap, errno %d", errno);
        verify_from(q, from / 8, len, 33, "protected, moved");
        CHECK(!can_write(q) && !can_write(q + len - 1), "it can be written");
        verify_zero(p + from, len, "what stayed");
        q = mremap(q, len, len + MIB, MREMAP_MAYMOVE);
        CHECK(q != MAP_FAILED, "mremap to more");
        verify_from(q, from / 8, len, 33, "protected, moved again");
        char *other = map(N);
        fill(other, N, 34);
        verify_from(q, from / 8, len, 33, "protected, beside another");
        unmap(other, N);
        unmap(q, len + MIB);
        unmap(p, N);
    }
    puts("moves");
}

static void segments(void) {
    int id = shmget(IPC_PRIVATE, MIB, IPC_CREAT | 0600);
    CHECK(id >= 0, "shmget");
    char *h = given_back(N);
    char *p = shmat(id, h + PAGE, 0);
    must_be(p, h + PAGE, "shmat");
    fill(p, MIB, 41);
    disturb(p, MIB, 41, "a segment");
    CHECK(shmat(id, p, 0) == MAP_FAILED && errno == EINVAL, "shmat over what is there");
    char *m = map(N);
    fill(m, N, 42);
    must_be(shmat(id, m + PAGE, SHM_REMAP), m + PAGE, "shmat in its place");
    verify(m + PAGE, MIB, 41, "a segment twice");
    verify_from(m + PAGE + MIB, (PAGE + MIB) / 8, N - MIB - PAGE, 42, "around it");
    CHECK(shmdt(p) == 0 && shmdt(m + PAGE) == 0, "shmdt");
    CHECK(shmdt(p) == -1 && errno == EINVAL, "shmdt of nothing");
    shmctl(id, IPC_RMID, NULL);
    must_be(mmap(p, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), p, "where it was");
    unmap(p, MIB);
    unmap(m, N);
    puts("segments");
}

int main(void) {
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    before_the_first();
    FILE *f = tmpfile();
    CHECK(f && ftruncate(fileno(f), 4 * MIB) == 0, "a file");
    file = fileno(f);
    anonymous();
    kernels();
    refused();
    moves();
    segments();
    return 0;
}
