// Access that is set by pages: what each page holds, and which touches and calls are errors, is as without hugeswap, while
// pages go to swap and come back. `access random SEED STEPS` changes access at random and compares with a model; `access
// barrier SEED CYCLES` is what a garbage collector does that learns of writes by SIGSEGV.
#include "common.h"
#include "faults.h"
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
enum { PAGES = 16 * 512 };

static char *memory;
static unsigned char access_of[PAGES];
static uint32_t holds[PAGES]; // 0: zeros
static int pipes[2];

static uint64_t state;
static unsigned draw(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

static uint64_t *word(unsigned page, unsigned at) { return (uint64_t *)(memory + page * PAGE) + at; }
static uint64_t wanted(unsigned page, unsigned at) {
    return holds[page] ? value(at, (uint64_t)holds[page] << 13 | page) : 0;
}

// Reads and writes of a page, by the processor and by the kernel.
static void look(unsigned page, const char *who) {
    int prot = access_of[page];
    unsigned at = draw(512);
    code = 0, expected = 1;
    uint64_t seen = 0;
    if (!sigsetjmp(out, 1))
        seen = *(volatile uint64_t *)word(page, at);
    expected = 0;
    CHECK(code == (prot & PROT_READ ? 0 : SEGV_ACCERR), "%s: a read of page %u with access %d: code %d", who, page, prot, code);
    if (code == 0)
        CHECK(seen == wanted(page, at), "%s: page %u, word %u: %#lx, not %#lx", who, page, at, (long)seen, (long)wanted(page, at));
    code = 0, expected = 1;
    if (!sigsetjmp(out, 1))
        *(volatile uint64_t *)word(page, at) = wanted(page, at);
    expected = 0;
    CHECK(code == (prot & PROT_WRITE ? 0 : SEGV_ACCERR), "%s: a write to page %u with access %d: code %d", who, page, prot, code);
    if (code == 0 && draw(4) == 0) {
        holds[page] = 1 + draw(1 << 20);
        for (unsigned i = 0; i < 512; i++)
            *word(page, i) = wanted(page, i);
    }
}

static void ask_kernel(unsigned page, const char *who) {
    int prot = access_of[page];
    uint64_t back[8];
    unsigned at = draw(512 - 8);
    void *p = word(page, at);
    ssize_t n = write(pipes[1], p, 64);
    CHECK(prot & PROT_READ ? n == 64 : n == -1 && errno == EFAULT, "%s: write from page %u with access %d: %zd", who, page, prot, n);
    if (n != 64)
        CHECK(write(pipes[1], memset(back, 7, 64), 64) == 64, "write");
    if (draw(2)) {
        n = read(pipes[0], p, 64);
    } else {
        struct iovec v = {p, 64};
        n = readv(pipes[0], &v, 1);
    }
    CHECK(prot & PROT_WRITE ? n == 64 : n == -1 && errno == EFAULT, "%s: read to page %u with access %d: %zd", who, page, prot, n);
    if (n != 64)
        CHECK(read(pipes[0], back, 64) == 64, "read");
    // A structure that the kernel fills.
    if (!(prot & PROT_WRITE)) {
        CHECK(fstat(0, p) == -1 && errno == EFAULT, "%s: fstat to page %u with access %d", who, page, prot);
        return;
    }
    for (unsigned i = 0; i < 8; i++)
        CHECK(*word(page, at + i) == wanted(page, at + i), "%s: page %u after the call", who, page);
}

static void everything(const char *who) {
    for (unsigned page = 0; page < PAGES; page++)
        if (access_of[page] & PROT_READ)
            for (unsigned at = page % 7; at < 512; at += 37)
                CHECK(*word(page, at) == wanted(page, at), "%s: page %u, word %u: %#lx, not %#lx", who, page, at,
                      (long)*word(page, at), (long)wanted(page, at));
}

static void range(unsigned *from, unsigned *n) {
    switch (draw(5)) {
    case 0: // units
        *from = draw(15) * 512, *n = 512 * (1 + draw(2));
        break;
    case 1: // runs
        *from = draw(PAGES), *n = 1 + draw(600);
        break;
    default:
        *from = draw(PAGES), *n = 1 + draw(9);
    }
    if (*from + *n > PAGES)
        *n = PAGES - *from;
}

static void random_access(int steps) {
    static const int kinds[] = {PROT_NONE, PROT_READ, RW, RW};
    for (int step = 0; step < steps; step++) {
        unsigned from, n;
        range(&from, &n);
        char *at = memory + from * PAGE;
        switch (draw(12)) {
        case 0: case 1: case 2: case 3: {
            int prot = kinds[draw(4)];
            CHECK(mprotect(at, n * PAGE, prot) == 0, "mprotect of %u pages at %u", n, from);
            memset(access_of + from, prot, n);
            break;
        }
        case 4: case 5:
            CHECK(madvise(at, n * PAGE, MADV_PAGEOUT) == 0, "out");
            break;
        case 6:
            CHECK(madvise(at, n * PAGE, MADV_WILLNEED) == 0, "in");
            break;
        case 7:
            if (draw(4) == 0) {
                CHECK(madvise(at, n * PAGE, MADV_DONTNEED) == 0, "given up");
                memset(holds + from, 0, n * sizeof *holds);
            }
            break;
        case 8:
            for (unsigned i = 0; i < 4; i++)
                ask_kernel(from + draw(n), "self");
            break;
        case 9:
            if (draw(40) == 0) {
                pid_t child = fork();
                CHECK(child >= 0, "fork");
                if (child == 0) {
                    everything("the child");
                    for (int i = 0; i < 200; i++) {
                        look(draw(PAGES), "the child");
                        if (i % 50 == 0) {
                            unsigned k = draw(PAGES - 40);
                            CHECK(mprotect(memory + k * PAGE, 40 * PAGE, RW) == 0, "mprotect by the child");
                            memset(access_of + k, RW, 40);
                        }
                    }
                    CHECK(mprotect(memory, PAGES * PAGE, PROT_READ) == 0, "mprotect by the child");
                    memset(access_of, PROT_READ, PAGES);
                    everything("the child, all of it");
                    _exit(0);
                }
                int status;
                CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
            }
            break;
        default:
            for (unsigned i = 0; i < 12; i++)
                look(from + draw(n), "self");
        }
        if (step % 400 == 399)
            everything("self");
    }
    CHECK(mprotect(memory, PAGES * PAGE, RW) == 0, "mprotect");
    memset(access_of, RW, PAGES);
    everything("in the end");
}

// Writes are learned of by faults: all is read-only, and a page that is written to is opened.
static unsigned char written[PAGES];
static void on_write(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    size_t page = ((char *)info->si_addr - memory) / PAGE;
    if (page >= PAGES || written[page] || info->si_code != SEGV_ACCERR)
        _exit(4);
    written[page] = 1;
    if (mprotect(memory + page * PAGE, PAGE, RW))
        _exit(5);
}

static void barrier(int cycles) {
    signal(SIGSEGV, SIG_DFL);
    struct sigaction act = {.sa_sigaction = on_write, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    for (int cycle = 0; cycle < cycles; cycle++) {
        unsigned char changed[PAGES] = {0};
        memset(written, 0, sizeof written);
        CHECK(mprotect(memory, PAGES * PAGE, PROT_READ) == 0, "mprotect");
        for (int i = 0; i < 1500; i++) {
            unsigned page = draw(cycle % 2 ? PAGES : PAGES / 4);
            if (draw(3) == 0) {
                holds[page] = 1 + draw(1 << 20);
                for (unsigned at = 0; at < 512; at++)
                    *word(page, at) = wanted(page, at);
                changed[page] = 1;
            } else {
                unsigned at = draw(512);
                CHECK(*word(page, at) == wanted(page, at), "page %u in cycle %d", page, cycle);
            }
        }
        CHECK(memcmp(changed, written, PAGES) == 0, "what was written to is what faulted, cycle %d", cycle);
        if (cycle % 3 == 2)
            evict(memory, PAGES * PAGE);
        everything("the collector");
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 3 && pipe(pipes) == 0, "access random|barrier SEED N");
    state = strtoull(argv[2], NULL, 0) * 77777 + 5;
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    memory = mmap(NULL, PAGES * PAGE, RW, ANON, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    memset(access_of, RW, PAGES);
    for (unsigned page = 0; page < PAGES; page += 1 + (page > PAGES / 2)) {
        holds[page] = 1 + page;
        for (unsigned at = 0; at < 512; at++)
            *word(page, at) = wanted(page, at);
    }
    if (strcmp(argv[1], "barrier") == 0)
        barrier(atoi(argv[3]));
    else
        random_access(atoi(argv[3]));
    puts("done");
    return 0;
}
