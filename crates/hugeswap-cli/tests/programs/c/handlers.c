// Handlers of SIGSEGV that are not for the alternate stack, of a thread that has one, small as many are: they run on
// the stack that was interrupted, with all its room, and what they interrupted goes on as it was.
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

// The kernel's frame takes 3 to 11 KiB of it.
#define ALTERNATE (16 * KIB)
#define STACK (32 * MIB)

static char alternate[ALTERNATE];
static char *page, *stack;
static sigjmp_buf back;
static volatile int ran, deepest;

static int is_alternate(const void *p) {
    return (const char *)p >= alternate && (const char *)p < alternate + sizeof alternate;
}

// Uses much of its stack, and all that a frame keeps of the floating-point unit.
static double deep(int left) {
    volatile char much[2 * KIB];
    much[left] = left & 1;
    return left == 0 ? 1.0 : deep(left - 1) / 3.0 + much[left];
}

static void allow(int signal, siginfo_t *info, void *context) {
    (void)context;
    stack_t now;
    char here;
    CHECK(!is_alternate(&here) && sigaltstack(NULL, &now) == 0 && now.ss_flags == 0, "it is the alternate stack");
    CHECK(signal == SIGSEGV && info->si_code == SEGV_ACCERR && info->si_addr == page, "another fault");
    CHECK(((uintptr_t)__builtin_frame_address(0) & 15) == 0, "a stack that no compiler expects");
    // (Nothing of what was interrupted may be in the registers that a handler begins with.)
    CHECK(deep(200) > 0, "a number");
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
    ran++;
}

static void set(void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(SIGSEGV, &a, NULL) == 0, "sigaction");
}

// A fault in the middle of something, whose registers, flags and red zone are as they were.
static void interrupted(void) {
    CHECK(mprotect(page, PAGE, PROT_NONE) == 0, "mprotect");
    uint64_t r12, r15, red, carry, x, y;
    asm volatile("mov $0x1234567890abcdef, %%r12\n\t"
                 "mov $77, %%r15\n\t"
                 "movq %%r12, %%xmm3\n\t"
                 "movq %%r15, %%xmm15\n\t"
                 "mov %%r12, -120(%%rsp)\n\t"
                 "stc\n\t"
                 "movb $9, (%6)\n\t"
                 "setc %%al\n\t"
                 "movzbq %%al, %3\n\t"
                 "mov -120(%%rsp), %2\n\t"
                 "mov %%r12, %0\n\t"
                 "mov %%r15, %1\n\t"
                 "movq %%xmm3, %4\n\t"
                 "movq %%xmm15, %5"
                 : "=&r"(r12), "=&r"(r15), "=&r"(red), "=&r"(carry), "=&r"(x), "=&r"(y)
                 : "r"(page)
                 : "r12", "r15", "xmm3", "xmm15", "rax", "cc", "memory");
    CHECK(r12 == 0x1234567890abcdef && r15 == 77 && x == r12 && y == 77, "registers");
    CHECK(red == r12 && carry == 1, "%#lx below the stack pointer, carry %lu", (unsigned long)red, (unsigned long)carry);
    CHECK(*page == 9, "the write");
}

static void leave(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    char here;
    CHECK(!is_alternate(&here), "it is the alternate stack");
    siglongjmp(back, 1);
}

// A handler that is left by a jump, more often than there is room for frames that nobody takes away.
static void left(void) {
    CHECK(mprotect(page, PAGE, PROT_NONE) == 0, "mprotect");
    for (volatile int i = 0; i < 20000; i++)
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)page = 1;
            CHECK(0, "no fault");
        }
    sigset_t now;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && !sigismember(&now, SIGSEGV), "the mask");
}

// Calls `f` on the stack that ends at `top`.
static void call_on(char *top, void (*f)(void)) {
    asm volatile("mov %%rsp, %%rbx\n\t"
                 "mov %0, %%rsp\n\t"
                 "call *%1\n\t"
                 "mov %%rbx, %%rsp"
                 :
                 : "r"(top), "r"(f)
                 : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory", "xmm0", "xmm1",
                   "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                   "xmm14", "xmm15");
}

// The stack that was interrupted is managed memory, of which the part is absent that the handler needs: the code that
// faults is at the beginning of a unit.
static void managed(void) {
    char *unit = (char *)(((uintptr_t)stack + STACK / 2) & ~(UNIT - 1));
    for (int round = 0; round < 20; round++) {
        memset(stack, round, STACK);
        evict(stack, STACK);
        call_on(unit + KIB, interrupted);
    }
}

static void fail(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    // (What is shared with the parent.)
    ((volatile int *)page)[1]++;
    *(volatile char *)16 = 1;
}

static int overflow(int n) {
    volatile char much[KIB];
    much[0] = (char)n;
    return n < 0 ? 0 : overflow(n + 1) + much[0];
}

static int of_child(void (*handler)(int, siginfo_t *, void *), int overflows) {
    pid_t child = fork();
    if (child == 0) {
        set(handler, 0);
        if (overflows)
            _exit(overflow(0));
        *(volatile char *)16 = 1;
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status), "a child that fails");
    return WTERMSIG(status);
}

int main(void) {
    begin();
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && page != MAP_FAILED, "mmap");
    stack_t own = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(sigaltstack(&own, NULL) == 0, "sigaltstack");
    set(allow, 0);
    for (int i = 0; i < 1000; i++)
        interrupted();
    printf("interrupted %d\n", ran);
    managed();
    printf("managed %d\n", ran);
    set(leave, 0);
    left();
    puts("left");
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
    ((volatile int *)page)[1] = 0;
    printf("a handler that fails: signal %d\n", of_child(fail, 0));
    int times = ((volatile int *)page)[1];
    CHECK(times >= 1 && times <= 5, "it ran %d times", times);
    printf("a stack that is full: signal %d\n", of_child(fail, 1));
    CHECK(((volatile int *)page)[1] == times, "a handler that there is no room for");
    return 0;
}
