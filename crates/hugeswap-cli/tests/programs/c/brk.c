// Small blocks in the heap that grows by brk(2), of a program that is attached: it says "ready", reads a line, works,
// says "half", reads a line, and works again. With a second argument the blocks may be elsewhere.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))
#define BLOCK 1000ul
#define LARGE (100ul << 10)

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s (errno %d)\n", line, what, errno);
    _exit(1);
}

static uint64_t **blocks;
static size_t count;
// The blocks are in the heap that grows by brk(2).
static int are_in_heap = 1;

static uint64_t value(size_t i) { return i * 0x9e3779b97f4a7c15u + 1; }

static void fill(size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        for (size_t k = 0; k < BLOCK / 8; k++)
            blocks[i][k] = value(i) + k;
}

static void check(size_t step) {
    for (size_t i = 0; i < count; i += step)
        for (size_t k = 0; k < BLOCK / 8; k++)
            CHECK(blocks[i][k] == value(i) + k);
}

static char *kernels_break(void) { return (char *)syscall(SYS_brk, 0); }

static void say(const char *word) {
    char line[16];
    printf("%s\n", word);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

// The last blocks are given up, and the break gets smaller; memory that comes back by a larger one is zero.
static void shrinks_and_grows(void) {
    size_t kept = count / 3 * 2;
    char *before = sbrk(0);
    CHECK(kernels_break() == before);
    for (size_t i = kept; i < count; i++)
        free(blocks[i]);
    char *after = sbrk(0);
    CHECK(!are_in_heap || after < before - (count - kept) * BLOCK / 2);
    CHECK(kernels_break() == after);
    // (What calloc takes from beyond the break it takes for zero.)
    for (size_t i = kept; i < count; i++) {
        CHECK((blocks[i] = calloc(1, BLOCK)) != NULL);
        for (size_t k = 0; k < BLOCK / 8; k++)
            CHECK(blocks[i][k] == 0);
    }
    fill(kept, count);
    check(1);
    // To less than a page more, and back.
    before = sbrk(0);
    CHECK(sbrk(100) == before && kernels_break() == before + 100);
    before[99] = 7;
    CHECK(sbrk(-100) == before + 100 && kernels_break() == before);
    // Neither below the heap nor beyond addresses.
    CHECK((char *)syscall(SYS_brk, 4096) == before);
    CHECK((char *)syscall(SYS_brk, ~4095ul) == before);
}

// A file is read into the heap by the kernel, into memory that was written out.
static void is_read_into(char *large, const char *name) {
    int fd = open(name, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, large, LARGE, 0) == (ssize_t)LARGE);
    close(fd);
    for (size_t i = 0; i < LARGE; i++)
        CHECK(large[i] == (char)(i * 31));
}

static void works(char *large, const char *name) {
    check(1);
    is_read_into(large, name);
    memset(large, 0, LARGE);
    pid_t child = fork();
    if (child == 0) {
        check(7);
        fill(0, 1000);
        shrinks_and_grows();
        _exit(5);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    check(1);
    shrinks_and_grows();
    is_read_into(large, name);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    char *heap = sbrk(0);
    // (What stdio needs is not to lie above the blocks.)
    static char in[BUFSIZ], out[BUFSIZ];
    CHECK(setvbuf(stdin, in, _IOFBF, BUFSIZ) == 0 && setvbuf(stdout, out, _IOFBF, BUFSIZ) == 0);
    size_t mib = (size_t)atol(argv[1]);
    count = (mib << 20) / BLOCK;
    CHECK((blocks = malloc(count * sizeof *blocks)) != NULL);
    char name[] = "/tmp/brk-XXXXXX";
    int fd = mkstemp(name);
    char *large = malloc(LARGE);
    CHECK(fd >= 0 && large != NULL);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (char)(i * 31);
    CHECK(write(fd, large, LARGE) == (ssize_t)LARGE);
    close(fd);
    for (size_t i = 0; i < count; i++)
        CHECK((blocks[i] = malloc(BLOCK)) != NULL);
    fill(0, count);
    are_in_heap = (char *)blocks[count / 2] > heap && (char *)blocks[count / 2] < (char *)sbrk(0);
    CHECK(are_in_heap || argc > 2);
    say("ready");
    works(large, name);
    say("half");
    works(large, name);
    char *before = sbrk(0);
    CHECK(sbrk(64 << 10) == before);
    CHECK(unlink(name) == 0);
    puts("end");
    return 0;
}
