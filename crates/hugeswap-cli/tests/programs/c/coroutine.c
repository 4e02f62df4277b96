// A thread goes over to a stack that the program has mapped, and asks for many small blocks there.
#include "common.h"
#include <ucontext.h>

#define STACK (4 * MIB)
#define BLOCKS 1200000

static ucontext_t from, coroutine;

static void work(void) {
    uint64_t **last = NULL, sum = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        uint64_t **block = malloc(48);
        CHECK(block != NULL, "%s", strerror(errno));
        block[0] = (uint64_t *)last;
        block[1] = (uint64_t *)i;
        last = block;
    }
    for (uint64_t **block = last; block != NULL; block = (uint64_t **)block[0])
        sum = sum * 31 + (uint64_t)block[1];
    printf("%016jx\n", (uintmax_t)sum);
}

int main(void) {
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED, "%s", strerror(errno));
    CHECK(getcontext(&coroutine) == 0, "%s", strerror(errno));
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = STACK;
    coroutine.uc_link = &from;
    makecontext(&coroutine, work, 0);
    CHECK(swapcontext(&from, &coroutine) == 0, "%s", strerror(errno));
    puts("done");
}
