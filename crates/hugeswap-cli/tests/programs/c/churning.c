// Asks for much in small blocks and never has much of it: 400 MB in all, by two threads.
#include "common.h"
#include <pthread.h>

static void *churn(void *seed) {
    char *held[64] = {NULL};
    uint64_t sum = 0;
    for (uint64_t i = (uintptr_t)seed; i < 1000000; i++) {
        char **slot = &held[i * 2654435761u >> 7 & 63];
        sum += *slot ? **slot : 0;
        free(*slot);
        *slot = malloc(100 + i % 200);
        memset(*slot, (int)i & 127, 100);
    }
    for (int i = 0; i < 64; i++)
        free(held[i]);
    return (void *)sum;
}

int main(void) {
    pthread_t thread;
    void *sum;
    CHECK(pthread_create(&thread, NULL, churn, (void *)1) == 0, "pthread_create");
    uint64_t own = (uintptr_t)churn((void *)2);
    CHECK(pthread_join(thread, &sum) == 0, "pthread_join");
    printf("%lu\n", (unsigned long)(own + (uintptr_t)sum));
    return 0;
}
