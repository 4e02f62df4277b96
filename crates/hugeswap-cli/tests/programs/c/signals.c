// Signals of a program that calls the kernel by itself: faults of its own, alternate stacks of every size, masks, and
// timers that interrupt calls on memory that goes out. Prints the same every time.
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#define LEN (64 * MIB)
#define WORD(at) (*(uint64_t *)(memory + (at)))

static sigjmp_buf back;
static volatile sig_atomic_t alarms, stack_seen;
static char large[64 * KIB], small[8 * KIB];
static uint8_t *memory;

static void fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    siglongjmp(back, info->si_code);
}

static void tick(int signal) {
    (void)signal;
    char used[64];
    memset(used, ++alarms, sizeof used);
}

// 1: on the large stack; 2: the kernel says that it is on an alternate one.
static void where(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    stack_t now;
    char here;
    sigaltstack(NULL, &now);
    stack_seen = (&here >= large && &here < large + sizeof large) + 2 * (now.ss_flags == SS_ONSTACK);
}

static void faults(void) {
    struct sigaction a = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER}, now;
    sigaction(SIGSEGV, &a, NULL);
    sigaction(SIGBUS, &a, NULL);
    volatile char *volatile nowhere = (char *)8;
    for (volatile int i = 0; i < 20; i++) {
        int code = sigsetjmp(back, 1);
        if (code == 0)
            *nowhere = 1;
        CHECK(code == SEGV_MAPERR, "code %d of a fault at nothing", code);
    }
    int code = sigsetjmp(back, 1);
    if (code == 0) {
        mprotect(memory, 2 * UNIT, PROT_READ);
        memory[5] = 1;
    }
    CHECK(code == SEGV_ACCERR, "code %d of a write that is not allowed", code);
    mprotect(memory, 2 * UNIT, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, NULL, &now);
    CHECK(now.sa_sigaction == fault && (now.sa_flags & SA_NODEFER), "the action is the program's own");
    puts("faults");
}

static void masks(void) {
    sigset_t all, now;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigprocmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGSEGV) && sigismember(&now, SIGSYS), "blocked, as asked for");
    uint64_t sum = 0;
    for (size_t i = 0; i < LEN; i += PAGE)
        sum += WORD(i);
    printf("with all blocked %llu\n", (unsigned long long)sum);
    sigdelset(&all, SIGALRM);
    alarms = 0;
    ualarm(1000, 0);
    sigsuspend(&all);
    CHECK(alarms == 1, "%d alarms in a wait for one", (int)alarms);
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    puts("masks");
}

static void stacks(void) {
    struct sigaction a = {.sa_sigaction = where, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &a, NULL);
    stack_t now, set = {.ss_sp = large, .ss_size = sizeof large};
    CHECK(sigaltstack(&set, &now) == 0 && now.ss_flags == SS_DISABLE, "none to begin with");
    raise(SIGUSR1);
    CHECK(stack_seen == 3, "%d: not on the large stack", (int)stack_seen);
    set.ss_sp = small, set.ss_size = sizeof small;
    CHECK(sigaltstack(&set, &now) == 0 && now.ss_sp == (void *)large, "the former one is told");
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == (void *)small && now.ss_size == sizeof small, "the small one");
    raise(SIGUSR1);
    CHECK(stack_seen == 2, "%d: not on an alternate stack", (int)stack_seen);
    set.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&set, NULL) == 0 && sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_DISABLE, "none again");
    puts("stacks");
}

static void interruptions(void) {
    struct sigaction a = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &a, NULL);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 40; round++)
        for (size_t i = 0; i < LEN; i += 64 * KIB) {
            CHECK(write(ends[1], memory + i, PAGE) == (ssize_t)PAGE, "write");
            CHECK(read(ends[0], memory + i, PAGE) == (ssize_t)PAGE, "read");
        }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(alarms > 10, "%d alarms", (int)alarms);
    for (size_t i = 0; i < LEN; i += 8)
        CHECK(WORD(i) == i * 31, "a wrong byte at %zu", i);
    puts("interruptions");
}

int main(void) {
    begin();
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    for (size_t i = 0; i < LEN; i += 8)
        WORD(i) = i * 31;
    faults();
    stacks();
    interruptions();
    masks();
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        volatile char *volatile nowhere = (char *)16;
        *nowhere = 1;
        _exit(9);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    printf("ended by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    return 0;
}
