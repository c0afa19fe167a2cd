/* A program with operations of its own under a device that holds a part of its blocks: on the host, or with the argument `cuda` on the first CUDA
 * device, where its operations only move blocks.
 *
 * cc layers.c -I../include -L../../../target/release -lelbowroom_device_c -o layers */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elbowroom_device.h"

enum { LAYERS = 20, BYTES = 4096, ITERATIONS = 12 };

/* On the host: writes what is read, plus one. On CUDA a kernel would do that on `stream`. */
static void layer(void *context, void *stream, const uintptr_t *reads, const uintptr_t *writes) {
    if (stream == NULL) {
        const unsigned char *from = (const unsigned char *)reads[0];
        unsigned char *to = (unsigned char *)writes[0];
        for (size_t at = 0; at < BYTES; at++) {
            to[at] = (unsigned char)(from[at] + 1);
        }
    }
    ++*(int *)context;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, elbowroom_device_error());
    return 1;
}

int main(int count, char **arguments) {
    int on_cuda = count > 1 && strcmp(arguments[1], "cuda") == 0;
    size_t limit = LAYERS * BYTES / 2;
    struct elbowroom_device *device = on_cuda ? elbowroom_device_on_cuda(0, limit, NULL, 8000000000u, 8000000000u)
                                              : elbowroom_device_on_host(limit, NULL);
    if (device == NULL) {
        return fail("no device");
    }
    int operations = 0;
    unsigned char contents[BYTES];
    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        uint64_t blocks[LAYERS];
        for (int at = 0; at < LAYERS; at++) {
            blocks[at] = elbowroom_device_malloc(device, BYTES);
            memset(contents, on_cuda ? at : iteration, BYTES);
            /* Without kernels, each block gets its contents from the host. */
            int status = on_cuda || at == 0 ? elbowroom_device_upload(device, blocks[at], contents, BYTES) : 0;
            if (status == 0 && at > 0) {
                status = elbowroom_device_exec(device, layer, &operations, &blocks[at - 1], 1, &blocks[at], 1);
            }
            if (status != 0) {
                return fail("forward");
            }
        }
        for (int at = LAYERS; at-- > 0;) {
            if (elbowroom_device_download(device, blocks[at], contents, BYTES) != 0) {
                return fail("backward");
            }
            for (size_t byte = 0; byte < BYTES; byte++) {
                if (contents[byte] != (unsigned char)(at + (on_cuda ? 0 : iteration))) {
                    fprintf(stderr, "layer %d of iteration %d is wrong\n", at, iteration);
                    return 1;
                }
            }
            if (elbowroom_device_release(device, blocks[at]) != 0) {
                return fail("release");
            }
        }
    }
    struct elbowroom_device_stats stats;
    elbowroom_device_stats(device, &stats);
    printf("%d operations, %llu planned, %llu plan, %llu of %llu bytes on the device\n", operations, (unsigned long long)stats.planned,
           (unsigned long long)stats.plans, (unsigned long long)stats.device_bytes, (unsigned long long)stats.peak_live);
    uint64_t unknown = 1u << 30;
    int status = elbowroom_device_release(device, unknown);
    printf("%d: %s\n", status, elbowroom_device_error());
    elbowroom_device_free(device);
    printf("%s\n", elbowroom_device_on_host(limit, "nobody") == NULL ? elbowroom_device_error() : "?");
    return 0;
}
