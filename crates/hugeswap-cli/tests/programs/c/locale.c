// The data of the locale are in blocks of malloc's, and new threads read them with every signal blocked: in this process, and in forked children.
#include "common.h"
#include <locale.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 96 * MIB, ROUNDS = 6 };

static void *work(void *memory) {
    memory = malloc(4 * MIB);
    CHECK(memory, "malloc");
    fill(memory, 4 * MIB, 7);
    free(memory);
    return NULL;
}

static void run_thread(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0, "pthread_create");
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

int main(void) {
    begin();
    CHECK(setlocale(LC_ALL, "C.UTF-8"), "there is no locale C.UTF-8");
    char *memory = malloc(SIZE);
    CHECK(memory, "malloc");
    for (int round = 0; round < ROUNDS; round++) {
        fill(memory, SIZE, round);
        run_thread();
        fill(memory, SIZE, round + 100);
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            run_thread();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child, "waitpid");
        CHECK(status == 0, "a child ended with status %#x in round %d", status, round);
    }
    verify(memory, SIZE, ROUNDS - 1 + 100, "the parent's memory");
    puts("fine");
    return 0;
}
