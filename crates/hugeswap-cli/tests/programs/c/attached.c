// Memory, threads and signals that a program has when it is attached, and what it does with them then. It says
// "ready", reads a line, works, says "half", reads a line, and works again. A second argument: it may be stopped
// by signals.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))
#define MIB (1ul << 20)

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s (errno %d)\n", line, what, errno);
    _exit(1);
}

static uint64_t *words;
static size_t count;
static volatile sig_atomic_t signals, on_own_stack, over;
static char own_stack[64 << 10];
static int pipes[2];
static volatile int beats;
static int told, is_stopped;

static uint64_t value(size_t i) { return i * 0x9e3779b97f4a7c15u; }

static void check_words(size_t step) {
    for (size_t i = 0; i < count; i += step)
        if (words[i] != value(i))
            fail("a word", (int)i);
}

// Masks everything; runs on the alternate stack of its thread, if that has one.
static void on_signal(int number) {
    char here;
    (void)number;
    signals++;
    if (&here >= own_stack && &here < own_stack + sizeof own_stack)
        on_own_stack++;
    words[0] = value(0);
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    // A page without access, of the program's own making.
    void *page = (void *)((uintptr_t)info->si_addr & ~4095ul);
    if (mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0)
        _exit(3);
    signals++;
}

// Waits in a read into memory that is taken over meanwhile.
static void *reads(void *to) {
    size_t got = 0;
    while (got < MIB) {
        ssize_t n = read(pipes[0], (char *)to + got, MIB - got);
        CHECK(n > 0);
        got += (size_t)n;
    }
    return to;
}

// Memory of the program's own that is a file as soon as hugeswap is there, before it is taken over: the largest
// memory is taken over first.
enum { CHANGED = 4 << 20 };
static volatile char *changed, *file;
static volatile int is_there, works, is_changed;

// Is there a thread of hugeswap's in this process?
static int is_attached(void) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    int found = 0;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char name[300], said[16] = "";
        snprintf(name, sizeof name, "/proc/self/task/%s/comm", task->d_name);
        int fd = open(name, O_RDONLY);
        if (fd >= 0) {
            found |= read(fd, said, sizeof said) > 0 && strncmp(said, "hs-", 3) == 0;
            close(fd);
        }
    }
    closedir(tasks);
    return found;
}

static void *changes(void *nothing) {
    // By itself: its neighbours are without access.
    char *at = mmap(NULL, CHANGED + 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    at += 4096 + (-(uintptr_t)(at + 4096) & (2 * MIB - 1));
    CHECK(mprotect(at, CHANGED, PROT_READ | PROT_WRITE) == 0);
    memset(at, 7, CHANGED);
    changed = at;
    int fd = memfd_create("attached", 0);
    CHECK(fd >= 0 && ftruncate(fd, CHANGED) == 0);
    file = mmap(NULL, CHANGED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED);
    is_there = 1;
    while (!works && !is_attached()) {
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
    CHECK(mmap(at, CHANGED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    is_changed = 1;
    return nothing;
}

// It is the file still.
static void check_changed(char round) {
    for (size_t i = 0; i < CHANGED; i += 4096) {
        changed[i] = (char)(i / 4096 + round);
        CHECK(file[i] == (char)(i / 4096 + round));
    }
}

// Waits in a call that fails where it was interrupted, whether or not there was a signal.
static void *waits(void *nothing) {
    struct epoll_event event = {.events = EPOLLIN};
    // (A child's end interrupts it, too, where the other threads have that blocked.)
    sigset_t of_child;
    sigemptyset(&of_child);
    sigaddset(&of_child, SIGCHLD);
    CHECK(pthread_sigmask(SIG_BLOCK, &of_child, NULL) == 0);
    int all = epoll_create1(0);
    CHECK(all >= 0 && epoll_ctl(all, EPOLL_CTL_ADD, told, &event) == 0);
    int got;
    while ((got = epoll_wait(all, &event, 1, -1)) < 0 && errno == EINTR && is_stopped)
        ;
    CHECK(got == 1);
    return nothing;
}

static void *ends(void *beat) { return beat; }

// Sleeps, waits, asks, makes threads and forks all the time.
static void *beats_on(void *nothing) {
    size_t there = 50 * MIB / 8;
    while (!over) {
        struct timespec pause = {0, 2000000};
        CHECK(nanosleep(&pause, NULL) == 0);
        CHECK(poll(NULL, 0, 1) == 0);
        CHECK(getppid() > 0);
        pthread_t made;
        void *same = NULL;
        CHECK(pthread_create(&made, NULL, ends, &same) == 0);
        CHECK(pthread_join(made, &same) == 0 && same == &same);
        pid_t child = beats % 4 ? -1 : fork();
        if (child == 0)
            _exit(words[there + beats] == value(there + beats) ? 5 : 6);
        int status;
        if (child > 0)
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
        beats++;
    }
    return nothing;
}

static void *checks(void *part) {
    for (size_t i = (size_t)part; i < count; i += 8 * 512)
        CHECK(words[i] == value(i));
    return part;
}

// What a child that has its parent's memory executes is named in memory that may be in swap.
static struct executed {
    char path[16], arguments[3][16], variable[16];
    char *list[4], *environment[2];
} *executed;

static void make_executed(void) {
    executed = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(executed != MAP_FAILED);
    // (The middle of it is in a whole unit.)
    executed = (struct executed *)((char *)executed + 2 * MIB);
    strcpy(executed->path, "/bin/sh");
    strcpy(executed->arguments[0], "sh");
    strcpy(executed->arguments[1], "-c");
    strcpy(executed->arguments[2], "exit $STATUS");
    strcpy(executed->variable, "STATUS=33");
    for (int i = 0; i < 3; i++)
        executed->list[i] = executed->arguments[i];
    executed->environment[0] = executed->variable;
}

static pid_t spawned(void) {
    pid_t child = -1;
    CHECK(posix_spawn(&child, executed->path, NULL, NULL, executed->list, executed->environment) == 0);
    return child;
}

static pid_t vforked(void) {
    pid_t child = vfork();
    if (child == 0) {
        execve(executed->path, executed->list, executed->environment);
        _exit(errno);
    }
    return child;
}

static void check_executed(pid_t (*start)(void)) {
    madvise(executed, 4096, MADV_PAGEOUT);
    pid_t child = start();
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 33);
}

static void wait_for_line(const char *said) {
    char line[16];
    puts(said);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static void work(void) {
    works = 1;
    while (!is_changed)
        sched_yield();
    check_changed(1);
    // Threads that are made now.
    pthread_t made[8];
    for (size_t i = 0; i < 8; i++)
        CHECK(pthread_create(&made[i], NULL, checks, (void *)(i * 512)) == 0);
    for (size_t i = 0; i < 8; i++)
        CHECK(pthread_join(made[i], NULL) == 0);
    check_words(1);

    // Signals with handlers from before.
    int before = signals, before_on_stack = on_own_stack;
    for (int i = 0; i < 100; i++)
        CHECK(raise(SIGUSR1) == 0);
    CHECK(signals == before + 100 && on_own_stack == before_on_stack + 100);
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0);
    CHECK(stack.ss_sp == own_stack && stack.ss_size == sizeof own_stack);
    sigset_t all, now;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    CHECK(sigismember(&now, SIGSEGV) == 1 && sigismember(&now, SIGUSR2) == 1);
    check_words(997);
    sigemptyset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    struct sigaction action;
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0);
    CHECK(action.sa_handler == on_signal && sigismember(&action.sa_mask, SIGSEGV) == 1);
    CHECK(sigaction(SIGSEGV, NULL, &action) == 0 && action.sa_sigaction == on_fault);

    // Access, contents and addresses of what was there before.
    volatile char *page = (char *)words + 33 * MIB;
    before = signals;
    CHECK(mprotect((void *)page, 4096, PROT_NONE) == 0);
    page[5]++;
    page[5]--;
    CHECK(signals == before + 1);
    char *gone = (char *)words + 40 * MIB;
    CHECK(madvise(gone, 4 * MIB, MADV_DONTNEED) == 0);
    for (size_t i = 0; i < 4 * MIB; i += 4096)
        CHECK(gone[i] == 0);
    for (size_t i = 0; i < 4 * MIB / 8; i++)
        ((uint64_t *)gone)[i] = value(5 * MIB + i);
    CHECK(munmap(gone, 4 * MIB) == 0);
    CHECK(mmap(gone, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == gone);
    for (size_t i = 0; i < 4 * MIB / 8; i++)
        ((uint64_t *)gone)[i] = value(5 * MIB + i);

    // Files, by way of the kernel.
    char name[] = "/var/tmp/hugeswap-attached-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    CHECK(write(fd, words, 24 * MIB) == (ssize_t)(24 * MIB));
    memset(words, 0, 24 * MIB);
    CHECK(pread(fd, words, 24 * MIB, 0) == (ssize_t)(24 * MIB));
    CHECK(close(fd) == 0);
    check_words(1);

    // Children, and what they execute.
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check_words(7);
        words[1] = 0;
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(system("test \"$(echo hello | tr a-z A-Z)\" = HELLO") == 0);
    check_executed(spawned);
    check_executed(vforked);
    check_words(1);

    check_changed(2);

    // New memory.
    char *more = malloc(16 * MIB);
    CHECK(more != NULL);
    memset(more, 1, 16 * MIB);
    free(more);
}

int main(int argc, char **argv) {
    size_t len = (size_t)atoi(argc > 1 ? argv[1] : "96") * MIB;
    count = len / 8;
    make_executed();
    is_stopped = argc > 2;
    words = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(words != MAP_FAILED);
    for (size_t i = 0; i < count; i++)
        words[i] = value(i);
    stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    action = (struct sigaction){.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    CHECK(pipe(pipes) == 0);
    char *target = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(target != MAP_FAILED);
    memset(target, 1, 4 * MIB);
    pthread_t reader, beater, changer, waiter;
    told = eventfd(0, 0);
    CHECK(told >= 0 && pthread_create(&waiter, NULL, waits, NULL) == 0);
    CHECK(pthread_create(&changer, NULL, changes, NULL) == 0);
    while (!is_there)
        sched_yield();
    CHECK(pthread_create(&reader, NULL, reads, target + MIB) == 0);
    CHECK(pthread_create(&beater, NULL, beats_on, NULL) == 0);
    wait_for_line("ready");
    int heard = beats;
    work();
    char *bytes = malloc(MIB);
    CHECK(bytes != NULL);
    memset(bytes, 42, MIB);
    for (size_t sent = 0; sent < MIB;) {
        ssize_t n = write(pipes[1], bytes + sent, MIB - sent);
        CHECK(n > 0);
        sent += (size_t)n;
    }
    CHECK(pthread_join(reader, NULL) == 0);
    for (size_t i = 0; i < MIB; i++)
        CHECK(target[MIB + i] == 42);
    wait_for_line("half");
    work();
    while (beats < heard + 20) {
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
    over = 1;
    CHECK(pthread_join(beater, NULL) == 0);
    CHECK(eventfd_write(told, 1) == 0 && pthread_join(waiter, NULL) == 0);
    puts("end");
    return 0;
}
