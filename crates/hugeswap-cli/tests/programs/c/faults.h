// Faults that a program expects: `on_fault` handles SIGSEGV and SIGBUS, and goes on at `out` while one is `expected`.
#ifndef FAULTS_H
#define FAULTS_H
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static __thread sigjmp_buf out;
static __thread volatile int expected, code;

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (!expected) {
        char line[96];
        int n = snprintf(line, sizeof line, "signal %d, code %d, at %p\n", sig, info->si_code, info->si_addr);
        if (write(2, line, n) != n)
            _exit(3);
        signal(sig, SIG_DFL);
        return;
    }
    code = sig == SIGSEGV ? info->si_code : -sig;
    siglongjmp(out, 1);
}

// The code of the SIGSEGV that a touch raises; 0: none; less than 0: another signal.
static inline int touch(volatile char *at) {
    code = 0;
    expected = 1;
    if (!sigsetjmp(out, 1))
        (void)*at;
    expected = 0;
    return code;
}

// The same of a write, which leaves what is there.
static inline int touch_to_write(volatile char *at) {
    code = 0;
    expected = 1;
    if (!sigsetjmp(out, 1))
        __atomic_fetch_or(at, 0, __ATOMIC_RELAXED);
    expected = 0;
    return code;
}

#endif
