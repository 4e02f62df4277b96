// Shared anonymous memory between a program and its children: larger than the budget, pushed out, and the same bytes for everybody.
// The first argument says which part to run.
#include "common.h"
#include "processes.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

static void *share(size_t len) {
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu", len);
    return p;
}

static sigjmp_buf out_;
static int signal_;

static void caught(int sig) {
    signal_ = sig;
    siglongjmp(out_, 1);
}

// The signal that a touch ends in; 0 is none.
static int touch(volatile char *p, int write) {
    struct sigaction sa = {.sa_handler = caught}, segv, bus;
    sigaction(SIGSEGV, &sa, &segv);
    sigaction(SIGBUS, &sa, &bus);
    signal_ = 0;
    if (sigsetjmp(out_, 1) == 0) {
        if (write)
            *p = 1;
        else
            (void)*p;
    }
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return signal_;
}

// A counter on each page of more than the budget, counted up by four processes.
static void counters(void) {
    enum { PROCESSES = 4, ROUNDS = 2 };
    size_t len = 96 * MIB, pages = len / PAGE;
    char *p = share(len);
    pid_t pids[PROCESSES];
    for (int c = 0; c < PROCESSES; c++)
        if (!(pids[c] = child())) {
            for (int round = 0; round < ROUNDS; round++)
                for (size_t i = 0; i < pages; i++) {
                    // Each from a place of its own.
                    size_t page = (i + c * pages / PROCESSES) % pages;
                    atomic_fetch_add((atomic_ulong *)(p + page * PAGE + page % 500 * 8), page + 1);
                }
            _exit(0);
        }
    for (int c = 0; c < PROCESSES; c++)
        reap(pids[c], "who counts");
    for (size_t page = 0; page < pages; page++) {
        unsigned long n = *(unsigned long *)(p + page * PAGE + page % 500 * 8);
        CHECK(n == PROCESSES * ROUNDS * (page + 1), "page %zu: %lu", page, n);
    }
    CHECK(munmap(p, len) == 0, "munmap");
    printf("counters\n");
}

// A ring larger than the budget, with semaphores in it that the processes wait for each other by.
struct ring {
    sem_t full, empty;
    char pad[UNIT - 2 * sizeof(sem_t)];
    char at[];
};

static void ring(void) {
    enum { ITEM = 256 << 10, ITEMS = 320, SENT = 900 };
    struct ring *r = share(sizeof(struct ring) + (size_t)ITEM * ITEMS);
    CHECK(sem_init(&r->full, 1, 0) == 0 && sem_init(&r->empty, 1, ITEMS) == 0, "sem_init");
    pid_t pid = child();
    if (!pid) {
        for (int i = 0; i < SENT; i++) {
            while (sem_wait(&r->full))
                CHECK(errno == EINTR, "sem_wait");
            verify(r->at + (size_t)(i % ITEMS) * ITEM, ITEM, i + 1, "an item");
            sem_post(&r->empty);
        }
        _exit(0);
    }
    for (int i = 0; i < SENT; i++) {
        while (sem_wait(&r->empty))
            CHECK(errno == EINTR, "sem_wait");
        fill(r->at + (size_t)(i % ITEMS) * ITEM, ITEM, i + 1);
        sem_post(&r->full);
    }
    reap(pid, "who takes");
    printf("ring\n");
}

// Locks in shared memory, while everything around them is pushed out.
struct locks {
    pthread_mutex_t plain;
    pthread_cond_t turn;
    unsigned long count, whose;
    char pad[3 * UNIT];
    pthread_mutex_t robust, inherit;
    unsigned long held;
};

static void *bystander(void *p) {
    struct locks *l = p;
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_mutex_lock(&l->plain) == 0, "lock");
        l->count++;
        CHECK(pthread_mutex_unlock(&l->plain) == 0, "unlock");
    }
    return NULL;
}

static void locks(void) {
    enum { PROCESSES = 3, ROUNDS = 200 };
    struct locks *l = share(sizeof *l);
    ballast(96 * MIB);
    pthread_mutexattr_t m;
    pthread_condattr_t c;
    pthread_mutexattr_init(&m);
    pthread_condattr_init(&c);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_mutex_init(&l->plain, &m) == 0 && pthread_cond_init(&l->turn, &c) == 0, "init");
    pthread_mutexattr_setprotocol(&m, PTHREAD_PRIO_INHERIT);
    CHECK(pthread_mutex_init(&l->inherit, &m) == 0, "init");
    pthread_mutexattr_setprotocol(&m, PTHREAD_PRIO_NONE);
    pthread_mutexattr_setrobust(&m, PTHREAD_MUTEX_ROBUST);
    CHECK(pthread_mutex_init(&l->robust, &m) == 0, "init");
    // In turn, by a condition; each also with a thread that only wants the lock.
    pid_t pids[PROCESSES];
    for (int who = 0; who < PROCESSES; who++)
        if (!(pids[who] = child())) {
            pthread_t t;
            CHECK(pthread_create(&t, NULL, bystander, l) == 0, "thread");
            for (int i = 0; i < ROUNDS; i++) {
                CHECK(pthread_mutex_lock(&l->plain) == 0, "lock");
                while (l->whose % PROCESSES != (unsigned)who)
                    CHECK(pthread_cond_wait(&l->turn, &l->plain) == 0, "wait");
                l->whose++;
                pthread_cond_broadcast(&l->turn);
                CHECK(pthread_mutex_unlock(&l->plain) == 0, "unlock");
                CHECK(pthread_mutex_lock(&l->inherit) == 0, "lock");
                l->held++;
                CHECK(pthread_mutex_unlock(&l->inherit) == 0, "unlock");
                if (i % 20 == who)
                    madvise((void *)((size_t)l & ~(UNIT - 1)), 4 * UNIT, 21 /* MADV_PAGEOUT */);
            }
            pthread_join(t, NULL);
            _exit(0);
        }
    push_out();
    for (int who = 0; who < PROCESSES; who++)
        reap(pids[who], "who locks");
    CHECK(l->whose == PROCESSES * ROUNDS, "%lu turns", l->whose);
    CHECK(l->held == PROCESSES * ROUNDS, "held %lu times", l->held);
    CHECK(l->count == PROCESSES * 200, "locked %lu times", l->count);
    // Whose holder dies with everything pushed out.
    pid_t pid = child();
    if (!pid) {
        CHECK(pthread_mutex_lock(&l->robust) == 0, "lock");
        evict(l, sizeof *l);
        raise(SIGKILL);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status), "it ended with %#x", status);
    CHECK(pthread_mutex_lock(&l->robust) == EOWNERDEAD, "the lock of a dead process");
    CHECK(pthread_mutex_consistent(&l->robust) == 0 && pthread_mutex_unlock(&l->robust) == 0, "unlock");
    printf("locks\n");
}

// A child that outlives who made the memory, and its own child.
static void orphan(void) {
    size_t len = 80 * MIB;
    char *p = share(len);
    atomic_int *go = share(MIB);
    int done[2];
    CHECK(pipe(done) == 0, "pipe");
    fill(p, len, 3);
    pid_t maker = child();
    if (!maker) {
        // (The second one of them makes memory that only its own children have.)
        char *q = share(40 * MIB);
        fill(q, 40 * MIB, 4);
        if (child())
            _exit(0);
        pid_t grand = child();
        close(done[0]);
        if (grand)
            while (!atomic_load(go))
                sched_yield();
        verify(p, len, 3, "what the maker wrote");
        verify(q, 40 * MIB, 4, "what the parent wrote");
        if (grand) {
            reap(grand, "the grandchild");
            fill(q, 40 * MIB, 5);
            verify(q, 40 * MIB, 5, "what I wrote");
            CHECK(write(done[1], "x", 1) == 1, "write");
        }
        _exit(0);
    }
    close(done[1]);
    reap(maker, "the maker");
    char c = 0;
    atomic_store(go, 1);
    munmap(p, len);
    CHECK(read(done[0], &c, 1) == 1 && c == 'x', "the orphan did not end well");
    printf("orphan\n");
}

static void write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t r = write(fd, p, n);
        CHECK(r > 0, "write");
        p += r, n -= r;
    }
}

static void read_all(int fd, char *p, size_t n) {
    while (n) {
        ssize_t r = read(fd, p, n);
        CHECK(r > 0, "read: %zd", r);
        p += r, n -= r;
    }
}

// System calls with buffers in it, absent when they are made.
static void calls(const char *dir) {
    size_t len = 24 * MIB, n = 5 * MIB + 12345;
    char *p = share(len), path[512];
    ballast(96 * MIB);
    snprintf(path, sizeof path, "%s/file", dir);
    int flags[] = {0, O_DIRECT};
    for (int i = 0; i < 2; i++) {
        size_t part = i ? 5 * MIB : n;
        fill(p + PAGE, part, 10 + i);
        evict(p, len);
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | flags[i], 0600);
        CHECK(fd >= 0, "open %s", path);
        CHECK(write(fd, p + PAGE, part) == (ssize_t)part, "write");
        evict(p, len);
        CHECK(pread(fd, p + 8 * MIB, part, 0) == (ssize_t)part, "pread");
        verify(p + 8 * MIB, part, 10 + i, "what was read");
        evict(p, len);
        struct iovec v[3] = {{p + 16 * MIB, 2 * MIB}, {p + 19 * MIB, 512 * KIB}, {p + 20 * MIB, 2 * MIB}};
        CHECK(preadv(fd, v, 3, 0) == 4608 * (ssize_t)KIB, "preadv");
        verify(v[0].iov_base, v[0].iov_len, 10 + i, "the first vector");
        verify_from(v[2].iov_base, 2560 * KIB / 8, v[2].iov_len, 10 + i, "the last vector");
        evict(p, len);
        CHECK(syscall(SYS_pread64, fd, p, 64 * KIB, 0) == 64 * (long)KIB, "a raw pread");
        verify(p, 64 * KIB, 10 + i, "what was read by a raw call");
        close(fd);
    }
    // A stream and messages, from one process to another.
    int s[2], m[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, m) == 0, "socketpair");
    fill(p, n, 20);
    fill(p + 16 * MIB, 100 * KIB, 21);
    pid_t pid = child();
    if (!pid) {
        evict(p, len);
        write_all(s[0], p, n);
        evict(p, len);
        CHECK(send(m[0], p + 16 * MIB, 100 * KIB, 0) == 100 * (ssize_t)KIB, "send");
        _exit(0);
    }
    read_all(s[1], p + 8 * MIB, n);
    verify(p + 8 * MIB, n, 20, "what came");
    CHECK(recv(m[1], p + 20 * MIB + 5, 200 * KIB, 0) == 100 * (ssize_t)KIB, "recv");
    verify(p + 20 * MIB + 5, 100 * KIB, 21, "the message");
    reap(pid, "who sends");
    // Small things, and paths.
    strcpy(p + 3, path);
    evict(p, len);
    struct stat *st = (struct stat *)(p + 12 * MIB + 8);
    CHECK(fstatat(AT_FDCWD, p + 3, st, 0) == 0 && st->st_size == 5 * (off_t)MIB, "stat");
    evict(p, len);
    struct pollfd *pfd = (struct pollfd *)(p + 14 * MIB);
    *pfd = (struct pollfd){.fd = s[1], .events = POLLOUT};
    evict(p, len);
    CHECK(poll(pfd, 1, 0) == 1, "poll");
    // Nobody tells how long what this call writes is.
    evict(p, len);
    int *pending = (int *)(p + 22 * MIB);
    CHECK(ioctl(s[1], 0x541b /* FIONREAD */, pending) == 0 && *pending == 0, "ioctl");
    // What is not there is not there for system calls either.
    CHECK(munmap(p + 2 * MIB, 2 * MIB) == 0, "munmap");
    errno = 0;
    CHECK(write(s[0], p + 3 * MIB, 10) == -1 && errno == EFAULT, "write of what is unmapped");
    CHECK(munmap(p, len) == 0, "munmap");
    errno = 0;
    CHECK(write(s[0], p + 5 * MIB, 10) == -1 && errno == EFAULT, "write of what is unmapped");
    unlink(path);
    printf("calls\n");
}

// Unmapping, protecting, moving and advising parts of it.
static void parts(void) {
    size_t len = 24 * MIB + 3 * PAGE;
    char *p = share(len);
    ballast(96 * MIB);
    fill(p, len, 30);
    evict(p, len);
    verify(p, len, 30, "all");
    // Whole units, and parts of some.
    struct hole {
        size_t at, len;
    } holes[] = {{4 * MIB, 4 * MIB}, {9 * MIB + PAGE, 3 * PAGE}, {13 * MIB, 2 * MIB}, {len - PAGE, PAGE}};
    for (int i = 0; i < 4; i++) {
        evict(p, len);
        CHECK(munmap(p + holes[i].at, holes[i].len) == 0, "munmap");
    }
    pid_t pid = 0;
    for (int forked = 0; forked < 2; forked++) {
        if (forked && (pid = child()))
            break;
        evict(p, 4 * MIB);
        evict(p + 16 * MIB, 8 * MIB);
        size_t from = 0;
        for (int i = 0; i < 4; i++) {
            verify_from(p + from, from / 8, holes[i].at - from, 30, "between holes");
            CHECK(touch(p + holes[i].at, 0) == SIGSEGV, "hole %d", i);
            CHECK(touch(p + holes[i].at + holes[i].len - 1, 1) == SIGSEGV, "hole %d", i);
            from = holes[i].at + holes[i].len;
        }
    }
    if (!pid) {
        p[0] ^= 1;
        _exit(0);
    }
    reap(pid, "the child");
    p[0] ^= 1;
    verify(p, 4 * MIB, 30, "what the child changed, and I changed back");
    CHECK(munmap(p, len) == 0, "munmap");
    CHECK(touch(p, 0) == SIGSEGV && touch(p + 20 * MIB, 1) == SIGSEGV, "all is unmapped");

    // Protection, which children inherit.
    p = share(16 * MIB);
    fill(p, 16 * MIB, 31);
    evict(p, 16 * MIB);
    CHECK(mprotect(p + 2 * MIB, 4 * MIB, PROT_READ) == 0 && mprotect(p + 9 * MIB, PAGE, PROT_NONE) == 0, "mprotect");
    if (!(pid = child())) {
        CHECK(touch(p + 3 * MIB, 1) == SIGSEGV && touch(p + 9 * MIB, 0) == SIGSEGV, "protected in the child");
        CHECK(touch(p + 9 * MIB + PAGE, 0) == 0, "beside what is protected");
        CHECK(mprotect(p + 9 * MIB, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
        verify(p, 16 * MIB, 31, "in the child");
        _exit(0);
    }
    reap(pid, "the child");
    CHECK(touch(p + 3 * MIB, 1) == SIGSEGV && touch(p + 9 * MIB, 0) == SIGSEGV, "protected");
    evict(p, 16 * MIB);
    verify(p, 9 * MIB, 31, "readable");
    CHECK(mprotect(p, 16 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    verify(p, 16 * MIB, 31, "writable again");

    // Advice: what is not needed here is there still; what is removed is gone for all.
    CHECK(madvise(p, 16 * MIB, MADV_DONTNEED) == 0, "madvise");
    verify(p, 16 * MIB, 31, "not needed");
    CHECK(madvise(p, 16 * MIB, MADV_FREE) == -1 && errno == EINVAL, "MADV_FREE");
    evict(p, 16 * MIB);
    CHECK(madvise(p + 3 * MIB, 3 * MIB, MADV_REMOVE) == 0, "MADV_REMOVE");
    CHECK(madvise(p + 9 * MIB, PAGE, MADV_REMOVE) == 0, "MADV_REMOVE");
    evict(p, 16 * MIB);
    verify(p, 3 * MIB, 31, "before what was removed");
    verify_zero(p + 3 * MIB, 3 * MIB, "removed");
    verify_zero(p + 9 * MIB, PAGE, "removed");
    fill(p, 16 * MIB, 32);
    CHECK(madvise(p + 4 * MIB, 2 * MIB, MADV_DONTFORK) == 0, "madvise");
    if (!(pid = child())) {
        CHECK(touch(p + 5 * MIB, 0) == SIGSEGV && touch(p + 6 * MIB, 0) == 0, "not for children");
        _exit(0);
    }
    reap(pid, "the child");
    CHECK(madvise(p + 4 * MIB, 2 * MIB, MADV_DOFORK) == 0, "madvise");
    CHECK(msync(p, 16 * MIB, MS_SYNC) == 0, "msync");
    CHECK(mlock(p + MIB, PAGE) == 0 && munlock(p + MIB, PAGE) == 0, "mlock");
    verify(p, 16 * MIB, 32, "advised");

    // Moved: it is shared still.
    evict(p, 16 * MIB);
    char *q = mremap(p, 16 * MIB, 12 * MIB, 0);
    CHECK(q == p, "made shorter");
    CHECK(touch(p + 12 * MIB, 0) == SIGSEGV, "behind the new end");
    char *to = mmap(NULL, 12 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    q = mremap(p, 12 * MIB, 12 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECK(q == to, "moved");
    CHECK(touch(p, 0) == SIGSEGV, "where it was");
    if (!(pid = child())) {
        verify(q, 12 * MIB, 32, "moved, in the child");
        fill(q, 12 * MIB, 33);
        _exit(0);
    }
    reap(pid, "the child");
    verify(q, 12 * MIB, 33, "what the child wrote");
    munmap(q, 12 * MIB);

    // Something else mapped over a part of it.
    p = share(12 * MIB);
    fill(p, 12 * MIB, 34);
    q = mmap(p + 5 * MIB, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(q == p + 5 * MIB, "mapped over it");
    verify_zero(q, PAGE, "mapped over it");
    *q = 1;
    if (!(pid = child())) {
        verify(p, 5 * MIB, 34, "before it, in the child");
        CHECK(*q == 1, "private");
        *q = 2;
        p[0] ^= 1;
        _exit(0);
    }
    reap(pid, "the child");
    p[0] ^= 1;
    CHECK(*q == 1, "private");
    verify(p, 5 * MIB, 34, "before it");
    CHECK(munmap(p, 12 * MIB) == 0, "munmap");
    CHECK(touch(q, 0) == SIGSEGV, "unmapped");

    // Many, one after the other: addresses and swap come back.
    for (int i = 0; i < 60; i++) {
        p = share(8 * MIB);
        p[5 * MIB] = 1;
        evict(p, 8 * MIB);
        CHECK(p[5 * MIB] == 1 && p[6 * MIB] == 0, "round %d", i);
        CHECK(munmap(p, 8 * MIB) == 0, "munmap");
    }
    printf("parts\n");
}

// Processes that change their user, which every thread must: the engine's, too.
static void user(void) {
    size_t len = 80 * MIB;
    char *p = share(len);
    fill(p, len, 50);
    pid_t pids[2];
    for (int c = 0; c < 2; c++)
        if (!(pids[c] = child())) {
            // To another one, if this may be done.
            CHECK(setuid(getuid() ? getuid() : 65534) == 0, "setuid");
            char *own = malloc(16 * MIB);
            fill(own, 16 * MIB, c);
            for (size_t i = 0; i < len / PAGE; i++)
                atomic_fetch_add((atomic_ulong *)(p + i * PAGE), 1);
            verify(own, 16 * MIB, c, "a child's own");
            _exit(0);
        }
    for (int c = 0; c < 2; c++)
        reap(pids[c], "another user");
    for (size_t i = 0; i < len / PAGE; i++)
        atomic_fetch_sub((atomic_ulong *)(p + i * PAGE), 2);
    verify(p, len, 50, "what other users counted up");
    printf("user\n");
}

// One process runs another image; the memory is the others'.
static void images(const char *self) {
    char *p = share(80 * MIB);
    fill(p, 80 * MIB, 40);
    pid_t pid = child();
    if (!pid) {
        verify(p, 80 * MIB, 40, "before exec");
        execl(self, self, "counters", (char *)NULL);
        _exit(1);
    }
    reap(pid, "another image");
    verify(p, 80 * MIB, 40, "after exec");
    printf("images\n");
}

#define PRESENT ((uint64_t)1 << 63)
#define SWAPPED ((uint64_t)1 << 62)
#define FILE_OR_SHARED ((uint64_t)1 << 61)

// What this process' own pagemap says: pages in memory, and in swap.
static void entries(const char *p, size_t len, size_t *here, size_t *away) {
    static uint64_t e[96 * MIB / PAGE];
    size_t n = len / PAGE;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0 && n <= sizeof e / 8, "pagemap");
    CHECK(pread(fd, e, n * 8, (size_t)p / PAGE * 8) == (ssize_t)n * 8, "pread");
    close(fd);
    *here = *away = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t state = e[i] & (PRESENT | SWAPPED);
        CHECK(state != (PRESENT | SWAPPED), "entry %zu: %#lx", i, (unsigned long)e[i]);
        CHECK(!state || e[i] & FILE_OR_SHARED, "shared entry %zu: %#lx", i, (unsigned long)e[i]);
        *here += state == PRESENT;
        *away += state == SWAPPED;
    }
}

// The same is told to who wrote it and to who never touched it. (The kernel tells each process what it has mapped itself.)
static void pagemap(void) {
    size_t len = 96 * MIB, pages = len / PAGE, here, away;
    char *p = share(len);
    int managed = (size_t)p < (size_t)0x500000000000;
    entries(p, len, &here, &away);
    CHECK(here + away == 0, "nothing was written, and %zu and %zu pages are there", here, away);
    fill(p, len, 60);
    entries(p, len, &here, &away);
    CHECK(here + away == pages && here > 0, "all was written: %zu in memory, %zu in swap", here, away);
    CHECK(!managed || away >= pages / 4, "more than the budget, and %zu pages of %zu in swap", away, pages);
    pid_t pid = child();
    if (!pid) {
        entries(p, len, &here, &away);
        CHECK(!managed || here + away == pages, "untouched here: %zu in memory, %zu in swap", here, away);
        verify(p, 8 * MIB, 60, "in the child");
        fill(p, 8 * MIB, 61);
        _exit(0);
    }
    reap(pid, "the child");
    evict(p, len);
    entries(p, len, &here, &away);
    CHECK(!managed || (here + away == pages && away > 0), "evicted: %zu in memory, %zu in swap", here, away);
    verify(p, 8 * MIB, 61, "what the child wrote");
    // Whole units, and pages that are cut out of one.
    CHECK(madvise(p + 16 * MIB, 8 * MIB, MADV_REMOVE) == 0, "MADV_REMOVE");
    entries(p + 16 * MIB, 8 * MIB, &here, &away);
    CHECK(here + away == 0, "removed, and %zu and %zu pages are there", here, away);
    CHECK(munmap(p + 33 * MIB, 3 * PAGE) == 0, "munmap");
    entries(p + 33 * MIB - PAGE, 5 * PAGE, &here, &away);
    CHECK(here + away <= 2, "of two pages %zu and %zu are there", here, away);
    CHECK(!managed || here == 2, "beside what was unmapped: %zu in memory, %zu in swap", here, away);
    CHECK(munmap(p, len) == 0, "munmap");
    entries(p, len, &here, &away);
    CHECK(here + away == 0, "unmapped, and %zu and %zu pages are there", here, away);
    printf("pagemap\n");
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc >= 2, "which part?");
    if (!strcmp(argv[1], "counters"))
        counters();
    else if (!strcmp(argv[1], "ring"))
        ring();
    else if (!strcmp(argv[1], "locks"))
        locks();
    else if (!strcmp(argv[1], "orphan"))
        orphan();
    else if (!strcmp(argv[1], "calls"))
        calls(argv[2]);
    else if (!strcmp(argv[1], "parts"))
        parts();
    else if (!strcmp(argv[1], "user"))
        user();
    else if (!strcmp(argv[1], "images"))
        images(argv[0]);
    else if (!strcmp(argv[1], "pagemap"))
        pagemap();
    else
        CHECK(0, "no part %s", argv[1]);
    done();
    return 0;
}
