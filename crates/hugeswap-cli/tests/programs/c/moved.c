// mremap of memory that is one mapping for the program, and of which hugeswap has left a part to the kernel or never
// given it anything; of memory that is locked; and of several mappings at a time, where the kernel moves such.
#include "common.h"
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static char *map(size_t len, int prot) {
    char *p = mmap(NULL, len, prot, ANON | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu", len);
    return p;
}

// Memory that is reserved, then readable in pages 200 to 900, which is neither whole units nor a part of one.
static char *part_readable(size_t len) {
    char *p = map(len, PROT_NONE);
    CHECK(mprotect(p + 200 * PAGE, 700 * PAGE, PROT_READ) == 0, "readable");
    return p;
}

// Moves what has several owners: `prot` is what it can be used for when it moves.
static void mixed(int prot, int flags, size_t grows) {
    const size_t len = 8 * MIB;
    char *p = part_readable(len);
    CHECK(mprotect(p, len, RW) == 0, "all of it");
    fill(p, len, 1);
    evict(p, len);
    if (prot != RW)
        CHECK(mprotect(p, len, prot) == 0, "access %d", prot);
    char *to = flags & MREMAP_FIXED ? map(len + grows, RW) : NULL;
    char *q = mremap(p, len, len + grows, flags, to);
    CHECK(q != MAP_FAILED, "mremap, access %d, flags %d", prot, flags);
    CHECK(!to || q == to, "it is at %p", (void *)q);
    if (flags & MREMAP_DONTUNMAP) {
        CHECK(mprotect(p, len, RW) == 0, "the old one");
        verify_zero(p, len, "what stays");
        CHECK(munmap(p, len) == 0, "munmap");
    }
    if (prot != RW)
        CHECK(mprotect(q, len + grows, RW) == 0, "all of it again");
    verify(q, len, 1, "moved");
    verify_zero(q + len, grows, "grown");
    fill(q, len + grows, 2);
    evict(q, len + grows);
    verify(q, len + grows, 2, "written");
    CHECK(munmap(q, len + grows) == 0, "munmap");
}

// A page that is locked stays so where it goes, and leaves zeros where it is to stay mapped.
static void locked(void) {
    char *p = map(4 * MIB, RW);
    fill(p, 4 * MIB, 3);
    char *at = p + MIB + 3 * PAGE;
    CHECK(mlock(at, PAGE) == 0, "mlock");
    char *q = mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(q != MAP_FAILED, "mremap");
    verify_zero(at, PAGE, "what stays");
    verify_from(q, (size_t)(at - p) / 8, PAGE, 3, "what was locked");
    CHECK(madvise(q, PAGE, MADV_COLD) == -1 && errno == EINVAL, "it is locked");
    CHECK(madvise(at, PAGE, MADV_COLD) == 0, "what stays is not");
    // Of a range, a part of which is locked, the kernel says that it is two mappings.
    CHECK(mlock(at, PAGE) == 0, "mlock");
    CHECK(mremap(at, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "two mappings");
    CHECK(munmap(q, PAGE) == 0 && munmap(p, 4 * MIB) == 0, "munmap");
}

// What a child is not to have it does not have either where it was moved to.
static void not_inherited(void) {
    const size_t len = 6 * MIB;
    char *p = part_readable(len);
    CHECK(mprotect(p, len, RW) == 0, "all of it");
    fill(p, len, 4);
    CHECK(madvise(p, len, MADV_WIPEONFORK) == 0, "advice");
    char *q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, map(len, RW));
    CHECK(q != MAP_FAILED, "mremap");
    verify(q, len, 4, "moved");
    pid_t child = fork();
    if (child == 0) {
        verify_zero(q, len, "of the child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
    verify(q, len, 4, "after the fork");
    CHECK(munmap(q, len) == 0, "munmap");
}

// Is a page there for a child? (A system call says so without a touch.)
static int is_there_for_a_child(const char *p) {
    pid_t child = fork();
    if (child == 0) {
        unsigned char in;
        _exit(mincore((void *)p, PAGE, &in) == 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child: %#x", status);
    return WEXITSTATUS(status);
}

// Of a range of which a child is to have a part, the kernel says that it is several mappings; what moves stays so.
static void partly_inherited(void) {
    const size_t len = 6 * MIB;
    char *p = map(len, RW);
    fill(p, len, 6);
    CHECK(madvise(p + MIB, 2 * MIB, MADV_DONTFORK) == 0, "advice");
    CHECK(mremap(p, len, 2 * len, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "several mappings");
    char *q = mremap(p + MIB, 2 * MIB, 5 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, map(5 * MIB, RW));
    CHECK(q != MAP_FAILED, "mremap");
    verify_from(q, MIB / 8, 2 * MIB, 6, "moved");
    CHECK(!is_there_for_a_child(q) && !is_there_for_a_child(q + 4 * MIB), "not inherited");
    CHECK(is_there_for_a_child(p) && is_there_for_a_child(p + 3 * MIB), "inherited");
    CHECK(munmap(p, len) == 0 && munmap(q, 5 * MIB) == 0, "munmap");
    p = map(len, RW);
    fill(p, len, 7);
    CHECK(madvise(p + MIB, 2 * MIB, MADV_DONTFORK) == 0, "advice");
    char *to = map(len, RW);
    q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    printf("several at a time: %s\n", q == to ? "moved" : "refused");
    q = q == to ? to : p;
    verify(q, len, 7, "there");
    CHECK(!is_there_for_a_child(q + MIB) && !is_there_for_a_child(q + 3 * MIB - PAGE), "not inherited");
    CHECK(is_there_for_a_child(q) && is_there_for_a_child(q + 3 * MIB), "inherited");
    CHECK(munmap(q, len) == 0, "munmap");
}

// What a child is not to have, of which a part was the kernel's as that was said, and the rest is since: one mapping.
static void not_inherited_by_either(void) {
    const size_t len = 4 * MIB;
    char *p = map(len, RW);
    fill(p, len, 8);
    CHECK(mlock(p + 4 * MIB - PAGE, PAGE) == 0, "mlock behind it");
    CHECK(madvise(p + MIB, 2 * MIB, MADV_DONTFORK) == 0, "advice");
    CHECK(mlock(p, PAGE) == 0, "mlock before it");
    CHECK(mremap(p + MIB, 2 * MIB, 3 * MIB, 0) == MAP_FAILED && errno == ENOMEM, "no room: %d", errno);
    char *q = mremap(p + MIB, 2 * MIB, 3 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap");
    verify_from(q, MIB / 8, 2 * MIB, 8, "moved");
    CHECK(!is_there_for_a_child(q) && !is_there_for_a_child(q + 2 * MIB), "not inherited");
    CHECK(is_there_for_a_child(p), "inherited");
    CHECK(munmap(p, len) == 0 && munmap(q, 3 * MIB) == 0, "munmap");
}

// Several mappings, with a hole between them, by one call. (Since Linux 6.17; before, an error.)
static void at_once(void) {
    const size_t len = 8 * MIB;
    char *p = map(len, RW);
    fill(p, len, 5);
    evict(p, len);
    CHECK(mprotect(p + 3 * MIB, MIB, PROT_READ) == 0 && munmap(p + 5 * MIB, MIB) == 0, "several");
    char *to = map(len, RW);
    char *q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    printf("several at a time: %s\n", q == to ? "moved" : "refused");
    if (q != to)
        return;
    verify(q, 5 * MIB, 5, "before the hole");
    verify_from(q + 6 * MIB, 6 * MIB / 8, 2 * MIB, 5, "behind the hole");
    verify_zero(q + 5 * MIB, MIB, "what was mapped there");
    CHECK(munmap(q, len) == 0, "munmap");
}

// The kernel's answer goes to memory that is not there.
static void answers(void) {
    char *vec = map(4 * MIB, RW), *p = map(2 * MIB, RW);
    FILE *f = tmpfile();
    CHECK(f && ftruncate(fileno(f), 64 * PAGE) == 0, "a file");
    char *of_file = mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, fileno(f), 0);
    CHECK(of_file != MAP_FAILED, "a mapping of a file");
    for (int i = 0; i < 64; i++)
        CHECK(of_file[(size_t)i * PAGE] == 0, "a page of it");
    memset(p, 1, 2 * MIB);
    memset(vec, 7, 4 * MIB);
    evict(vec, 4 * MIB);
    CHECK(mincore(of_file, 64 * PAGE, (unsigned char *)vec + MIB) == 0, "mincore of a file's");
    for (size_t i = 0; i < 64; i++)
        CHECK(vec[MIB + i] == 1, "page %zu of the file: %d", i, vec[MIB + i]);
    evict(vec, 4 * MIB);
    CHECK(mincore(p, 2 * MIB, (unsigned char *)vec + MIB) == 0, "mincore");
    CHECK(vec[MIB - 1] == 7 && vec[MIB + 512] == 7, "what is beside the answer");
    fclose(f);
}

int main(void) {
    static const int flags[] = {MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_FIXED};
    for (int i = 0; i < 2; i++) {
        mixed(RW, flags[i], 0);
        mixed(RW, flags[i], 3 * MIB);
        mixed(PROT_READ, flags[i], MIB + PAGE);
        mixed(PROT_NONE, flags[i], 0);
        mixed(RW, flags[i] | MREMAP_DONTUNMAP, 0);
    }
    locked();
    not_inherited();
    partly_inherited();
    not_inherited_by_either();
    at_once();
    answers();
    printf("moved\n");
    return 0;
}
