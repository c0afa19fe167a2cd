/* A program that owns its memory: a pool over two functions, of which the library asks for large ranges, and a queue whose iterations
 * repeat. Then the counts of the process's own memory.
 *
 * cc pool.c -I../../include -L../../../../target/release -lelbowroom_capi -o pool */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elbowroom.h"

/* What the two functions share: here, the bytes that are reserved. */
struct backing {
    size_t reserved;
};

static void *reserve(void *context, size_t bytes, size_t align) {
    struct backing *backing = context;
    void *range = NULL;
    if (align < sizeof(void *)) {
        align = sizeof(void *);
    }
    if (posix_memalign(&range, align, bytes) != 0) {
        return NULL;
    }
    backing->reserved += bytes;
    return range;
}

static void give_back(void *context, void *address, size_t bytes) {
    struct backing *backing = context;
    backing->reserved -= bytes;
    free(address);
}

enum { LAYERS = 40, ITERATIONS = 10, QUEUE = 7 };

static size_t size_of_layer(int layer) { return 4096 * (size_t)(1 + layer * 7 % 11); }

/* Values made forward, in order, and given back backward, each full of its layer's number until then. 0 if all goes well. */
static int iterate(const struct elbowroom_pool *pool) {
    unsigned char *values[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        values[layer] = elbowroom_pool_take(pool, QUEUE, size_of_layer(layer), 64);
        if (values[layer] == NULL) {
            return 1;
        }
        memset(values[layer], layer, size_of_layer(layer));
    }
    for (int layer = LAYERS; layer-- > 0;) {
        for (size_t at = 0; at < size_of_layer(layer); at++) {
            if (values[layer][at] != layer) {
                return 1;
            }
        }
        if (elbowroom_pool_give(pool, values[layer]) != 0) {
            return 1;
        }
    }
    return 0;
}

int main(void) {
    struct backing backing = {0};
    struct elbowroom_pool *pool = elbowroom_pool_new(reserve, give_back, &backing, 64);
    if (pool == NULL) {
        return 1;
    }
    for (int i = 0; i < ITERATIONS; i++) {
        elbowroom_pool_mark_iteration(pool, QUEUE);
        if (iterate(pool) != 0) {
            return 1;
        }
    }
    struct elbowroom_stats stats;
    elbowroom_pool_stats(pool, &stats);
    printf("%llu of %llu requests planned, height %llu, peak load %llu\n", (unsigned long long)stats.planned,
           (unsigned long long)stats.requests, (unsigned long long)stats.height, (unsigned long long)stats.peak_load);
    int unknown = 0;
    if (elbowroom_pool_give(pool, &unknown) != 1) {
        return 1; /* no block begins there, and nothing happens */
    }
    elbowroom_pool_free(pool);
    printf("%zu bytes still reserved\n", backing.reserved);

    /* Linked or preloaded, malloc is the library's. */
    elbowroom_stats(&stats);
    const char *error = elbowroom_cuda_error();
    printf("malloc: %llu large, %llu middle, %llu small requests; CUDA: %s\n", (unsigned long long)stats.requests,
           (unsigned long long)stats.middle, (unsigned long long)stats.small, error == NULL ? "yes" : error);
    return 0;
}
