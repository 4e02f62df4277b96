// Code of the C library's own that runs with every signal blocked, while the blocks of malloc's that it uses would be in swap:
//   detached   the end of detached threads, which frees what threads that ended before them had
//   stacks     the same of threads with stacks of the program's
//   timers     threads that a timer starts (SIGEV_THREAD)
//   queue      threads that a message queue starts
//   requests   threads that asynchronous input and output, and look-ups of names, start
#include "common.h"
#include <aio.h>
#include <fcntl.h>
#include <locale.h>
#include <mqueue.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>

enum { SIZE = 64 * MIB, ROUNDS = 2, THREADS = 4 };
static char *memory;
static sem_t over;

// So that there is something to free.
static __thread char *kept;
static __thread char local[256 * KIB];

static void *work(void *size) {
    kept = malloc((size_t)size);
    CHECK(kept, "malloc");
    fill(kept, (size_t)size, 3);
    fill(local, sizeof local, 4);
    free(kept);
    CHECK(sem_post(&over) == 0, "sem_post");
    return NULL;
}

static void wait_for(int n) {
    for (int i = 0; i < n; i++)
        CHECK(sem_wait(&over) == 0, "sem_wait");
}

static void pressure(int round) { fill(memory, SIZE, 10 + round); }

static void detached(int own_stacks) {
    // (A stack of a thread's that goes on for a little after it has said that it is over cannot be used again.)
    for (int round = 0; round < (own_stacks ? 1 : ROUNDS); round++) {
        pthread_attr_t attr;
        pthread_t thread;
        CHECK(pthread_attr_init(&attr) == 0, "attr");
        CHECK(pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0, "attr");
        for (int i = 0; i < THREADS; i++) {
            if (own_stacks) {
                char *stack = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(stack != MAP_FAILED, "mmap");
                CHECK(pthread_attr_setstack(&attr, stack, MIB) == 0, "attr");
            }
            CHECK(pthread_create(&thread, &attr, work, (void *)(64 * KIB)) == 0, "pthread_create");
            pressure(round);
        }
        wait_for(THREADS);
    }
}

static void on_timer(union sigval v) {
    CHECK(v.sival_int == 77, "value");
    for (size_t at = 0; at < SIZE; at += UNIT)
        memory[at + 8] ^= memory[at];
    work((void *)(64 * KIB));
}

static void timers(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer, .sigev_value = {.sival_int = 77}};
    timer_t timer[4];
    for (int i = 0; i < 4; i++)
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer[i]) == 0, "timer_create");
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 4; i++) {
            struct itimerspec soon = {.it_value = {.tv_nsec = 150000000}};
            CHECK(timer_settime(timer[i], 0, &soon, NULL) == 0, "timer_settime");
        }
        pressure(round);
        wait_for(4);
    }
    for (int i = 0; i < 4; i++)
        CHECK(timer_delete(timer[i]) == 0, "timer_delete");
}

static void queue(void) {
    char name[64];
    snprintf(name, sizeof name, "/hugeswap-test-%d", (int)getpid());
    struct mq_attr attr = {.mq_maxmsg = 2, .mq_msgsize = 64};
    mqd_t q = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attr);
    CHECK(q >= 0, "mq_open");
    CHECK(mq_unlink(name) == 0, "mq_unlink");
    for (int round = 0; round < ROUNDS; round++) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer, .sigev_value = {.sival_int = 77}};
        CHECK(mq_notify(q, &event) == 0, "mq_notify");
        pressure(round);
        char text[64] = "text";
        CHECK(mq_send(q, text, 5, 0) == 0, "mq_send");
        wait_for(1);
        CHECK(mq_receive(q, text, 64, NULL) == 5, "mq_receive");
    }
    mq_close(q);
}

static void requests(void) {
    FILE *f = tmpfile();
    CHECK(f, "tmpfile");
    char text[512] = "text";
    for (int round = 0; round < ROUNDS; round++) {
        struct aiocb cb = {.aio_fildes = fileno(f), .aio_buf = text, .aio_nbytes = sizeof text};
        cb.aio_sigevent = (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer, .sigev_value = {.sival_int = 77}};
        pressure(round);
        CHECK(aio_write(&cb) == 0, "aio_write");
        struct gaicb name = {.ar_name = "127.0.0.1"}, *names[] = {&name};
        struct sigevent event = cb.aio_sigevent;
        CHECK(getaddrinfo_a(GAI_NOWAIT, names, 1, &event) == 0, "getaddrinfo_a");
        pressure(round + 100);
        wait_for(2);
        CHECK(aio_error(&cb) == 0 && aio_return(&cb) == sizeof text, "aio");
        CHECK(gai_error(&name) == 0, "gai_error");
        freeaddrinfo(name.ar_result);
    }
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 2, "one argument");
    CHECK(sem_init(&over, 0, 0) == 0, "sem_init");
    memory = malloc(SIZE);
    CHECK(memory, "malloc");
    pressure(0);
    CHECK(setlocale(LC_ALL, "C.UTF-8"), "there is no locale C.UTF-8");
    if (!strcmp(argv[1], "detached"))
        detached(0);
    else if (!strcmp(argv[1], "stacks"))
        detached(1);
    else if (!strcmp(argv[1], "timers"))
        timers();
    else if (!strcmp(argv[1], "queue"))
        queue();
    else
        requests();
    puts("fine");
    return 0;
}
