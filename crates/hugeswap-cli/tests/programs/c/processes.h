// Children of test programs.
#ifndef PROCESSES_H
#define PROCESSES_H
#include "common.h"
#include <sys/wait.h>

static inline pid_t child(void) {
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    return pid;
}

static inline void reap(pid_t pid, const char *who) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with %#x", who, status);
}

#endif
