// Runs a program as a default container profile would let it: an ordinary user, no new privileges, and a
// filter that refuses userfaultfd, io_uring and what else such profiles refuse. Raw BPF, no library.
// sandbox [-t] PROGRAM ARGUMENTS...          -t: it may trace others, as newer profiles permit
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOBODY = 65534 };

// No system call has this number.
#define NONE 0xffffff

#define REFUSE(nr, error)                                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))

static int fail(const char *what) {
    perror(what);
    return 99;
}

int main(int argc, char **argv) {
    int traces = argc > 1 && strcmp(argv[1], "-t") == 0;
    argc -= traces;
    argv += traces;
    if (argc < 2)
        return 99;
    if (getuid() == 0 && (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)))
        return fail("cannot become an ordinary user");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return fail("PR_SET_NO_NEW_PRIVS");
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(SYS_userfaultfd, EPERM),
        REFUSE(SYS_io_uring_setup, EPERM),
        REFUSE(SYS_io_uring_enter, EPERM),
        REFUSE(SYS_io_uring_register, EPERM),
        REFUSE(SYS_unshare, EPERM),
        REFUSE(SYS_setns, EPERM),
        REFUSE(SYS_mount, EPERM),
        REFUSE(SYS_umount2, EPERM),
        REFUSE(SYS_pivot_root, EPERM),
        REFUSE(SYS_bpf, EPERM),
        REFUSE(SYS_perf_event_open, EPERM),
        REFUSE(traces ? NONE : SYS_ptrace, EPERM),
        REFUSE(SYS_process_vm_readv, EPERM),
        REFUSE(SYS_process_vm_writev, EPERM),
        REFUSE(SYS_kcmp, EPERM),
        REFUSE(SYS_keyctl, EPERM),
        REFUSE(SYS_add_key, EPERM),
        REFUSE(SYS_mbind, EPERM),
        REFUSE(SYS_move_pages, EPERM),
        REFUSE(SYS_swapon, EPERM),
        REFUSE(SYS_clone3, ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        return fail("PR_SET_SECCOMP");
    // It must really be refused here, or the test would prove nothing.
    if (syscall(SYS_userfaultfd, 1) != -1 || errno != EPERM || syscall(SYS_io_uring_setup, 4, NULL) != -1 ||
        errno != EPERM)
        return fail("the filter does not hold");
    execv(argv[1], argv + 1);
    return fail(argv[1]);
}
