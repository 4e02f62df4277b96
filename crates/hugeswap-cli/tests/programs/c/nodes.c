// A list of small blocks, as many as the argument says (in thousands), some of which are given back and taken again.
#include "common.h"

struct node {
    struct node *next;
    uint64_t number;
    char name[24];
};

static struct node *push(struct node *head, uint64_t number) {
    struct node *n = malloc(sizeof *n);
    CHECK(n != NULL, "%s", strerror(errno));
    *n = (struct node){head, number, ""};
    snprintf(n->name, sizeof n->name, "node %ju", (uintmax_t)number);
    return n;
}

int main(int argc, char **argv) {
    uint64_t count = 1000 * strtoull(argv[argc - 1], NULL, 10), sum = 0;
    struct node *head = NULL;
    for (uint64_t i = 0; i < count; i++)
        head = push(head, i);
    // Every third one is another.
    for (struct node *n = head; n != NULL && n->next != NULL && n->next->next != NULL; n = n->next->next) {
        struct node *gone = n->next->next;
        n->next->next = gone->next;
        free(gone);
        if (n->next->next == NULL)
            break;
    }
    for (uint64_t i = 0; i < count / 3; i++)
        head = push(head, count + i);
    for (int round = 0; round < 3; round++)
        for (struct node *n = head; n != NULL; n = n->next) {
            char name[24];
            snprintf(name, sizeof name, "node %ju", (uintmax_t)n->number);
            CHECK(strcmp(name, n->name) == 0, "%s is not %s", n->name, name);
            sum = sum * 31 + n->number;
        }
    printf("%016jx\n", (uintmax_t)sum);
}
