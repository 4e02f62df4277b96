// A thread with little stack, and a small alternate stack, is the first to ask for memory that is managed, and does
// with it what programs do. Below each of the two stacks is a page that nobody may touch.
// narrow MEMORY_MIB
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

// The least that pthread_attr_setstacksize takes.
#define STACK (16 * KIB)
#define ALTERNATE (32 * KIB)

static size_t memory;
static uint64_t result;

// The end of `len` bytes that have a guard below them.
static char *guarded(size_t len) {
    char *p = mmap(NULL, PAGE + len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && mprotect(p, PAGE, PROT_NONE) == 0, "a stack");
    return p + PAGE;
}

static void *work(void *alternate) {
    stack_t stack = {.ss_sp = alternate, .ss_size = ALTERNATE};
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    char *p = mmap(NULL, memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    for (int round = 0; round < 2; round++) {
        fill(p, memory, 3);
        verify(p, memory, 3, "filled");
    }
    // Single pages change, and leave.
    for (size_t at = 0; at < memory; at += 3 * PAGE)
        p[at]++;
    evict(p, memory);
    for (size_t at = 0; at < memory; at += 3 * PAGE)
        p[at]--;
    verify(p, memory, 3, "changed");
    // Parts of huge pages go, or may not be touched for a while.
    CHECK(madvise(p + 3 * PAGE, 4 * MIB, MADV_DONTNEED) == 0, "madvise");
    CHECK(mprotect(p + 9 * MIB + PAGE, 3 * MIB, PROT_NONE) == 0, "mprotect");
    CHECK(mprotect(p + 9 * MIB + PAGE, 3 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    char *q = mremap(p, memory, memory + 8 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap");
    verify_zero(q + 3 * PAGE, 4 * MIB, "given up");
    verify_from(q + 8 * MIB, 8 * MIB / 8, memory - 8 * MIB, 3, "moved");
    // The kernel reads and writes there.
    int fd = open("/dev/zero", O_RDONLY);
    evict(q, memory);
    for (size_t done = 0; done < 16 * MIB;) {
        ssize_t n = read(fd, q + MIB + done, 16 * MIB - done);
        CHECK(n > 0, "read");
        done += (size_t)n;
    }
    close(fd);
    verify_zero(q + MIB, 16 * MIB, "read");
    result = sum(q, memory);
    CHECK(munmap(q, memory + 8 * MIB) == 0, "munmap");
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2, "narrow MEMORY_MIB");
    begin();
    memory = (size_t)atoi(argv[1]) * MIB;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstack(&attributes, guarded(STACK), STACK) == 0, "pthread_attr_setstack");
    CHECK(pthread_create(&thread, &attributes, work, guarded(ALTERNATE)) == 0, "pthread_create");
    pthread_join(thread, NULL);
    printf("%#lx\n", (unsigned long)result);
    done();
    return 0;
}
