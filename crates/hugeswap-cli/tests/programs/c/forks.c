// Forks of a program whose memory is partly out: parent and child each see their own, whatever the other does.
// forks BALLAST_MIB
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { PARTS = 5 };
static const size_t N = 8 * MIB;
static char *part[PARTS];

// Part 0 and 1 in memory, 2 and 3 out, 4 read in again unchanged.
static void spread(uint64_t seed) {
    for (int i = 0; i < PARTS; i++)
        fill(part[i], N, seed + i);
    for (int i = 2; i < PARTS; i++)
        evict(part[i], N);
    verify(part[4], N, seed + 4, "read back");
    verify(part[0], N, seed, "in memory");
}

static void verify_all(uint64_t seed, const char *what) {
    for (int i = 0; i < PARTS; i++)
        verify(part[i], N, seed + i, what);
}

static void end(pid_t pid, int want) {
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == want, "child ended with %#x, not %d", status, want);
}

// Tells the other side, and waits for it.
struct gate {
    int to[2], back[2];
};

static void gate_open(struct gate *g) { CHECK(pipe(g->to) == 0 && pipe(g->back) == 0, "pipe"); }
static void gate_close(struct gate *g) { close(g->to[0]), close(g->to[1]), close(g->back[0]), close(g->back[1]); }
static void say(int fd) { CHECK(write(fd, "x", 1) == 1, "pipe"); }
static void hear(int fd) {
    char c;
    CHECK(read(fd, &c, 1) == 1, "pipe");
}

static void child_sees_the_moment_of_the_fork(void) {
    struct gate g;
    gate_open(&g);
    spread(100);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        hear(g.to[0]); // The parent has changed everything by now, and pushed it out.
        verify_all(100, "child, after the parent's changes");
        for (int i = 0; i < PARTS; i++)
            fill(part[i], N, 300 + i);
        say(g.back[1]);
        hear(g.to[0]);
        verify_all(300, "child, its own changes");
        _exit(11);
    }
    for (int i = 0; i < PARTS; i++) {
        verify(part[i], N, 100 + i, "parent after fork");
        fill(part[i], N, 200 + i);
    }
    for (int i = 0; i < PARTS; i += 2)
        evict(part[i], N);
    say(g.to[1]);
    hear(g.back[0]);
    verify_all(200, "parent, after the child's changes");
    for (int i = 0; i < PARTS; i++)
        fill(part[i], N, 400 + i);
    say(g.to[1]);
    end(pid, 11);
    verify_all(400, "parent, after the child's end");
    gate_close(&g);
    puts("moment of the fork");
}

static void both_change_at_once(void) {
    spread(500);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    uint64_t mine = pid ? 600 : 700;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < PARTS; i++) {
            verify(part[i], N, (round ? mine + round - 1 : 500) + i, pid ? "parent, racing" : "child, racing");
            fill(part[i], N, mine + round + i);
        }
        if (round == 1)
            push_out();
    }
    for (int i = 0; i < PARTS; i++)
        verify(part[i], N, mine + 2 + i, pid ? "parent, at the end" : "child, at the end");
    if (pid == 0)
        _exit(12);
    end(pid, 12);
    puts("both change at once");
}

static void generations(void) {
    spread(800);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        fill(part[1], N, 901);
        fill(part[3], N, 903);
        pid_t grandchild = fork();
        CHECK(grandchild >= 0, "fork of the child");
        if (grandchild == 0) {
            verify(part[0], N, 800, "grandchild"), verify(part[1], N, 901, "grandchild");
            verify(part[2], N, 802, "grandchild"), verify(part[3], N, 903, "grandchild");
            verify(part[4], N, 804, "grandchild");
            fill(part[4], N, 1004);
            evict(part[4], N);
            verify(part[4], N, 1004, "grandchild, its own");
            char *fresh = malloc(N);
            CHECK(fresh, "malloc in the grandchild");
            fill(fresh, N, 1), evict(fresh, N), verify(fresh, N, 1, "grandchild's fresh memory");
            free(fresh), free(part[0]);
            _exit(13);
        }
        end(grandchild, 13);
        verify(part[4], N, 804, "child after the grandchild"), verify(part[0], N, 800, "child after the grandchild");
        _exit(14);
    }
    end(pid, 14);
    verify_all(800, "parent after the generations");
    puts("generations");
}

static _Atomic int stop;

static void *hammer(void *arg) {
    size_t me = (size_t)arg;
    char *own = malloc(4 * MIB);
    CHECK(own, "malloc");
    uint64_t seed = me;
    fill(own, 4 * MIB, seed);
    while (!stop) {
        verify(own, 4 * MIB, seed, "a thread while others fork");
        fill(own, 4 * MIB, ++seed);
        char *p = malloc(2 * MIB + me * 4096);
        CHECK(p, "malloc");
        p[MIB] = 1;
        free(p);
    }
    free(own);
    return NULL;
}

static void forks_among_threads(void) {
    pthread_t t[3];
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&t[i], NULL, hammer, (void *)i) == 0, "thread");
    for (int i = 0; i < 12; i++) {
        fill(part[i % PARTS], N, 2000 + i);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            verify(part[i % PARTS], N, 2000 + i, "child of many threads");
            char *p = malloc(3 * MIB);
            CHECK(p, "malloc in a child of many threads");
            fill(p, 3 * MIB, 5), verify(p, 3 * MIB, 5, "child's own"), free(p);
            if (i % 2) {
                execl("/bin/sh", "sh", "-c", "exit 15", (char *)NULL);
                _exit(99);
            }
            _exit(15);
        }
        verify(part[i % PARTS], N, 2000 + i, "parent of many threads");
        end(pid, 15);
    }
    stop = 1;
    for (size_t i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    puts("forks among threads");
}

static void killed_children(void) {
    spread(3000);
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0)
            for (uint64_t s = 0;; s++)
                fill(part[s % PARTS], N, s);
        usleep(20000);
        CHECK(kill(pid, SIGKILL) == 0, "kill");
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%#x", status);
        fill(part[i], N, 3000 + i);
        push_out();
    }
    verify_all(3000, "after children were killed");
    puts("killed children");
}

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 2, "one argument");
    ballast(strtoul(argv[1], 0, 0) * MIB);
    for (int i = 0; i < PARTS; i++)
        CHECK((part[i] = malloc(N)), "malloc");
    child_sees_the_moment_of_the_fork();
    both_change_at_once();
    generations();
    forks_among_threads();
    killed_children();
    done();
    return 0;
}
