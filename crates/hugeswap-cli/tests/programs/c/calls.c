// System calls on memory that is not there: each buffer is pushed out first, no byte may be lost or wrong.
// calls BALLAST_MIB DIRECTORY
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <wordexp.h>

static char *a, *b; // 8 MiB each
static const size_t N = 8 * MIB;
static char dir[256];

static void out(void) {
    evict(a, N);
    evict(b, N);
}

static uint8_t *read_by_handler;
static volatile int handler_sum;

static void on_usr1(int sig) {
    (void)sig;
    // Every signal is blocked here (sa_mask is full); the memory is absent.
    handler_sum = read_by_handler[0] + read_by_handler[3 * MIB];
    read_by_handler[5 * MIB] = 42;
}

static void on_segv(int sig) {
    (void)sig;
    _exit(7);
}

static void signals(void) {
    sigset_t all, old;
    sigfillset(&all);
    fill(a, N, 1);
    evict(a, N);
    CHECK(sigprocmask(SIG_SETMASK, &all, &old) == 0, "sigprocmask");
    verify(a, N, 1, "with every signal blocked");
    fill(a, N, 2);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &all) == 0, "pthread_sigmask");
    CHECK(sigismember(&all, SIGSEGV) == 1 && sigismember(&all, SIGBUS) == 1 && sigismember(&all, SIGSYS) == 1 &&
              sigismember(&all, SIGKILL) == 0,
          "the mask told is not the mask set");
    CHECK(sigprocmask(SIG_SETMASK, &old, NULL) == 0, "sigprocmask");
    struct sigaction sa = {.sa_handler = on_usr1}, was = {.sa_handler = SIG_IGN};
    sigfillset(&sa.sa_mask);
    CHECK(sigaction(SIGUSR1, &sa, NULL) == 0, "sigaction");
    read_by_handler = (uint8_t *)a;
    int want = read_by_handler[0] + read_by_handler[3 * MIB];
    evict(a, N);
    raise(SIGUSR1);
    CHECK(handler_sum == want && a[5 * MIB] == 42, "in the handler: %d, not %d", handler_sum, want);
    // What the program does with SIGSEGV is told as it was said, and goes on to work.
    CHECK(sigaction(SIGSEGV, NULL, &was) == 0 && was.sa_handler == SIG_DFL, "SIGSEGV is not at its default");
    for (int ignored = 0; ignored < 2; ignored++) {
        struct sigaction mine = {.sa_handler = ignored ? SIG_IGN : on_segv};
        CHECK(sigaction(SIGSEGV, &mine, NULL) == 0 && sigaction(SIGSEGV, NULL, &was) == 0, "sigaction");
        CHECK(was.sa_handler == mine.sa_handler, "another handler than was set");
        evict(a, N);
        fill(a, N, 3);
        verify(a, N, 3, "with a SIGSEGV action of the program's own");
    }
    signal(SIGSEGV, SIG_DFL);
    signal(SIGUSR1, SIG_DFL);
    // Structures of the calls themselves in absent memory.
    struct sigaction *in = (void *)a, *was2 = (void *)b;
    memset(a, 0, sizeof *in);
    in->sa_handler = SIG_IGN;
    out();
    CHECK(sigaction(SIGUSR2, in, was2) == 0 && was2->sa_handler == SIG_DFL, "sigaction in absent memory");
    evict(b, N);
    CHECK(sigaction(SIGUSR2, NULL, was2) == 0 && was2->sa_handler == SIG_IGN, "sigaction into absent memory");
    sigset_t *s = (void *)a, *t = (void *)b;
    sigemptyset(s);
    sigaddset(s, SIGUSR2);
    out();
    CHECK(sigprocmask(SIG_BLOCK, s, t) == 0 && !sigismember(t, SIGUSR2), "sigprocmask in absent memory");
    evict(b, N);
    CHECK(sigprocmask(SIG_UNBLOCK, s, t) == 0 && sigismember(t, SIGUSR2), "sigprocmask into absent memory");
    puts("signals");
}

static void files(int flags) {
    char path[300];
    snprintf(path, sizeof path, "%s/file", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    if (fd < 0 && errno == EINVAL && flags) {
        puts("files"); // No direct I/O on this file system.
        return;
    }
    CHECK(fd >= 0, "open %s", path);
    static const size_t lengths[] = {8 * MIB, 2 * MIB, 64 * KIB, 4 * KIB, 3 * MIB + 4 * KIB};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        size_t n = lengths[k], off = k * 8 * KIB;
        if (off + n > N)
            off = 0;
        fill(a, N, 10 + k);
        memset(b, 0xee, N);
        out();
        CHECK(pwrite(fd, a + off, n, 12 * KIB) == (ssize_t)n, "pwrite of %zu", n);
        evict(b, N);
        CHECK(pread(fd, b + off, n, 12 * KIB) == (ssize_t)n, "pread of %zu", n);
        CHECK(memcmp(a + off, b + off, n) == 0, "bytes read differ from those written");
        CHECK(off == 0 || (uint8_t)b[off - 1] == 0xee, "a byte before the buffer changed");
        CHECK(off + n == N || (uint8_t)b[off + n] == 0xee, "a byte behind the buffer changed");
    }
    // Vectors: absent, present, on the stack (aligned, for direct I/O).
    char stack[2 * 4096 + 4096], *aligned = (char *)(((size_t)stack + 4095) & ~(size_t)4095);
    memset(aligned, 's', 8192);
    fill(a, N, 30);
    struct iovec w[4] = {{a, 2 * MIB}, {aligned, 4096}, {a + 4 * MIB, 4096}, {a + 6 * MIB, 1 * MIB}};
    struct iovec r[3] = {{b, 1 * MIB}, {aligned + 4096, 4096}, {b + 3 * MIB, 2 * MIB + 4096}};
    ssize_t total = 3 * MIB + 2 * 4096;
    memset(b, 0, N);
    out();
    lseek(fd, 0, SEEK_SET);
    CHECK(writev(fd, w, 4) == total, "writev");
    lseek(fd, 0, SEEK_SET);
    evict(b, N);
    CHECK(readv(fd, r, 3) == total, "readv");
    char *flat = malloc(total), *again = malloc(total);
    CHECK(flat && again, "malloc");
    size_t at = 0;
    for (int i = 0; i < 4; i++)
        memcpy(flat + at, w[i].iov_base, w[i].iov_len), at += w[i].iov_len;
    at = 0;
    for (int i = 0; i < 3; i++)
        memcpy(again + at, r[i].iov_base, r[i].iov_len), at += r[i].iov_len;
    CHECK(memcmp(flat, again, total) == 0, "readv got other bytes than writev put");
    out();
    CHECK(pwritev(fd, w, 4, 4096) == total, "pwritev");
    out();
    CHECK(preadv(fd, r, 3, 4096) == total, "preadv");
    at = 0;
    for (int i = 0; i < 3; i++)
        memcpy(again + at, r[i].iov_base, r[i].iov_len), at += r[i].iov_len;
    CHECK(memcmp(flat, again, total) == 0, "preadv got other bytes than pwritev put");
    free(flat), free(again);
    // The vector itself in absent memory.
    struct iovec *v = (void *)a;
    v[0] = (struct iovec){b, 1 * MIB};
    v[1] = (struct iovec){b + 4 * MIB, 1 * MIB};
    out();
    lseek(fd, 0, SEEK_SET);
    CHECK(readv(fd, v, 2) == (ssize_t)(2 * MIB), "readv with an absent vector");
    // Errors are errors, and no bytes are touched.
    errno = 0;
    char *volatile nowhere = (char *)8;
    CHECK(pread(fd, nowhere, 4096, 0) == -1 && errno == EFAULT, "pread to nowhere");
    close(fd);
    unlink(path);
    puts("files");
}

// Memory without access for a while, in memory all the time: the next thing that reads it is a call.
static void reopened(void) {
    char path[300];
    snprintf(path, sizeof path, "%s/reopened", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0, "open %s", path);
    // Of its own: some ways to manage memory give it up when its protection changes.
    char *p = aligned_alloc(UNIT, N);
    CHECK(p, "aligned_alloc");
    fill(p, N, 50);
    for (int access = PROT_READ; access <= (PROT_READ | PROT_WRITE); access += PROT_WRITE) {
        CHECK(mprotect(p, N, PROT_NONE) == 0 && mprotect(p, N, access) == 0, "mprotect");
        CHECK(pwrite(fd, p + 100, 1 * MIB, 0) == 1 * MIB, "pwrite of what has access again");
        CHECK(pread(fd, b, 1 * MIB, 0) == 1 * MIB && memcmp(p + 100, b, 1 * MIB) == 0, "other bytes");
    }
    verify(p, N, 50, "after mprotect");
    free(p);
    CHECK(close(fd) == 0 && unlink(path) == 0, "close and unlink");
    puts("reopened");
}

static void streams(void) {
    char path[300];
    snprintf(path, sizeof path, "%s/stream", dir);
    FILE *f = fopen(path, "w+");
    CHECK(f, "fopen");
    fill(a, N, 40);
    evict(a, N);
    CHECK(fwrite(a, 1, 7 * MIB + 13, f) == 7 * MIB + 13 && fflush(f) == 0, "fwrite");
    rewind(f);
    evict(b, N);
    CHECK(fread(b, 1, 7 * MIB + 13, f) == 7 * MIB + 13, "fread");
    CHECK(memcmp(a, b, 7 * MIB + 13) == 0, "fread got other bytes");
    // A stream's own buffer in managed memory.
    rewind(f);
    CHECK(setvbuf(f, b, _IOFBF, 2 * MIB) == 0, "setvbuf");
    for (int i = 0; i < 7; i++) {
        evict(b, N);
        CHECK(fread(a + i * MIB, 1, MIB, f) == MIB, "fread through absent buffer");
    }
    verify(a, 7 * MIB, 40, "read through an absent buffer");
    fclose(f);
    unlink(path);
    puts("streams");
}

struct transfer {
    int fd;
    char *from;
    size_t n;
};

static void *send_all(void *arg) {
    struct transfer *t = arg;
    for (size_t done = 0; done < t->n;) {
        ssize_t n = send(t->fd, t->from + done, t->n - done, 0);
        if (n < 0 && errno == ENOTSOCK)
            n = write(t->fd, t->from + done, t->n - done);
        CHECK(n > 0, "send");
        done += n;
    }
    return NULL;
}

static void sockets(void) {
    for (int kind = 0; kind < 3; kind++) {
        int s[2];
        if (kind == 0) {
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0, "socketpair");
        } else if (kind == 1) {
            int p[2];
            CHECK(pipe(p) == 0, "pipe");
            s[0] = p[1], s[1] = p[0];
        } else {
            struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            socklen_t len = sizeof in;
            int l = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(l >= 0 && bind(l, (void *)&in, len) == 0 && listen(l, 1) == 0, "listen");
            CHECK(getsockname(l, (void *)&in, &len) == 0, "getsockname");
            s[0] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(connect(s[0], (void *)&in, len) == 0, "connect");
            s[1] = accept(l, NULL, NULL);
            CHECK(s[1] >= 0, "accept");
            close(l);
        }
        fill(a, N, 50 + kind);
        memset(b, 0, N);
        out();
        struct transfer t = {s[0], a, N};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, send_all, &t) == 0, "thread");
        for (size_t done = 0; done < N;) {
            if (done % (3 * MIB) < 64 * KIB)
                evict(b, N);
            ssize_t n = kind == 1 ? read(s[1], b + done, N - done) : recv(s[1], b + done, N - done, 0);
            CHECK(n > 0, "receive, kind %d", kind);
            done += n;
        }
        pthread_join(thread, NULL);
        verify(b, N, 50 + kind, "what was sent through a socket");
        close(s[0]), close(s[1]);
    }
    puts("sockets");
}

// A datagram received into absent memory is not lost: the kernel would drop it on the way.
static void datagrams(void) {
    for (int kind = 0; kind < 2; kind++) {
        int s[2];
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof in;
        if (kind == 0) {
            s[0] = socket(AF_INET, SOCK_DGRAM, 0), s[1] = socket(AF_INET, SOCK_DGRAM, 0);
            CHECK(s[0] >= 0 && s[1] >= 0 && bind(s[1], (void *)&in, len) == 0, "bind");
            CHECK(getsockname(s[1], (void *)&in, &len) == 0 && connect(s[0], (void *)&in, len) == 0, "connect");
        } else {
            CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s) == 0, "socketpair");
        }
        size_t n = 8000;
        for (int way = 0; way < 6; way++) {
            fill(a, n, 60 + way);
            evict(a, N);
            CHECK(send(s[0], a, n, 0) == (ssize_t)n, "send");
            memset(b, 0, N);
            char *to = b + 3 * MIB - 100; // across two pages
            struct sockaddr_in *from = (void *)(b + 6 * MIB);
            socklen_t *from_len = (void *)(b + 7 * MIB);
            *from_len = sizeof *from;
            struct iovec v[2] = {{to, 100}, {to + 100, n - 100}};
            struct msghdr *m = way == 5 ? (void *)(a + MIB) : &(struct msghdr){0};
            *m = (struct msghdr){.msg_iov = v, .msg_iovlen = 2};
            struct mmsghdr mm = {.msg_hdr = *m};
            out();
            ssize_t got;
            switch (way) {
            case 0:
                got = recv(s[1], to, n, 0);
                break;
            case 1:
                got = recvfrom(s[1], to, n, 0, (void *)from, from_len);
                break;
            case 2:
                got = read(s[1], to, n);
                break;
            case 3:
                got = recvmmsg(s[1], &mm, 1, 0, NULL) == 1 ? (ssize_t)mm.msg_len : -1;
                break;
            default:
                got = recvmsg(s[1], m, 0);
            }
            CHECK(got == (ssize_t)n, "datagram, kind %d, way %d: %zd", kind, way, got);
            verify(to, n, 60 + way, "datagram");
            if (kind == 0 && way == 1)
                CHECK(from->sin_family == AF_INET && *from_len == sizeof *from, "sender's address");
        }
        close(s[0]), close(s[1]);
    }
    puts("datagrams");
}

// Calls that consume what they deliver.
static void counts(void) {
    int e = eventfd(0, 0);
    uint64_t *n = (void *)(b + 5 * MIB);
    for (uint64_t i = 1; i <= 3; i++) {
        uint64_t add = i * 1000;
        CHECK(write(e, &add, 8) == 8, "eventfd write");
        evict(b, N);
        CHECK(read(e, n, 8) == 8 && *n == add, "eventfd count");
    }
    uint64_t *more = (void *)a;
    *more = 17;
    out();
    CHECK(write(e, more, 8) == 8, "eventfd write from absent memory");
    evict(b, N);
    CHECK(read(e, n, 8) == 8 && *n == 17, "eventfd count");
    close(e);
    int t = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec *when = (void *)a;
    *when = (struct itimerspec){.it_value.tv_nsec = 1000};
    out();
    CHECK(timerfd_settime(t, 0, when, NULL) == 0 && read(t, n, 8) == 8 && *n == 1, "timerfd");
    close(t);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int s = signalfd(-1, &set, 0);
    struct signalfd_siginfo *info = (void *)(b + MIB);
    raise(SIGUSR1);
    evict(b, N);
    CHECK(read(s, info, sizeof *info) == sizeof *info && info->ssi_signo == SIGUSR1, "signalfd");
    close(s);
    siginfo_t *si = (void *)(b + 2 * MIB);
    raise(SIGUSR1);
    evict(b, N);
    CHECK(sigwaitinfo(&set, si) == SIGUSR1 && si->si_signo == SIGUSR1, "sigwaitinfo");
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    int *status = (void *)(b + 3 * MIB);
    struct rusage *usage = (void *)(b + 4 * MIB);
    for (int way = 0; way < 3; way++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(30 + way);
        CHECK(pid > 0, "fork");
        *status = -1;
        memset(usage, 0xff, sizeof *usage);
        evict(b, N);
        if (way == 2) {
            CHECK(waitid(P_PID, pid, si, WEXITED) == 0 && si->si_status == 30 + way, "waitid");
            continue;
        }
        pid_t got = way == 0 ? waitpid(pid, status, 0) : wait4(pid, status, 0, usage);
        CHECK(got == pid && WIFEXITED(*status) && WEXITSTATUS(*status) == 30 + way, "wait: status %#x", *status);
        CHECK(way == 0 || usage->ru_utime.tv_usec >= 0, "rusage");
    }
    puts("counts");
}

// The C library starts programs with an environment that is not in memory.
static void environment(void) {
    extern char **environ;
    char **before = environ, **list = (void *)(a + 5 * MIB - 16), *variable = b + 7 * MIB - 3, text[8] = "";
    size_t n = 0;
    for (; before[n]; n++)
        list[n] = before[n];
    strcpy(variable, "AWAY=yes");
    list[n] = variable, list[n + 1] = NULL;
    environ = list;
    out();
    CHECK(system("test $AWAY = yes") == 0, "system");
    out();
    FILE *f = popen("echo $AWAY", "r");
    CHECK(f && fgets(text, sizeof text, f) && strcmp(text, "yes\n") == 0 && pclose(f) == 0, "popen: %s", text);
    out();
    wordexp_t words;
    CHECK(wordexp("$(echo $AWAY) $AWAY", &words, 0) == 0 && words.we_wordc == 2, "wordexp");
    CHECK(strcmp(words.we_wordv[0], "yes") == 0 && strcmp(words.we_wordv[1], "yes") == 0, "wordexp: %s", words.we_wordv[0]);
    wordfree(&words);
    out();
    pid_t pid;
    int status;
    CHECK(posix_spawnp(&pid, "sh", NULL, NULL, (char *[]){"sh", "-c", "test $AWAY = yes", NULL}, environ) == 0, "posix_spawnp");
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "posix_spawnp: %#x", status);
    environ = before;
}

// Many small structures, each in absent memory of its own.
static void small(void) {
    int p[2];
    CHECK(pipe(p) == 0 && write(p[1], "x", 1) == 1, "pipe");
    struct pollfd *f = (void *)a;
    *f = (struct pollfd){.fd = p[0], .events = POLLIN};
    out();
    CHECK(poll(f, 1, -1) == 1 && f->revents == POLLIN, "poll");
    out();
    CHECK(ppoll(f, 1, NULL, NULL) == 1, "ppoll");
    fd_set *r = (void *)(a + MIB);
    FD_ZERO(r);
    FD_SET(p[0], r);
    struct timeval *tv = (void *)(b + 7 * MIB);
    *tv = (struct timeval){10, 0};
    out();
    CHECK(select(p[0] + 1, r, NULL, NULL, tv) == 1 && FD_ISSET(p[0], r), "select");
    struct epoll_event *ev = (void *)(b + MIB);
    int ep = epoll_create1(0);
    *ev = (struct epoll_event){.events = EPOLLIN, .data.u64 = 99};
    out();
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], ev) == 0, "epoll_ctl");
    ev->data.u64 = 0;
    out();
    CHECK(epoll_wait(ep, ev, 4, -1) == 1 && ev->data.u64 == 99, "epoll_wait");
    close(ep), close(p[0]), close(p[1]);

    char *path = a + 2 * MIB - 5, *text = b + 2 * MIB - 3; // across units
    struct stat *st = (void *)(b + 4 * MIB);
    CHECK((size_t)snprintf(path, 300, "%s", dir) < 300, "path");
    out();
    CHECK(stat(path, st) == 0 && S_ISDIR(st->st_mode), "stat");
    out();
    CHECK(access(path, R_OK) == 0, "access");
    out();
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && fchdir(fd) == 0, "open");
    out();
    CHECK(fstat(fd, st) == 0 && S_ISDIR(st->st_mode), "fstat");
    close(fd);
    out();
    CHECK(getcwd(text, 300) == text && strcmp(text, dir) == 0, "getcwd: %s", text);
    CHECK(symlink("somewhere/else", "link") == 0, "symlink");
    strcpy(path, "link");
    out();
    CHECK(readlink(path, text, 100) == 14 && memcmp(text, "somewhere/else", 14) == 0, "readlink");
    out();
    CHECK(rename(path, strcpy(a, "link2")) == 0 && unlink(a) == 0, "rename");
    memset(b, 0, 64);
    evict(b, N);
    CHECK(getrandom(b, 64, 0) == 64, "getrandom");
    struct timespec *ts = (void *)a, *rem = (void *)b;
    *ts = (struct timespec){0, 1000};
    out();
    CHECK(nanosleep(ts, rem) == 0, "nanosleep");
    out();
    CHECK(clock_gettime(CLOCK_MONOTONIC, ts) == 0 && syscall(SYS_clock_gettime, CLOCK_MONOTONIC, rem) == 0, "clock");
    CHECK(rem->tv_sec >= ts->tv_sec, "clocks");
    struct rlimit *rl = (void *)b;
    evict(b, N);
    CHECK(getrlimit(RLIMIT_NOFILE, rl) == 0 && rl->rlim_cur > 0, "getrlimit");
    int *pair = (void *)(b + 6 * MIB);
    evict(b, N);
    CHECK(pipe(pair) == 0, "pipe");
    close(pair[0]), close(pair[1]);
    // Past the wrappers: the generic entry, and the bare instruction.
    int e = eventfd(0, 0);
    uint64_t add = 5, *n = (void *)(b + 5 * MIB);
    CHECK(write(e, &add, 8) == 8, "eventfd write");
    evict(b, N);
    CHECK(syscall(SYS_read, e, n, 8) == 8 && *n == 5, "syscall(read)");
    CHECK(write(e, &add, 8) == 8, "eventfd write");
    evict(b, N);
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(SYS_read), "D"((long)e), "S"(n), "d"(8L) : "rcx", "r11", "memory");
    CHECK(ret == 8 && *n == 5, "a bare system call: %ld", ret);
    close(e);
    // Arguments and environment of a new program.
    char **argv = (void *)a, *word = b;
    strcpy(word, "exec'd with absent arguments");
    argv[0] = "echo", argv[1] = word, argv[2] = NULL;
    for (int way = 0; way < 3; way++) {
        pid_t pid;
        int status;
        out();
        if (way == 0) {
            pid = fork();
            if (pid == 0) {
                execvp("echo", argv);
                _exit(9);
            }
        } else if (way == 1) {
            pid = vfork();
            if (pid == 0) {
                execvp("echo", argv);
                _exit(9);
            }
        } else {
            extern char **environ;
            CHECK(posix_spawnp(&pid, "echo", NULL, NULL, argv, environ) == 0, "posix_spawnp");
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "exec, way %d: %#x", way, status);
    }
    strcpy(word, "echo by the shell");
    out();
    CHECK(system(word) == 0, "system");
    environment();
    puts("small");
}

static _Atomic int *turn;
static pthread_mutex_t *mutex;
static pthread_cond_t *cond;

static void *other(void *arg) {
    (void)arg;
    for (int i = 0; i < 50; i++) {
        pthread_mutex_lock(mutex);
        while (*turn != 1)
            pthread_cond_wait(cond, mutex);
        *turn = 0;
        pthread_cond_signal(cond);
        pthread_mutex_unlock(mutex);
        if (i % 10 == 0)
            evict(a, N);
    }
    return NULL;
}

// Locks and conditions that live in memory that goes out while threads sleep on them.
static void locks(void) {
    mutex = (void *)a, cond = (void *)(a + 3 * MIB), turn = (void *)(a + 5 * MIB);
    memset(a, 0, N);
    pthread_mutex_init(mutex, NULL);
    pthread_cond_init(cond, NULL);
    pthread_t t;
    CHECK(pthread_create(&t, NULL, other, NULL) == 0, "thread");
    for (int i = 0; i < 50; i++) {
        pthread_mutex_lock(mutex);
        while (*turn != 0)
            pthread_cond_wait(cond, mutex);
        *turn = 1;
        pthread_cond_signal(cond);
        pthread_mutex_unlock(mutex);
    }
    pthread_join(t, NULL);
    puts("locks");
}

// A futex call as the C library makes it for itself, or by its function.
static int futex(int bare, uint32_t *word, int op, uintptr_t value, uintptr_t more, uint32_t *word2, uintptr_t value3) {
    if (!bare)
        return syscall(SYS_futex, word, op, value, more, word2, value3) < 0 ? -errno : 0;
    long r;
    register uintptr_t r10 __asm__("r10") = more, r8 __asm__("r8") = (uintptr_t)word2, r9 __asm__("r9") = value3;
    __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_futex), "D"(word), "S"(op), "d"(value), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r < 0 ? (int)r : 0;
}

// Words of futexes that nobody has touched since they went out: the kernel finds them. (With WORDS_NOT_CHANGED in the
// environment it is not asked to change one: with userfaultfd it does not wait for these.)
static void words(void) {
    const int not_changed = getenv("WORDS_NOT_CHANGED") != NULL;
    uint32_t *word = (void *)(a + MIB), *word2 = (void *)(a + 4 * MIB + 12);
    const int plus_one = FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0);
    struct timespec no_time = {0, 0};
    for (int bare = 0; bare < 2; bare++)
        for (int flag = 0; flag <= FUTEX_PRIVATE_FLAG; flag += FUTEX_PRIVATE_FLAG)
            for (int call = 0; call < 8; call++) {
                if (not_changed && call >= 4 && call <= 6)
                    continue;
                memset(a, 0, N);
                evict(a, N);
                int r = 1;
                switch (call) {
                case 0: r = futex(bare, word, FUTEX_WAIT | flag, 5, 0, NULL, 0); break;
                case 1: r = futex(bare, word, FUTEX_WAIT_BITSET | flag, 5, 0, NULL, 1); break;
                case 2: r = futex(bare, word, FUTEX_WAIT | flag, 0, (uintptr_t)&no_time, NULL, 0); break;
                case 3: r = futex(bare, word, FUTEX_CMP_REQUEUE | flag, 1, 1, word2, 5); break;
                case 4: r = futex(bare, word, FUTEX_WAKE_OP | flag, 1, 1, word2, plus_one); break;
                case 5: r = futex(bare, word, FUTEX_LOCK_PI | flag, 0, 0, NULL, 0); break;
                case 6: r = futex(bare, word, FUTEX_TRYLOCK_PI | flag, 0, 0, NULL, 0); break;
                case 7: r = futex(bare, word, FUTEX_WAKE | flag, 1, 0, NULL, 0); break;
                }
                CHECK(call < 5 || call > 6 || *word == (uint32_t)gettid(), "call %d: the word is %#x", call, *word);
                printf("futex %d: %d, %u\n", call, r, *word2);
            }
    // Words that may be read only: to wait is allowed, to change them is not.
    memset(a, 0, N);
    CHECK(mprotect(a, N, PROT_READ) == 0, "mprotect");
    evict(a, N);
    for (int bare = 0; bare < 2; bare++) {
        int waited = futex(bare, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 5, 0, NULL, 0);
        int changed = futex(bare, word, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 1, 1, word2, plus_one);
        printf("futex of what is read-only: %d, %d\n", waited, changed);
    }
    CHECK(mprotect(a, N, PROT_READ | PROT_WRITE) == 0, "mprotect");
    puts("words");
}

// Programs close what they do not know; memory goes on.
static void descriptors(void) {
    fill(a, N, 80), fill(b, N, 81);
    out();
    closefrom(3);
    verify(a, N, 80, "after closefrom");
    fill(a, N, 82);
    out();
    verify(a, N, 82, "written after closefrom"), verify(b, N, 81, "after closefrom");
    long max = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < max && fd < 65536; fd++)
        close(fd);
    for (long fd = max - 64; fd < max; fd++)
        dup2(0, fd);
    fill(b, N, 83);
    out();
    verify(a, N, 82, "after every close"), verify(b, N, 83, "after every close");
    CHECK(close_range(3, ~0u, 0) == 0, "close_range");
    out();
    verify(a, N, 82, "after close_range"), verify(b, N, 83, "after close_range");
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd == 3, "the first free descriptor is %d, not 3", fd);
    puts("descriptors");
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 3, "two arguments");
    CHECK(realpath(argv[2], dir), "realpath");
    ballast(strtoul(argv[1], 0, 0) * MIB);
    a = aligned_alloc(UNIT, N), b = aligned_alloc(PAGE, N);
    CHECK(a && b, "aligned_alloc");
    fill(a, N, 0), fill(b, N, 0);
    signals();
    files(0);
    files(O_DIRECT);
    reopened();
    streams();
    sockets();
    datagrams();
    counts();
    small();
    locks();
    words();
    descriptors();
    done();
    return 0;
}
