// Asks a Redis server for keys by Zipf's law, one request at a time on each connection.
// served SOCKET load KEYS BYTES             sets all keys
// served SOCKET ask KEYS BYTES SECONDS N    N connections: nine GETs to a SET; prints requests a second and latencies
// What a GET brings must be what was set for that key.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define THETA 0.9
#define DIE(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
enum { BUCKETS = 64 * 16, BATCH = 256 };

static const char *path_;
static uint64_t keys_, bytes_;
static double *sums_; // of the weights of ranks
static double seconds_;

struct worker {
    uint64_t state, count, buckets[BUCKETS];
};

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

// The value of a key, which text and numbers would compress as well as: half of it is random.
static void value(uint64_t key, char *to) {
    uint64_t state = key * 2 + 1;
    for (uint64_t i = 0; i < bytes_; i++)
        to[i] = i & 1 ? 'a' + (char)(i % 23) : 'A' + (char)(draw(&state) % 26);
}

static int connected(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path_);
    if (s < 0 || connect(s, (struct sockaddr *)&at, sizeof at) != 0)
        DIE("%s: no server", path_);
    return s;
}

static void send_all(int s, const char *from, size_t n) {
    while (n > 0) {
        ssize_t sent = write(s, from, n);
        if (sent <= 0)
            DIE("the server has gone");
        from += sent, n -= (size_t)sent;
    }
}

static void receive(int s, char *to, size_t n) {
    while (n > 0) {
        ssize_t got = read(s, to, n);
        if (got <= 0)
            DIE("the server has gone");
        to += got, n -= (size_t)got;
    }
}

static size_t set_request(char *to, uint64_t key) {
    int n = sprintf(to, "*3\r\n$3\r\nSET\r\n$14\r\nk%013lu\r\n$%lu\r\n", key, bytes_);
    value(key, to + n);
    memcpy(to + n + bytes_, "\r\n", 2);
    return (size_t)n + bytes_ + 2;
}

static void expect_ok(int s) {
    char said[5];
    receive(s, said, 5);
    if (memcmp(said, "+OK\r\n", 5) != 0)
        DIE("SET: %.5s", said);
}

static void load(void) {
    int s = connected();
    char *all = malloc(BATCH * (bytes_ + 64));
    for (uint64_t key = 0; key < keys_;) {
        size_t n = 0, many = 0;
        for (; many < BATCH && key < keys_; many++, key++)
            n += set_request(all + n, key);
        send_all(s, all, n);
        while (many-- > 0)
            expect_ok(s);
    }
}

// The keys of neighbouring ranks are not neighbours.
static uint64_t key_of(uint64_t rank) { return rank * 2654435761u % keys_; }

static uint64_t rank(uint64_t *state) {
    double at = (double)draw(state) / 0x1p53 * sums_[keys_ - 1];
    uint64_t from = 0, to = keys_ - 1;
    while (from < to) {
        uint64_t mid = (from + to) / 2;
        if (sums_[mid] < at)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

static unsigned bucket(uint64_t ns) {
    unsigned log = 63 - (unsigned)__builtin_clzl(ns | 16);
    return log * 16 + (ns >> (log - 4) & 15);
}

static uint64_t bucket_ns(unsigned b) { return (16ul + b % 16) << (b / 16 - 4); }

static void *ask(void *arg) {
    struct worker *w = arg;
    int s = connected();
    char *request = malloc(bytes_ + 64), *answer = malloc(bytes_ + 64), *expected = malloc(bytes_ + 64);
    uint64_t end = now() + (uint64_t)(seconds_ * 1e9);
    int head = snprintf(request, 64, "$%lu\r\n", bytes_);
    for (uint64_t start = now(); start < end;) {
        uint64_t key = key_of(rank(&w->state));
        int sets = draw(&w->state) % 10 == 0;
        size_t n = sets ? set_request(request, key) : (size_t)sprintf(request, "*2\r\n$3\r\nGET\r\n$14\r\nk%013lu\r\n", key);
        start = now();
        send_all(s, request, n);
        if (sets) {
            expect_ok(s);
        } else {
            receive(s, answer, (size_t)head + bytes_ + 2);
        }
        uint64_t took = now() - start;
        w->buckets[bucket(took)]++;
        w->count++;
        if (!sets) {
            value(key, expected);
            if (memcmp(answer + head, expected, bytes_) != 0)
                DIE("key %lu does not hold what was set", key);
        }
        start += took;
    }
    return NULL;
}

static uint64_t percentile(const uint64_t *buckets, uint64_t count, double share) {
    uint64_t sum = 0;
    for (unsigned b = 0; b < BUCKETS; b++)
        if ((sum += buckets[b]) >= share * (double)count)
            return bucket_ns(b);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5)
        DIE("served SOCKET load|ask KEYS BYTES [SECONDS N]");
    path_ = argv[1], keys_ = strtoul(argv[3], 0, 0), bytes_ = strtoul(argv[4], 0, 0);
    if (strcmp(argv[2], "load") == 0) {
        load();
        return 0;
    }
    if (argc != 7)
        DIE("ask: SECONDS and the number of connections are missing");
    seconds_ = atof(argv[5]);
    int many = atoi(argv[6]);
    sums_ = malloc(keys_ * sizeof *sums_);
    double sum = 0;
    for (uint64_t i = 0; i < keys_; i++)
        sums_[i] = sum += 1 / pow((double)(i + 1), THETA);
    pthread_t threads[many];
    struct worker *workers = calloc((size_t)many, sizeof *workers), all = {0};
    for (int i = 0; i < many; i++) {
        workers[i].state = (uint64_t)i * 77 + 5;
        pthread_create(&threads[i], NULL, ask, &workers[i]);
    }
    for (int i = 0; i < many; i++) {
        pthread_join(threads[i], NULL);
        all.count += workers[i].count;
        for (int b = 0; b < BUCKETS; b++)
            all.buckets[b] += workers[i].buckets[b];
    }
    printf("%.0f requests/s, p50 %lu us, p99 %lu us, p99.9 %lu us\n", (double)all.count / seconds_,
           percentile(all.buckets, all.count, 0.5) / 1000, percentile(all.buckets, all.count, 0.99) / 1000,
           percentile(all.buckets, all.count, 0.999) / 1000);
    return 0;
}
