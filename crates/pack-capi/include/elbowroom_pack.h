/* elbowroom-pack: offsets for buffers with known lifetimes, in one arena that is as small as possible. Link with -lelbowroom_pack_c. */
#ifndef ELBOWROOM_PACK_H
#define ELBOWROOM_PACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Positions lower <= t < upper at which a buffer is not alive; its bytes from <= byte < to stay occupied (from == to: none). */
struct elbowroom_pack_gap {
    uint64_t lower, upper;
    uint64_t from, to;
};

/* A buffer, alive at the positions lower <= t < upper. */
struct elbowroom_pack_buffer {
    uint64_t lower, upper;
    uint64_t size;      /* bytes */
    uint64_t alignment; /* its offset is a multiple of this; 0 and 1 ask for none */
    int64_t offset;     /* it is fixed at this offset; -1 lets the packer choose */
    int64_t hint;       /* an offset to try first; -1 for none */
    const struct elbowroom_pack_gap *gaps; /* ascending, disjoint, within its lifetime; NULL if there are none */
    size_t gap_count;
};

struct elbowroom_pack_options {
    uint64_t capacity;    /* bytes that the arena may take; 0 asks for the smallest arena */
    double seconds;       /* time limit; 0 for none */
    uint64_t evaluations; /* limit that makes results repeat on every machine; 0 for none */
    uint64_t seed;        /* of random choices */
    size_t threads;       /* 0 and 1 ask for one; results do not depend on it */
    const char *packer;   /* NULL for "auto"; "exact", "best-fit", "size", ... */
};

/* What elbowroom_pack returns. */
enum elbowroom_pack_result {
    ELBOWROOM_PACK_OPTIMAL = 0,    /* a placement, and none is lower; with a capacity, one that fits and is not proved lowest is FOUND */
    ELBOWROOM_PACK_FOUND = 1,      /* a placement, within the capacity if there is one */
    ELBOWROOM_PACK_GAVE_UP = 2,    /* none was found within the capacity: the lowest that was found */
    ELBOWROOM_PACK_INFEASIBLE = 3, /* none exists within the capacity, or fixed buffers overlap: the lowest that was found, or height 0 */
    ELBOWROOM_PACK_BAD_INPUT = 4,  /* nothing was written; elbowroom_pack_error() says why */
    ELBOWROOM_PACK_FAULT = 5       /* a fault of the library; nothing was written */
};

/* Places count buffers. Writes count offsets and the height of the arena, both in bytes. Options may be NULL: the smallest arena that one second
 * finds. Any thread may call it. */
int elbowroom_pack(const struct elbowroom_pack_buffer *buffers, size_t count, const struct elbowroom_pack_options *options,
                   uint64_t *offsets, uint64_t *height);

/* Why this thread's last call returned ELBOWROOM_PACK_BAD_INPUT, GAVE_UP or INFEASIBLE, as one sentence; "" after other results. It is valid until
 * the thread's next call. */
const char *elbowroom_pack_error(void);

#ifdef __cplusplus
}
#endif
#endif
