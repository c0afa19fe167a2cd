/* elbowroom-alloc: memory planned beforehand for programs that repeat themselves. Link with -lelbowroom_capi, or preload it. */
#ifndef ELBOWROOM_H
#define ELBOWROOM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts. Sizes are in bytes. "Large" requests are those of 16 KiB or more, or all of a pool's; "middle" ones are below that, and at least
 * the threshold; "small" ones are below the threshold. */
struct elbowroom_stats {
    uint64_t requests;      /* large requests */
    uint64_t bytes;         /* and their bytes */
    uint64_t planned;       /* large requests answered from a plan */
    uint64_t planned_bytes; /* and their bytes */
    uint64_t mismatches;    /* requests that differed from the expected one */
    uint64_t late;          /* expected requests whose bytes a longer-lived block still occupied */
    uint64_t iterations;    /* iterations completed with a plan */
    uint64_t plans;         /* plans made */
    uint64_t reoptimized;   /* of these, made again after a larger request or a longer lifetime */
    uint64_t lost;          /* plans abandoned because the requests changed */
    uint64_t height;        /* arena size of the latest plans, in bytes */
    uint64_t peak_load;     /* peak memory of the latest plans, in bytes */
    uint64_t small;         /* small requests, to within a thousand for each thread */
    uint64_t small_bytes;   /* and their bytes */
    uint64_t bad_frees;     /* planned addresses freed although no block began there */
    uint64_t lanes;         /* threads that made large requests at one time */
    uint64_t middle;        /* middle requests */
    uint64_t middle_bytes;  /* and their bytes */
    uint64_t middle_planned;       /* middle requests answered from a plan */
    uint64_t middle_planned_bytes; /* and their bytes */
};

/* The process's own memory: malloc and its family. */
void elbowroom_stats(struct elbowroom_stats *out);
void elbowroom_set_threshold(size_t bytes); /* 1024 unless set */
void elbowroom_mark_iteration(void);        /* optional: marks the start of an iteration of this thread */
void elbowroom_interrupt(void);             /* excludes the following requests of this thread ... */
void elbowroom_resume(void);                /* ... up to here; may be nested */

/* CUDA memory, with the signatures of PyTorch's CUDAPluggableAllocator. */
void *elbowroom_cuda_alloc(ptrdiff_t size, int device, void *stream);
void elbowroom_cuda_free(void *block, ptrdiff_t size, int device, void *stream);
const char *elbowroom_cuda_error(void); /* why CUDA memory is not available; NULL if there is a driver */
void elbowroom_cuda_stats(int device, struct elbowroom_stats *out);

/* Any other memory. Both functions may be called by any thread that uses the pool. A queue is where operations are ordered: blocks are used
 * again only by the queue that took them. */
typedef void *(*elbowroom_reserve)(void *context, size_t bytes, size_t align);
typedef void (*elbowroom_give_back)(void *context, void *address, size_t bytes);
struct elbowroom_pool;
struct elbowroom_pool *elbowroom_pool_new(elbowroom_reserve, elbowroom_give_back, void *context, size_t granule);
void elbowroom_pool_free(struct elbowroom_pool *);
void *elbowroom_pool_take(const struct elbowroom_pool *, uint64_t queue, size_t size, size_t align);
int elbowroom_pool_give(const struct elbowroom_pool *, void *block); /* 0, or 1 if no block begins there */
void elbowroom_pool_mark_iteration(const struct elbowroom_pool *, uint64_t queue); /* optional, as above */
void elbowroom_pool_interrupt(const struct elbowroom_pool *, uint64_t queue); /* excludes the queue's following requests ... */
void elbowroom_pool_resume(const struct elbowroom_pool *, uint64_t queue);    /* ... up to here; may be nested */
void elbowroom_pool_stats(const struct elbowroom_pool *, struct elbowroom_stats *out);

#ifdef __cplusplus
}
#endif
#endif
