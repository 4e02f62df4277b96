// Forks workers that each map memory of their own, fill it and verify it in rounds; one budget for all.
// workers WORKERS MIB ROUNDS   (0 rounds: for ever)
#include "common.h"
#include <sys/wait.h>

static int work(int me, size_t len, size_t rounds) {
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    verify_zero(p, len, "fresh mapping");
    fill(p, len, me);
    for (size_t r = 0; !rounds || r < rounds; r++) {
        verify(p, len, me + 10 * r, "worker's memory");
        fill(p, len, me + 10 * (r + 1));
        if (!rounds && r == 0) {
            puts("turning");
        }
    }
    uint64_t s = sum(p, len);
    CHECK(munmap(p, len) == 0, "munmap");
    return (int)(s % 97) + 1;
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 4, "three arguments");
    int workers = atoi(argv[1]);
    size_t len = strtoul(argv[2], 0, 0) * MIB, rounds = strtoul(argv[3], 0, 0);
    pid_t pid[64];
    for (int i = 0; i < workers; i++) {
        pid[i] = fork();
        CHECK(pid[i] >= 0, "fork");
        if (pid[i] == 0)
            _exit(work(i + 1, len, rounds));
    }
    for (int i = 0; i < workers; i++) {
        int status = 0;
        CHECK(waitpid(pid[i], &status, 0) == pid[i], "wait");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) > 1, "worker %d ended with %#x", i, status);
        printf("worker %d: %d\n", i, WEXITSTATUS(status));
    }
    return 0;
}
