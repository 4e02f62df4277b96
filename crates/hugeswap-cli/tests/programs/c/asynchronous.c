// Asynchronous input and output on buffers and requests that are in memory that goes out, and look-ups of names: every call, its errors, and
// the ways in which a program learns that something is over.
#include "common.h"
#include <aio.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 96 * MIB, MANY = 64, PIECE = 512 * KIB };
static char *memory;
// No list, which the compiler must not know.
static void *volatile nothing;
static sem_t over;
static volatile sig_atomic_t told, told_code, told_value;

static void on_signal(int n, siginfo_t *info, void *context) {
    (void)n, (void)context;
    told_code = info->si_code;
    told_value = info->si_value.sival_int;
    told++;
}

static void on_over(union sigval v) {
    CHECK(v.sival_ptr == memory, "value");
    for (size_t at = 0; at < SIZE; at += UNIT)
        memory[at + 8] ^= memory[at];
    CHECK(sem_post(&over) == 0, "sem_post");
}

static void wait_for(struct aiocb *cb, ssize_t expected) {
    const struct aiocb *list[] = {NULL, cb};
    while (aio_error(cb) == EINPROGRESS) {
        int result = aio_suspend(list, 2, NULL);
        CHECK(result == 0 || errno == EINTR, "aio_suspend");
    }
    CHECK(aio_error(cb) == 0, "aio_error is %d", aio_error(cb));
    CHECK(aio_return(cb) == expected, "aio_return");
}

// Many transfers at once; requests and buffers are in memory that goes out.
static void transfers(int fd) {
    struct aiocb *cb = (void *)memory, *list[MANY + 1] = {0};
    char *data = memory + MIB;
    for (int round = 0; round < 3; round++) {
        memset(cb, 0, MANY * sizeof *cb);
        for (int i = 0; i < MANY; i++) {
            cb[i] = (struct aiocb){.aio_fildes = fd, .aio_buf = data + (size_t)i * PIECE, .aio_nbytes = PIECE, .aio_offset = (off_t)i * PIECE};
            cb[i].aio_lio_opcode = LIO_WRITE;
            cb[i].aio_sigevent.sigev_notify = SIGEV_NONE;
            list[i] = &cb[i];
        }
        fill(data, (size_t)MANY * PIECE, round);
        CHECK(lio_listio(LIO_WAIT, list, MANY + 1, NULL) == 0, "lio_listio");
        fill(data, (size_t)MANY * PIECE, round + 50);
        for (int i = 0; i < MANY; i++) {
            CHECK(aio_return(&cb[i]) == PIECE, "result of piece %d", i);
            CHECK(aio_read(&cb[i]) == 0, "aio_read");
        }
        for (int i = MANY - 1; i >= 0; i--)
            wait_for(&cb[i], PIECE);
        verify(data, (size_t)MANY * PIECE, round, "what was read");
        CHECK(aio_fsync(round ? O_SYNC : O_DSYNC, cb) == 0, "aio_fsync");
        wait_for(cb, 0);
    }
}

static void notices(int fd) {
    struct aiocb *cb = (void *)(memory + 4096), *list[] = {cb, NULL, cb + 1};
    memset(cb, 0, 2 * sizeof *cb);
    struct sigevent call = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_over, .sigev_value = {.sival_ptr = memory}};
    struct sigevent signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value = {.sival_int = 5}};
    for (int i = 0; i < 2; i++) {
        cb[i] = (struct aiocb){.aio_fildes = fd, .aio_buf = memory + MIB, .aio_nbytes = 100, .aio_lio_opcode = i ? LIO_READ : LIO_WRITE};
        cb[i].aio_sigevent = i ? call : signal;
    }
    CHECK(lio_listio(LIO_NOWAIT, list, 3, &call) == 0, "lio_listio");
    CHECK(sem_wait(&over) == 0 || sem_wait(&over) == 0, "sem_wait");
    while (sem_wait(&over) != 0)
        CHECK(errno == EINTR, "sem_wait");
    while (!told)
        usleep(1000);
    CHECK(told == 1 && told_code == SI_ASYNCIO && told_value == 5, "signal");
    wait_for(cb, 100), wait_for(cb + 1, 100);
}

// A pipe: no places in it, in order; a request that waits, and one behind it that is taken back.
static void pipes(void) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    char text[3][8] = {"", "", ""};
    struct aiocb cb[3] = {0};
    for (int i = 0; i < 3; i++) {
        cb[i] = (struct aiocb){.aio_fildes = ends[0], .aio_buf = text[i], .aio_nbytes = 4};
        cb[i].aio_sigevent.sigev_notify = SIGEV_NONE;
        CHECK(aio_read(&cb[i]) == 0, "aio_read");
    }
    const struct aiocb *list[] = {cb, cb + 1};
    struct timespec soon = {.tv_nsec = 50000000};
    CHECK(aio_suspend(list, 2, &soon) == -1 && errno == EAGAIN, "nothing comes");
    CHECK(aio_cancel(ends[0], &cb[2]) == AIO_CANCELED, "taken back");
    CHECK(aio_error(&cb[2]) == ECANCELED && aio_return(&cb[2]) == -1, "of what was taken back");
    CHECK(aio_cancel(ends[0], &cb[2]) == AIO_ALLDONE, "taken back before");
    CHECK(aio_cancel(ends[0], &cb[0]) == AIO_NOTCANCELED, "under way");
    CHECK(write(ends[1], "one.two.", 8) == 8, "write");
    wait_for(&cb[0], 4), wait_for(&cb[1], 4);
    printf("%s %s\n", text[0], text[1]);
    CHECK(aio_cancel(ends[0], NULL) == AIO_ALLDONE, "nothing is left");
    CHECK(aio_cancel(ends[0], &(struct aiocb){.aio_fildes = ends[1]}) == -1 && errno == EINVAL, "of another descriptor");
    close(ends[0]);
    CHECK(aio_cancel(ends[0], NULL) == -1 && errno == EBADF, "closed");
    CHECK(aio_read(&cb[0]) == 0, "aio_read");
    while (aio_error(&cb[0]) == EINPROGRESS)
        usleep(1000);
    CHECK(aio_error(&cb[0]) == EBADF && aio_return(&cb[0]) == -1, "closed");
    CHECK(aio_fsync(O_SYNC, &cb[0]) == -1 && errno == EBADF, "closed");
    CHECK(aio_fsync(7, &cb[0]) == -1 && errno == EINVAL, "how?");
    cb[0].aio_reqprio = -1;
    CHECK(aio_read(&cb[0]) == -1 && errno == EINVAL && aio_error(&cb[0]) == EINVAL, "priority");
    CHECK(lio_listio(LIO_WAIT, (struct aiocb **)nothing, 0, NULL) == 0, "none");
    CHECK(lio_listio(7, &(struct aiocb *){cb}, 1, NULL) == -1 && errno == EINVAL, "how?");
    close(ends[1]);
}

// Requests of one descriptor go by their priorities, and then as they were made.
static void priorities(void) {
    enum { READS = 5 };
    static const int less[READS] = {0, 5, 0, 20, 5};
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    struct aiocb *cb = (void *)(memory + 16384);
    char *text = memory + MIB;
    memset(text, 0, READS * 8);
    for (int i = 0; i < READS; i++) {
        cb[i] = (struct aiocb){.aio_fildes = ends[0], .aio_buf = text + i * 8, .aio_nbytes = 2, .aio_reqprio = less[i]};
        cb[i].aio_sigevent.sigev_notify = SIGEV_NONE;
        CHECK(aio_read(&cb[i]) == 0, "aio_read");
    }
    CHECK(write(ends[1], "0 1 2 3 4 ", 2 * READS) == 2 * READS, "write");
    for (int i = 0; i < READS; i++)
        wait_for(&cb[i], 2);
    for (int i = 0; i < READS; i++)
        printf("%s", text + i * 8);
    puts("by priority");
    close(ends[0]), close(ends[1]);
}

static void names(void) {
    struct gaicb *name = (void *)(memory + 8192), *list[] = {name, NULL, name + 1};
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct sigevent call = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_over, .sigev_value = {.sival_ptr = memory}};
    memset(name, 0, 2 * sizeof *name);
    for (int waits = 0; waits < 2; waits++) {
        name[0] = (struct gaicb){.ar_name = strcpy(memory + 12288, "127.0.0.1"), .ar_service = "80", .ar_request = &hints};
        name[1] = (struct gaicb){.ar_name = "no number", .ar_request = &hints};
        fill(memory + MIB, SIZE - MIB, waits);
        CHECK(getaddrinfo_a(waits ? GAI_WAIT : GAI_NOWAIT, list, 3, waits ? NULL : &call) == 0, "getaddrinfo_a");
        while (!waits && gai_error(&name[0]) == EAI_INPROGRESS) {
            // (It may be over by now.)
            int waited = gai_suspend((void *)list, 1, NULL);
            CHECK(waited == 0 || waited == EAI_ALLDONE, "gai_suspend");
        }
        while (!waits && sem_wait(&over) != 0)
            CHECK(errno == EINTR, "sem_wait");
        CHECK(gai_error(&name[0]) == 0 && name[0].ar_result, "a number");
        CHECK(gai_error(&name[1]) == EAI_NONAME, "no number");
        CHECK(gai_cancel(&name[0]) == EAI_ALLDONE, "gai_cancel");
        freeaddrinfo(name[0].ar_result);
    }
    CHECK(gai_suspend((void *)&list[1], 1, NULL) == EAI_ALLDONE, "of nothing");
    CHECK(getaddrinfo_a(GAI_WAIT, (struct gaicb **)nothing, 0, NULL) == 0, "none");
    CHECK(getaddrinfo_a(7, list, 3, NULL) == EAI_SYSTEM && errno == EINVAL, "how?");
}

// A child makes requests of its own. (Under the C library it waits forever for its parent's threads.)
static void child(int fd) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    told = 0;
    if (child == 0)
        // The parent reads back what it writes to its own.
        fd = fileno(tmpfile());
    transfers(fd);
    notices(fd);
    names();
    if (child == 0)
        _exit(0);
    int status;
    while (waitpid(child, &status, 0) != child)
        CHECK(errno == EINTR, "waitpid");
    CHECK(status == 0, "the child ended with status %#x", status);
}

int main(int argc, char **argv) {
    (void)argv;
    begin();
    CHECK(sem_init(&over, 0, 0) == 0, "sem_init");
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
    memory = malloc(SIZE);
    CHECK(memory, "malloc");
    fill(memory, SIZE, 0);
    FILE *f = tmpfile();
    CHECK(f, "tmpfile");
    transfers(fileno(f));
    notices(fileno(f));
    pipes();
    priorities();
    names();
    if (argc > 1)
        child(fileno(f));
    puts("fine");
    return 0;
}
