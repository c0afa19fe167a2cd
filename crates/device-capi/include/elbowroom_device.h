/* The device of blocks: a framework creates blocks and states what each operation reads and writes; together the blocks may exceed the device.
 * They are offloaded to the host and prefetched, by least recent use at first, and by a plan once an iteration has repeated. Link with
 * -lelbowroom_device_c. One thread at a time uses a device. */
#ifndef ELBOWROOM_DEVICE_H
#define ELBOWROOM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct elbowroom_device;

/* What a call returns. After any but ELBOWROOM_DEVICE_OK, elbowroom_device_error says why. */
enum {
    ELBOWROOM_DEVICE_OK = 0,
    ELBOWROOM_DEVICE_REJECTED = 1,      /* an unknown block, one named twice, a wrong size, more than the device: nothing has changed */
    ELBOWROOM_DEVICE_OUT_OF_MEMORY = 2, /* no memory for copies: nothing has changed */
    ELBOWROOM_DEVICE_FAILED = 3,        /* the device is lost: every further operation returns this */
    ELBOWROOM_DEVICE_FAULT = 4          /* a fault of elbowroom */
};

/* Counts; sizes in bytes. */
struct elbowroom_device_stats {
    uint64_t dynamic;      /* operations run dynamically */
    uint64_t planned;      /* operations run by a plan */
    uint64_t to_host;      /* bytes copied to the host */
    uint64_t to_device;    /* bytes copied from the host */
    uint64_t plans;        /* plans made */
    uint64_t abandoned;    /* departures of the program from a plan */
    uint64_t device_bytes; /* the largest end of any block on the device */
    uint64_t peak_live;    /* peak of all live blocks, on the device or on the host */
    uint64_t waits;        /* waits of one stream for another */
};

/* A device of `limit` bytes; NULL on failure. `planner` is NULL for AutoSwap, "none" for dynamic execution, or a planner of elbowroom. On CUDA the
 * bytes are reserved at once; the rates are those of copies in each direction, in bytes per second. */
struct elbowroom_device *elbowroom_device_on_host(size_t limit, const char *planner);
struct elbowroom_device *elbowroom_device_on_cuda(int ordinal, size_t limit, const char *planner, uint64_t to_host_rate, uint64_t to_device_rate);
void elbowroom_device_free(struct elbowroom_device *);

/* A block of zeros, of at least one byte. It occupies no memory of the device until an operation uses it. UINT64_MAX on a fault. */
uint64_t elbowroom_device_malloc(struct elbowroom_device *, size_t bytes);
int elbowroom_device_release(struct elbowroom_device *, uint64_t block);

/* An operation: issues its work to `stream` (a CUstream; NULL on the host, where it does its work at once) on the addresses of its blocks, which
 * are valid for this operation only. What is both read and written is named in `writes` alone. */
typedef void (*elbowroom_operation)(void *context, void *stream, const uintptr_t *reads, const uintptr_t *writes);
int elbowroom_device_exec(struct elbowroom_device *, elbowroom_operation, void *context, const uint64_t *reads, size_t read_count, const uint64_t *writes, size_t write_count);

/* Transfers of whole blocks, as operations in their order. The first returns at once, the second with the contents. */
int elbowroom_device_upload(struct elbowroom_device *, uint64_t block, const void *contents, size_t bytes);
int elbowroom_device_download(struct elbowroom_device *, uint64_t block, void *contents, size_t bytes);

int elbowroom_device_synchronize(struct elbowroom_device *);
void elbowroom_device_stats(struct elbowroom_device *, struct elbowroom_device_stats *out);
const char *elbowroom_device_error(void); /* of this thread's latest failing call */

#ifdef __cplusplus
}
#endif
#endif
