// Processes that end in unusual ways while they have managed memory.
// ends main: the main thread ends by pthread_exit, the last one by returning
// ends last: the last program thread ends by pthread_exit
// ends child: a thread forks, and its child returns from the thread's function
// ends term: SIGTERM for a process whose main thread has ended
// ends wait: two threads wait for ever; prints a line when they do
// ends last-raw: the only thread ends by the bare system call
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *memory;
static size_t len;
static int ready[2];

static void *worker(void *arg) {
    verify(memory, len, 5, "in a thread");
    puts("a thread ends");
    return arg;
}

static void *forker(void *arg) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        verify(memory, len, 5, "in the child");
        return arg;
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    printf("the child ended with %#x\n", status);
    return arg;
}

static void *sleeper(void *arg) {
    verify(memory, len, 5, "in a thread");
    CHECK(write(ready[1], "r", 1) == 1, "write");
    for (;;)
        pause();
    return arg;
}

static pthread_t start(void *(*routine)(void *)) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, routine, NULL) == 0, "pthread_create");
    return t;
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "what, and how many MiB");
    setvbuf(stdout, NULL, _IONBF, 0);
    len = strtoul(argv[2], 0, 0) * MIB;
    CHECK((memory = malloc(len)), "malloc");
    fill(memory, len, 5);
    if (!strcmp(argv[1], "main")) {
        start(worker);
        pthread_exit(NULL);
    } else if (!strcmp(argv[1], "last")) {
        CHECK(pthread_join(start(worker), NULL) == 0, "pthread_join");
        pthread_exit(NULL);
    } else if (!strcmp(argv[1], "child")) {
        CHECK(pthread_join(start(forker), NULL) == 0, "pthread_join");
    } else if (!strcmp(argv[1], "wait")) {
        CHECK(pipe(ready) == 0, "pipe");
        start(sleeper);
        char c;
        CHECK(read(ready[0], &c, 1) == 1, "read");
        puts("ready");
        pause();
    } else if (!strcmp(argv[1], "last-raw")) {
        verify(memory, len, 5, "at the end");
        syscall(SYS_exit, 9);
    } else if (!strcmp(argv[1], "term")) {
        CHECK(pipe(ready) == 0, "pipe");
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            start(sleeper);
            pthread_exit(NULL);
        }
        char c;
        CHECK(read(ready[0], &c, 1) == 1, "read");
        CHECK(kill(child, SIGTERM) == 0, "kill");
        int status;
        CHECK(waitpid(child, &status, 0) == child, "waitpid");
        printf("the child ended with %#x\n", status);
    } else {
        CHECK(0, "no such end");
    }
    return 0;
}
