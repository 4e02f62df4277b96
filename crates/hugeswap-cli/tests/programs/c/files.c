// Memory files (memfd_create, shm_open) that processes share: larger than the budget, pushed out, and the same bytes for everybody who may have them.
// The first argument says which part to run. What may be refused is checked to be either right or refused.
#include "common.h"
#include "processes.h"
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char *self_;

// A memory file of that length.
static int file(size_t len) {
    int fd = memfd_create("a file", MFD_CLOEXEC);
    CHECK(fd >= 0, "memfd_create");
    CHECK(ftruncate(fd, len) == 0, "ftruncate");
    return fd;
}

static void *map(int fd, size_t len) {
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu", len);
    return p;
}

static size_t length(int fd) {
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode), "fstat");
    return st.st_size;
}

// Past every wrapper.
static long bare(long nr, long a, long b, long c, long d, long e, long f) {
    long r;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return r;
}

static void send_fd(int to, int fd) {
    char c = 'x', room[CMSG_SPACE(sizeof fd)];
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    CHECK(sendmsg(to, &m, 0) == 1, "sendmsg");
}

static int receive_fd(int from) {
    char c, room[CMSG_SPACE(sizeof(int))];
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK(recvmsg(from, &m, 0) == 1 && CMSG_FIRSTHDR(&m), "recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

// Forked processes that have the memory, and map it once more; parts of it, too.
static void workers(void) {
    enum { PROCESSES = 4 };
    size_t len = 96 * MIB + 3 * PAGE + 100, pages = len / PAGE;
    int fd = file(len);
    CHECK(length(fd) == len && ftruncate(fd, len) == 0, "%zu bytes", length(fd));
    char *p = map(fd, len);
    verify_zero(p, len, "a new file");
    pid_t pids[PROCESSES];
    for (int c = 0; c < PROCESSES; c++)
        if (!(pids[c] = child())) {
            char *q = c % 2 ? map(fd, len) : p;
            for (size_t i = 0; i < pages; i++) {
                size_t page = (i + c * pages / PROCESSES) % pages;
                atomic_fetch_add((atomic_ulong *)(q + page * PAGE + page % 500 * 8), page + 1);
            }
            // A part of it; what else is mapped stays when that is not any more.
            char *part = mmap(NULL, 5 * MIB, PROT_READ, MAP_SHARED, fd, 40 * MIB);
            CHECK(part != MAP_FAILED, "mmap of a part");
            size_t page = 41 * MIB / PAGE;
            CHECK(*(unsigned long *)(part + MIB + page % 500 * 8) >= page + 1, "a part");
            CHECK(munmap(part, 5 * MIB) == 0, "munmap");
            CHECK(munmap(p, len) == 0, "munmap");
            if (q != p)
                CHECK(*(unsigned long *)(q + page * PAGE + page % 500 * 8) >= page + 1, "the other mapping");
            _exit(0);
        }
    for (int c = 0; c < PROCESSES; c++)
        reap(pids[c], "who counts");
    // Not mapped by anybody any more, and there all the same.
    CHECK(munmap(p, len) == 0, "munmap");
    p = map(fd, len);
    for (size_t page = 0; page < pages; page++) {
        unsigned long n = *(unsigned long *)(p + page * PAGE + page % 500 * 8);
        CHECK(n == PROCESSES * (page + 1), "page %zu: %lu", page, n);
    }
    CHECK(close(fd) == 0, "close");
    fill(p, len, 3);
    if (!(pids[0] = child())) {
        verify(p, len, 3, "in a child, the descriptor closed");
        _exit(0);
    }
    reap(pids[0], "who verifies");
    printf("workers\n");
}

// Descriptors that go to processes which have nothing to do with who made the file: sent, or through exec.
static void passed(void) {
    size_t len = 80 * MIB;
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0, "socketpair");
    pid_t pid = child();
    if (!pid) {
        int fd = receive_fd(s[0]);
        CHECK(length(fd) == len, "%zu bytes", length(fd));
        char *p = map(fd, len);
        verify(p, len, 1, "what was received");
        fill(p, len, 2);
        evict(p, len);
        CHECK(write(s[0], "x", 1) == 1, "write");
        char c;
        CHECK(read(s[0], &c, 1) == 1, "read");
        _exit(0);
    }
    int fd = file(len);
    char *p = map(fd, len);
    fill(p, len, 1);
    evict(p, len);
    // When it is received, nobody has it mapped, nor open.
    int mine = dup(fd);
    CHECK(munmap(p, len) == 0, "munmap");
    send_fd(s[1], fd);
    close(fd);
    char c;
    CHECK(read(s[1], &c, 1) == 1, "read");
    p = map(mine, len);
    verify(p, len, 2, "what the other wrote");
    CHECK(write(s[1], "x", 1) == 1, "write");
    reap(pid, "who receives");
    // Another image.
    fcntl(mine, F_SETFD, 0);
    if (!(pid = child())) {
        char number[16];
        snprintf(number, sizeof number, "%d", mine);
        execl(self_, self_, "image", number, (char *)NULL);
        _exit(1);
    }
    reap(pid, "another image");
    verify(p, len, 4, "what another image wrote");
    printf("passed\n");
}

static void image(int fd) {
    size_t len = length(fd);
    char *p = map(fd, len);
    verify(p, len, 2, "after exec");
    fill(p, len, 4);
    evict(p, len);
}

static void name_of(char *name, const char *what) { snprintf(name, 64, "/hugeswap-test-%s-%d", what, (int)getpid()); }

// Of a file made and sent with a short way to live: nobody but the message has it.
static void flying(void) {
    size_t len = 80 * MIB;
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0, "socketpair");
    int fd = file(len);
    char *p = map(fd, len);
    fill(p, len, 5);
    CHECK(munmap(p, len) == 0, "munmap");
    send_fd(s[1], fd);
    close(fd);
    fd = receive_fd(s[0]);
    p = map(fd, len);
    verify(p, len, 5, "what flew");
    // Descriptors from before it had its length.
    int early = memfd_create("early", 0), same = dup(early);
    pid_t pid = child();
    if (!pid) {
        while (length(early) != len)
            sched_yield();
        char *q = map(same, len);
        while (!atomic_load((atomic_int *)(q + len - PAGE)))
            sched_yield();
        verify(q, len - PAGE, 6, "through a descriptor from before");
        _exit(0);
    }
    CHECK(ftruncate(early, len) == 0 && ftruncate(same, len) == 0, "ftruncate");
    p = map(early, len);
    fill(p, len - PAGE, 6);
    atomic_store((atomic_int *)(p + len - PAGE), 1);
    reap(pid, "who has it from before");
    // Mapped before it has its length.
    char name[64];
    name_of(name, "e");
    int first[2] = {memfd_create("first", 0), shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600)};
    for (int i = 0; i < 2; i++) {
        char *q = map(first[i], 20 * MIB);
        CHECK(ftruncate(first[i], 20 * MIB) == 0, "ftruncate");
        fill(q, 20 * MIB, 8);
        verify(map(first[i], 20 * MIB), 20 * MIB, 8, "mapped before");
    }
    shm_unlink(name);
    // Inherited, and duplicated, before.
    for (int twice = 0; twice < 2; twice++) {
        fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        int also = twice ? dup(fd) : fd;
        if (!twice && !(pid = child())) {
            while (length(fd) != len)
                sched_yield();
            char *q = map(fd, len);
            while (!atomic_load((atomic_int *)q))
                sched_yield();
            _exit(0);
        }
        CHECK(ftruncate(fd, len) == 0 && length(also) == len, "ftruncate");
        char *q = map(fd, len);
        atomic_store((atomic_int *)q, 1);
        CHECK(atomic_load((atomic_int *)map(also, len)) == 1, "through the other descriptor");
        if (!twice)
            reap(pid, "who inherits");
        shm_unlink(name);
    }
    printf("flying\n");
}

// By name, from another program.
static void named(void) {
    size_t len = 96 * MIB + 10;
    char name[64];
    name_of(name, "a");
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(fd >= 0 && length(fd) == 0, "shm_open");
    CHECK(ftruncate(fd, len) == 0 && length(fd) == len, "ftruncate");
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0640, "mode %o", st.st_mode);
    CHECK(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST, "it exists");
    char *p = map(fd, len);
    CHECK(close(fd) == 0, "close");
    fill(p, len, 1);
    evict(p, len);
    pid_t pids[2];
    for (int c = 0; c < 2; c++) {
        if (!(pids[c] = child())) {
            execl(self_, self_, "partner", name, c ? "1" : "0", (char *)NULL);
            _exit(1);
        }
        reap(pids[c], "a partner");
    }
    verify(p, len, 2, "what a partner wrote");
    // Kept by its name alone.
    CHECK(munmap(p, len) == 0, "munmap");
    fd = shm_open(name, O_RDONLY, 0);
    p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && p != MAP_FAILED, "shm_open and mmap");
    verify(p, len, 2, "kept by its name");
    CHECK(shm_unlink(name) == 0, "shm_unlink");
    CHECK(shm_open(name, O_RDWR, 0) == -1 && errno == ENOENT, "the name is gone");
    verify(p, len, 2, "without a name");
    // Two that both make it, as they may.
    name_of(name, "b");
    atomic_int *here = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = child();
    int both = shm_open(name, O_RDWR | O_CREAT, 0600);
    CHECK(both >= 0, "both make it");
    atomic_fetch_add(here, 1);
    while (atomic_load(here) != 2)
        sched_yield();
    CHECK(ftruncate(both, 24 * MIB) == 0, "both make it as long");
    char *q = map(both, 24 * MIB);
    atomic_fetch_add((atomic_int *)q, 1);
    while (atomic_load((atomic_int *)q) != 2)
        sched_yield();
    if (!pid)
        _exit(0);
    reap(pid, "the other maker");
    shm_unlink(name);
    printf("named\n");
}

static void partner(const char *name, int writes) {
    int fd = shm_open(name, writes ? O_RDWR : O_RDONLY, 0);
    CHECK(fd >= 0, "shm_open");
    size_t len = length(fd);
    char *p = mmap(NULL, len, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED, "mmap");
    verify(p, len, 1, "found by its name");
    if (writes)
        fill(p, len, 2);
    evict(p, len);
}

static sigjmp_buf out_;

static void caught(int sig) {
    (void)sig;
    siglongjmp(out_, 1);
}

// Bytes from `at` on, got in a way that may be refused.
static void right(const char *p, size_t at, ssize_t n, const char *how) {
    if (n > 0)
        verify_from(p, at / 8, n & ~7, 1, how);
}

// The same of a mapping, which may be none, and whose touch may be a signal.
static void right_mapping(char *q, size_t at, size_t len, const char *how) {
    if (q == MAP_FAILED || (long)q < 0)
        return;
    struct sigaction sa = {.sa_handler = caught}, bus;
    sigaction(SIGBUS, &sa, &bus);
    if (sigsetjmp(out_, 1) == 0)
        (void)*(volatile char *)q;
    else
        len = 0;
    sigaction(SIGBUS, &bus, NULL);
    if (len)
        verify_from(q, at / 8, len, 1, how);
}

// Whatever is done with a descriptor of a file with content 1, by wrappers and past them: right, or refused.
static void all_ways(int fd, size_t len) {
    static char room[MIB];
    size_t at = 6 * MIB;
    lseek(fd, 0, SEEK_SET);
    right(room, 0, read(fd, room, MIB), "read");
    right(room, at, pread(fd, room, MIB, at), "pread");
    right(room, at, bare(SYS_pread64, fd, (long)room, MIB, at, 0, 0), "a bare pread");
    struct iovec v = {room, MIB};
    right(room, at, bare(SYS_preadv, fd, (long)&v, 1, at, 0, 0), "a bare preadv");
    int to = memfd_create("to", 0), ends[2];
    loff_t from = at;
    ssize_t n = sendfile(to, fd, &from, MIB);
    right(room, at, n > 0 ? pread(to, room, n, 0) : 0, "sendfile");
    from = at;
    loff_t begin = 0;
    n = copy_file_range(fd, &from, to, &begin, MIB, 0);
    right(room, at, n > 0 ? pread(to, room, n, 0) : 0, "copy_file_range");
    CHECK(pipe(ends) == 0, "pipe");
    from = at;
    n = splice(fd, &from, ends[1], NULL, PAGE, 0);
    right(room, at, n > 0 ? read(ends[0], room, n) : 0, "splice");
    close(to), close(ends[0]), close(ends[1]);
    right_mapping(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, at), at, MIB, "a private mapping");
    right_mapping(mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0), 0, MIB, "a private mapping");
    right_mapping(mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, at), at, MIB, "a part");
    right_mapping((char *)bare(SYS_mmap, 0, MIB, PROT_READ, MAP_SHARED, fd, at), at, MIB, "a bare mapping");
    right_mapping((char *)bare(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), 0, MIB, "a bare mapping");
    right_mapping((char *)bare(SYS_mmap, 0, MIB, PROT_READ, MAP_PRIVATE, fd, at), at, MIB, "a bare mapping");
    // Opened once more.
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = bare(SYS_open, (long)path, O_RDWR, 0, 0, 0, 0);
    if (again >= 0) {
        right(room, at, bare(SYS_pread64, again, (long)room, MIB, at, 0, 0), "opened again");
        right_mapping((char *)bare(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), 0, MIB, "opened again");
        // It must not become another file of that length.
        if (bare(SYS_ftruncate, again, len, 0, 0, 0, 0) == 0)
            right_mapping((char *)bare(SYS_mmap, 0, len, PROT_READ, MAP_SHARED, again, 0), 0, MIB, "made longer");
        close(again);
    }
}

static void ways(void) {
    size_t len = 80 * MIB;
    char name[64], number[16], other[16];
    name_of(name, "c");
    int fds[2] = {file(len), shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600)};
    CHECK(fds[1] >= 0 && ftruncate(fds[1], len) == 0, "shm_open");
    for (int i = 0; i < 2; i++) {
        char *p = map(fds[i], len);
        fill(p, len, 1);
        evict(p, len);
        all_ways(fds[i], len);
        verify(p, len, 1, "unchanged");
        // What is written is there, or was refused.
        uint64_t word = 5;
        evict(p, len);
        ssize_t n = pwrite(fds[i], &word, 8, 8 * MIB);
        CHECK(n == 8 ? *(uint64_t *)(p + 8 * MIB) == 5 : n == -1, "pwrite: %zd", n);
        n = bare(SYS_pwrite64, fds[i], (long)&word, 8, 9 * MIB, 0, 0);
        CHECK(n == 8 ? *(uint64_t *)(p + 9 * MIB) == 5 : n < 0, "a bare pwrite: %zd", n);
        fill(p, len, 1);
        // Holes, and another length.
        if (fallocate(fds[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * MIB, MIB) == 0)
            verify_zero(p + 4 * MIB, MIB, "a hole");
        if (ftruncate(fds[i], 100 * MIB) == 0)
            CHECK(length(fds[i]) == 100 * MIB, "longer");
        else
            CHECK(length(fds[i]) == len, "as long as before");
        fill(p, len, 1);
        evict(p, len);
    }
    // A stranger: a process without any of our variables, which has the descriptors and knows the name.
    fcntl(fds[0], F_SETFD, 0), fcntl(fds[1], F_SETFD, 0);
    snprintf(number, sizeof number, "%d", fds[0]);
    snprintf(other, sizeof other, "%d", fds[1]);
    pid_t pid = child();
    if (!pid) {
        char *nothing[] = {NULL};
        execle(self_, self_, "stranger", name, number, other, (char *)NULL, nothing);
        _exit(1);
    }
    reap(pid, "a stranger");
    shm_unlink(name);
    printf("ways\n");
}

static void stranger(const char *name, int a, int b) {
    size_t len = 80 * MIB;
    all_ways(a, len);
    all_ways(b, len);
    for (int flags = 0; flags < 2; flags++) {
        int fd = shm_open(name, O_RDWR | (flags ? O_CREAT : 0), 0600);
        if (fd >= 0)
            all_ways(fd, len);
    }
    char path[128];
    snprintf(path, sizeof path, "/dev/shm%s", name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd >= 0)
        all_ways(fd, len);
}

// Many, one after the other: addresses, descriptors and swap come back.
static void many(void) {
    size_t len = 40 * MIB;
    char name[64];
    int first = -1;
    for (int i = 0; i < 20; i++) {
        name_of(name, "d");
        int fd = i % 2 ? shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) : memfd_create("one", 0);
        CHECK(fd >= 0 && ftruncate(fd, len) == 0, "round %d", i);
        CHECK(first < 0 || fd == first, "descriptor %d, not %d", fd, first);
        first = fd;
        char *p = map(fd, len), *q = map(fd, len);
        fill(p, len, i);
        evict(p, len);
        CHECK(munmap(p, len) == 0, "munmap");
        verify(q, len, i, "one of many");
        CHECK(i % 4 < 2 || munmap(q, len) == 0, "munmap, then close");
        CHECK(close(fd) == 0, "close");
        CHECK(i % 2 == 0 || shm_unlink(name) == 0, "shm_unlink");
        if (i % 4 < 2) {
            verify(q, UNIT, i, "only mapped");
            CHECK(munmap(q, len) == 0, "munmap");
        }
    }
    printf("many\n");
}

// A name that is left behind.
static void leave(const char *name) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 80 * MIB) == 0, "shm_open");
    fill(map(fd, 80 * MIB), 80 * MIB, 1);
    printf("leave\n");
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc >= 2, "which part?");
    self_ = argv[0];
    if (!strcmp(argv[1], "workers"))
        workers();
    else if (!strcmp(argv[1], "passed"))
        passed();
    else if (!strcmp(argv[1], "image"))
        image(atoi(argv[2]));
    else if (!strcmp(argv[1], "flying"))
        flying();
    else if (!strcmp(argv[1], "named"))
        named();
    else if (!strcmp(argv[1], "partner"))
        partner(argv[2], atoi(argv[3]));
    else if (!strcmp(argv[1], "ways"))
        ways();
    else if (!strcmp(argv[1], "stranger"))
        stranger(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (!strcmp(argv[1], "many"))
        many();
    else if (!strcmp(argv[1], "leave"))
        leave(argv[2]);
    else
        CHECK(0, "no part %s", argv[1]);
    done();
    return 0;
}
