// Threads that copy chunks, search in the copies and free them, as ebizzy does, with chunks chosen by a zipf law.
//   gcc -O2 -pthread -o ebizzy bench/programs/ebizzy.c -lm && ./ebizzy THREADS CHUNKS KIB RECORDS ZIPF
// RECORDS: searches in all; ZIPF: the exponent, 0 is uniform.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t chunks = 1024, words = 65536, records = 20000;
static uint64_t **chunk;
static double *below; // by rank: the share of the ranks up to it
static unsigned threads = 2;

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x;
}

static size_t choose(uint64_t *x) {
    double u = (next(x) >> 11) * 0x1p-53;
    size_t low = 0, high = chunks - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (below[middle] < u)
            low = middle + 1;
        else
            high = middle;
    }
    return low * 2654435761u % chunks; // ranks lie apart
}

static void *search(void *number) {
    uint64_t x = 88172645463325252u * ((uintptr_t)number * 2 + 1), found = 0;
    for (size_t i = 0; i < records / threads; i++) {
        size_t c = choose(&x);
        uint64_t *copy = malloc(words * 8), key = next(&x) % words;
        memcpy(copy, chunk[c], words * 8);
        size_t low = 0, high = words;
        while (high - low > 1) {
            size_t middle = (low + high) / 2;
            if (copy[middle] - c <= key)
                low = middle;
            else
                high = middle;
        }
        found += low == key;
        free(copy);
    }
    return (void *)found;
}

int main(int argc, char **argv) {
    threads = argc > 1 ? strtoul(argv[1], 0, 0) : threads;
    chunks = argc > 2 ? strtoul(argv[2], 0, 0) : chunks;
    words = argc > 3 ? strtoul(argv[3], 0, 0) * 128 : words;
    records = argc > 4 ? strtoul(argv[4], 0, 0) : records;
    double power = argc > 5 ? atof(argv[5]) : 0.7, sum = 0;
    chunk = calloc(chunks, sizeof *chunk);
    below = calloc(chunks, sizeof *below);
    for (size_t i = 0; i < chunks; i++)
        below[i] = sum += pow(i + 1, -power);
    for (size_t i = 0; i < chunks; i++) {
        below[i] /= sum;
        chunk[i] = malloc(words * 8);
        for (size_t w = 0; w < words; w++)
            chunk[i][w] = i + w;
    }
    pthread_t id[256];
    if (threads < 1 || threads > 256)
        return fputs("1 to 256 threads\n", stderr), 1;
    for (uintptr_t t = 0; t < threads; t++)
        pthread_create(&id[t], 0, search, (void *)t);
    size_t found = 0, wanted = records / threads * threads;
    for (unsigned t = 0; t < threads; t++) {
        void *n;
        pthread_join(id[t], &n);
        found += (size_t)n;
    }
    printf("%zu of %zu found\n", found, wanted);
    return found != wanted;
}
