/* PyTorch's pluggable CUDA allocator as PyTorch calls it: blocks of two streams of two devices, in iterations; then a device without memory. */
#include <stdio.h>

#include "elbowroom.h"

enum { LAYERS = 40, ITERATIONS = 10 };

static ptrdiff_t size_of_layer(int layer) { return 4096 * (ptrdiff_t)(1 + layer * 7 % 11); }

static int iterate(int device, void *stream) {
    void *blocks[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        blocks[layer] = elbowroom_cuda_alloc(size_of_layer(layer), device, stream);
        if (blocks[layer] == NULL || (uintptr_t)blocks[layer] % 512 != 0) {
            return 1;
        }
    }
    for (int layer = LAYERS; layer-- > 0;) {
        elbowroom_cuda_free(blocks[layer], size_of_layer(layer), device, stream);
    }
    return 0;
}

int main(void) {
    if (elbowroom_cuda_error() != NULL) {
        printf("%s\n", elbowroom_cuda_error());
        return 2;
    }
    int queue;
    void *streams[2] = {NULL, &queue};
    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        for (int at = 0; at < 4; at++) {
            if (iterate(at / 2, streams[at % 2]) != 0) {
                return 1;
            }
        }
    }
    for (int device = 0; device < 3; device++) {
        struct elbowroom_stats stats;
        elbowroom_cuda_stats(device, &stats);
        printf("%llu of %llu requests planned, height %llu, peak load %llu\n", (unsigned long long)stats.planned,
               (unsigned long long)stats.requests, (unsigned long long)stats.height, (unsigned long long)stats.peak_load);
    }
    /* More than there is, a device that is not there, no bytes, and blocks that are none. */
    void *none[] = {elbowroom_cuda_alloc((ptrdiff_t)1 << 40, 0, NULL), elbowroom_cuda_alloc(512, 7, NULL),
                    elbowroom_cuda_alloc(0, 0, NULL), elbowroom_cuda_alloc(-1, 0, NULL)};
    elbowroom_cuda_free(NULL, 512, 0, NULL);
    elbowroom_cuda_free(&queue, 512, 0, NULL);
    for (int at = 0; at < 4; at++) {
        if (none[at] != NULL) {
            return 1;
        }
    }
    /* And it goes on. */
    return iterate(0, NULL) + iterate(1, &queue);
}
