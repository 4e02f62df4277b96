// Calls on ranges that are partly private and partly shared memory, and on two regions of shared memory that follow each other.
#include "common.h"
#include <setjmp.h>
#include <signal.h>

enum { HALF = 4 * MIB, PRESSURE = 96 * MIB };
static sigjmp_buf jump;

static void on_fault(int n) { siglongjmp(jump, n); }

// May the byte be written to?
static int writable(char *at) {
    if (sigsetjmp(jump, 1))
        return 0;
    *(volatile char *)at = *at;
    return 1;
}

static void push(char *memory, int seed) { fill(memory, PRESSURE, seed); }

int main(void) {
    begin();
    struct sigaction action = {.sa_handler = on_fault};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
    char *memory = malloc(PRESSURE);
    CHECK(memory, "malloc");
    char *shared = mmap(NULL, HALF, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap");
    char *private = mmap(shared - HALF, HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    // (Another mapping may stand there when the kernel places the memory.)
    if (private == MAP_FAILED && errno == EEXIST) {
        munmap(shared, HALF);
        char *room = mmap(NULL, 2 * HALF, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(room != MAP_FAILED, "mmap");
        private = mmap(room, HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        shared = mmap(room + HALF, HALF, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(shared != MAP_FAILED, "mmap");
    }
    CHECK(private == shared - HALF, "mmap");
    fill(private, HALF, 1);
    fill(shared, HALF, 2);
    push(memory, 3);

    char *from = private + MIB;
    size_t len = 2 * (HALF - MIB);
    CHECK(mprotect(from, len, PROT_READ) == 0, "mprotect");
    CHECK(writable(private) && !writable(from) && !writable(shared - 1), "the private part");
    CHECK(!writable(shared) && !writable(from + len - 1) && writable(from + len), "the shared part");
    push(memory, 4);
    CHECK(mprotect(from, len, PROT_READ | PROT_WRITE) == 0, "mprotect");
    CHECK(writable(from) && writable(shared) && writable(from + len - 1), "all of it");
    verify(private, HALF, 1, "the private part");
    verify(shared, HALF, 2, "the shared part");

    unsigned char in[2 * HALF / 4096];
    CHECK(mincore(from, len, in) == 0, "mincore");
    CHECK(msync(from, len, MS_SYNC) == 0, "msync");
    CHECK(madvise(from, len, MADV_WILLNEED) == 0, "madvise");
    // The private part is zeros then; the shared part keeps what it has.
    CHECK(madvise(from, len, MADV_DONTNEED) == 0, "madvise");
    push(memory, 5);
    verify(private, MIB, 1, "what was kept");
    for (char *p = from; p < shared; p++)
        CHECK(*p == 0, "byte %zu of the private part", (size_t)(p - from));
    verify(shared, HALF, 2, "the shared part");
    CHECK(mlock(shared - 4096, 8192) == 0 && munlock(shared - 4096, 8192) == 0, "mlock");
    verify(shared, HALF, 2, "the shared part");
    puts("fine");
    return 0;
}
