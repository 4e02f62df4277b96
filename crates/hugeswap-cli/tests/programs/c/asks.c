// Forks while other threads ask what is mapped and what signals do: a child asks the same, and gets an answer.
// asks MIB FORKS
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static char *memory;
static size_t size;
static atomic_int over;

static void ask(void) {
    struct sigaction now;
    for (int i = 0; i < 100; i++) {
        CHECK(sigaction(SIGSEGV, NULL, &now) == 0, "sigaction");
        CHECK(sigaction(SIGSYS, NULL, &now) == 0, "sigaction");
        // (As long as it is.)
        CHECK(mremap(memory, size, size, 0) == memory, "mremap");
    }
}

static void *asker(void *unused) {
    while (!over)
        ask();
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "two arguments");
    size = strtoul(argv[1], 0, 0) * MIB;
    unsigned forks = strtoul(argv[2], 0, 0);
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    fill(memory, size, 1);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(threads + i, NULL, asker, NULL) == 0, "pthread_create");
    for (unsigned i = 0; i < forks; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            ask();
            char *own = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(own != MAP_FAILED, "mmap in the child");
            fill(own, 4 * MIB, i);
            CHECK(munmap(own, 4 * MIB) == 0, "munmap in the child");
            _exit(7);
        }
        int status, waited = 0;
        // (It may not even come out of fork.)
        while (waitpid(pid, &status, WNOHANG) == 0) {
            if (waited++ == 60000)
                kill(pid, SIGKILL);
            usleep(1000);
        }
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "child %u ended with %#x", i, status);
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    verify(memory, size, 1, "at the end");
    puts("done");
    return 0;
}
