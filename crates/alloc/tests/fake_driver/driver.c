/* A CUDA driver without a device, for tests: the functions that `elbowroom-alloc` loads from `libcuda.so.1`.
 *
 * Device memory is a file in memory that is mapped twice: at the device address without any access, so that a host program that reads or
 * writes it stops with a fault, and at another address for the copies of this file. New memory is full of POISON.
 *
 * Streams are queues of tasks. Nothing runs by time: each call of the driver draws from a seed how many steps of which streams happen before
 * it returns, between none and all that can. A copy takes up to PIECES steps, between which other streams may go on. One seed is one order, on
 * every machine, and every order that streams and events allow has a seed. Reading what an unfinished copy is to bring therefore yields
 * wrong bytes for some seed, again and again for that seed.
 *
 * Beside this, each task has a beginning and an end by a clock of its own, as on a device whose streams work at the same time: the log lists
 * them, and events report them.
 *
 *     cc -std=c11 -D_GNU_SOURCE -shared -fPIC -pthread -Wl,-soname,libcuda.so.1 driver.c -o libcuda.so.1
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned int status;
typedef uint64_t address;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };
enum { INVALID_HANDLE = 400, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, LOST = 46 };
enum { DEVICES = 2, GRANULE = 512, POISON = 0xA5, PIECES = 4, DEEPEST = 16 };

struct event;

struct task {
    enum { COPY, FILL, RECORD, WAIT, KERNEL } kind;
    const char *name;
    address to, from; /* of the device or of the host */
    size_t bytes, done;
    unsigned value, width;
    struct event *event;
    uint64_t generation;
    void (*kernel)(void *);
    void *argument;
    uint64_t nanos, ready; /* its length, and when the host issued it */
    struct task *next;
};

struct stream {
    int device, number;
    uint64_t priority;
    struct task *first, *last;
    uint64_t clock;
    struct stream *next;
};

struct event {
    uint64_t issued, reached; /* how often it was recorded, and how many of these the streams have reached */
    uint64_t time;
    uint64_t times[64]; /* of recent generations */
    int timing, dropped;
    struct event *next;
};

struct range {
    address start;
    size_t bytes, mapped;
    unsigned char *shadow; /* null for memory of the host */
    int device;
    struct range *next;
};

struct context {
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static struct event *events;
static struct range *ranges;
static struct context contexts[DEVICES] = {{0}, {1}};
static int initialized, stream_count;
static size_t memory_limit = (size_t)1 << 30, in_use[DEVICES], peak_use[DEVICES];
static uint64_t seed = 1, host_clock, copy_rate = 8; /* bytes in a nanosecond */
static uint64_t pace; /* 0: no step between two calls, 1: some, 2: many */
static status sticky;
static char *log_text;
static size_t log_bytes, log_room;

/* A call that shall fail: its name, how many calls of it succeed first, and with what. */
static char fail_name[64];
static long fail_after;
static status fail_with;

static _Thread_local struct context *stack[DEEPEST];
static _Thread_local int depth;

static uint64_t draw(uint64_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return below ? (seed * 0x2545F4914F6CDD1DULL >> 33) % below : 0;
}

static void note(const char *format, ...) {
    if (log_room - log_bytes < 256) {
        log_room = log_room ? 2 * log_room : 1 << 16;
        log_text = realloc(log_text, log_room);
        if (log_text == NULL) {
            abort();
        }
    }
    va_list rest;
    va_start(rest, format);
    log_bytes += (size_t)vsnprintf(log_text + log_bytes, 256, format, rest);
    va_end(rest);
}

static struct range *range_of(address at, size_t bytes) {
    for (struct range *range = ranges; range; range = range->next) {
        if (at >= range->start && at - range->start <= range->bytes && bytes <= range->bytes - (at - range->start)) {
            return range;
        }
    }
    return NULL;
}

/* Where this file reaches bytes of the device or of page-locked host memory; null where there are none. */
static unsigned char *reach(address at, size_t bytes) {
    struct range *range = range_of(at, bytes);
    if (range == NULL) {
        return NULL;
    }
    return range->shadow ? range->shadow + (at - range->start) : (unsigned char *)at;
}

/* One step of a task. Whether it has ended. */
static int step(struct task *task) {
    size_t piece = task->bytes / PIECES + 1, left = task->bytes - task->done;
    piece = piece < left ? piece : left;
    unsigned char *to = NULL, *from = NULL;
    if (task->kind == COPY || task->kind == FILL) {
        to = reach(task->to, task->bytes);
        from = task->kind == COPY ? reach(task->from, task->bytes) : to;
        if (to == NULL || from == NULL) {
            note("fault %s %llx %llx %zu\n", task->name, (unsigned long long)task->to, (unsigned long long)task->from, task->bytes);
            sticky = ILLEGAL_ADDRESS;
            return 1;
        }
    }
    switch (task->kind) {
    case COPY:
        memmove(to + task->done, from + task->done, piece);
        task->done += piece;
        return task->done == task->bytes;
    case FILL:
        for (size_t at = 0; at < task->bytes; at++) {
            to[at] = (unsigned char)(task->value >> 8 * (at % task->width));
        }
        return 1;
    case RECORD:
        task->event->reached = task->generation;
        return 1;
    case WAIT:
        return 1;
    case KERNEL:
        task->kernel(task->argument);
        return 1;
    }
    return 1;
}

static uint64_t later(uint64_t one, uint64_t other) { return one > other ? one : other; }

static int is_ready(const struct stream *stream) {
    const struct task *task = stream->first;
    return task != NULL && (task->kind != WAIT || task->event->reached >= task->generation);
}

static void advance(struct stream *stream) {
    struct task *task = stream->first;
    if (!sticky && !step(task)) {
        return;
    }
    uint64_t begin = later(stream->clock, task->ready);
    if (task->kind == WAIT) {
        begin = later(begin, task->event->times[task->generation % 64]);
    }
    stream->clock = begin + task->nanos;
    if (task->kind == RECORD) {
        task->event->reached = task->generation;
        task->event->time = task->event->times[task->generation % 64] = stream->clock;
    }
    note("%s stream %d from %llu to %llu bytes %zu at %llx %llx\n", task->name, stream->number, (unsigned long long)begin,
         (unsigned long long)stream->clock, task->bytes, (unsigned long long)task->to, (unsigned long long)task->from);
    stream->first = task->next;
    if (stream->first == NULL) {
        stream->last = NULL;
    }
    free(task);
}

/* One step of a stream that has one. Whether there was one. Mostly that of the first stream in an order of precedence that changes now and
 * then: a fault that shows where one stream is far ahead of another is found sooner than by steps of any stream. */
static int go_on(void) {
    struct stream *chosen = NULL;
    int any = draw(8) == 0;
    uint64_t ready = 0;
    for (struct stream *stream = streams; stream; stream = stream->next) {
        if (draw(48) == 0) {
            stream->priority = draw(1 << 20);
        }
        if (is_ready(stream)) {
            ready++;
            if (chosen == NULL || (any ? draw(ready) == 0 : stream->priority > chosen->priority)) {
                chosen = stream;
            }
        }
    }
    if (chosen) {
        advance(chosen);
    }
    return chosen != NULL;
}

static void finish_all(void) {
    while (go_on()) {
    }
}

/* Every call begins here: whether it may go on, and what the streams do meanwhile. */
static status begin(const char *name, int needs_context) {
    host_clock += 100;
    if (!initialized) {
        return NOT_INITIALIZED;
    }
    if (needs_context && depth == 0) {
        return INVALID_CONTEXT;
    }
    /* For a while nothing happens, a little, or everything: a slow device, and a fast one. */
    if (draw(64) == 0) {
        pace = draw(3);
    }
    uint64_t steps = pace == 0 ? 0 : pace == 1 ? draw(2) : draw(64);
    while (steps-- > 0 && go_on()) {
    }
    if (fail_with && strcmp(name, fail_name) == 0 && fail_after-- == 0) {
        status with = fail_with;
        fail_with = 0;
        note("refused %s %u\n", name, with);
        if (with == LOST || (with >= ILLEGAL_ADDRESS && with <= LAUNCH_FAILED)) {
            sticky = with;
        }
        return with;
    }
    return sticky;
}

#define BEGIN(name, needs_context) \
    pthread_mutex_lock(&lock);     \
    status outcome = begin(name, needs_context)
#define END                      \
    pthread_mutex_unlock(&lock); \
    return outcome

static int has_stream(const struct stream *wanted) {
    for (struct stream *stream = streams; stream; stream = stream->next) {
        if (stream == wanted) {
            return 1;
        }
    }
    return 0;
}

static int has_event(const struct event *wanted) {
    for (struct event *event = events; event; event = event->next) {
        if (event == wanted) {
            return 1;
        }
    }
    return 0;
}

static status enqueue(struct stream *stream, struct task task) {
    if (!has_stream(stream)) {
        return INVALID_HANDLE;
    }
    struct task *new = malloc(sizeof *new);
    if (new == NULL) {
        return OUT_OF_MEMORY;
    }
    *new = task;
    new->ready = host_clock;
    new->next = NULL;
    if (stream->last) {
        stream->last->next = new;
    } else {
        stream->first = new;
    }
    stream->last = new;
    return SUCCESS;
}

/* ---- The driver's interface ---- */

status cuInit(unsigned flags) {
    pthread_mutex_lock(&lock);
    const char *text = getenv("FAKE_CUDA_SEED");
    if (!initialized && text) {
        seed = strtoull(text, NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
    }
    text = getenv("FAKE_CUDA_MEMORY");
    if (!initialized && text) {
        memory_limit = strtoull(text, NULL, 10);
    }
    initialized = 1;
    status outcome = flags == 0 ? SUCCESS : INVALID_VALUE;
    if (outcome == SUCCESS && fail_with && strcmp(fail_name, "cuInit") == 0) {
        outcome = fail_with;
    }
    END;
}

status cuDeviceGet(int *device, int ordinal) {
    BEGIN("cuDeviceGet", 0);
    if (outcome == SUCCESS) {
        outcome = ordinal >= 0 && ordinal < DEVICES ? SUCCESS : INVALID_DEVICE;
    }
    if (outcome == SUCCESS) {
        *device = ordinal;
    }
    END;
}

status cuDevicePrimaryCtxRetain(void **context, int device) {
    BEGIN("cuDevicePrimaryCtxRetain", 0);
    if (outcome == SUCCESS) {
        outcome = device >= 0 && device < DEVICES ? SUCCESS : INVALID_DEVICE;
    }
    if (outcome == SUCCESS) {
        *context = &contexts[device];
    }
    END;
}

status cuCtxPushCurrent_v2(void *context) {
    BEGIN("cuCtxPushCurrent_v2", 0);
    if (outcome == SUCCESS && depth < DEEPEST) {
        stack[depth++] = context;
    }
    END;
}

status cuCtxPopCurrent_v2(void **context) {
    BEGIN("cuCtxPopCurrent_v2", 0);
    if (depth > 0) {
        *context = stack[--depth];
    } else {
        outcome = INVALID_CONTEXT;
    }
    END;
}

status cuMemAlloc_v2(address *out, size_t bytes) {
    BEGIN("cuMemAlloc_v2", 1);
    if (outcome != SUCCESS) {
        END;
    }
    int device = stack[depth - 1]->device;
    size_t taken = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (bytes == 0) {
        outcome = INVALID_VALUE;
    } else if (taken < bytes || in_use[device] > memory_limit || taken > memory_limit - in_use[device]) {
        outcome = OUT_OF_MEMORY;
    } else {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (taken + page - 1) / page * page;
        int file = memfd_create("device", MFD_CLOEXEC);
        struct range *range = calloc(1, sizeof *range);
        if (file < 0 || range == NULL || ftruncate(file, (off_t)mapped) != 0) {
            abort();
        }
        void *visible = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, file, 0);
        void *shadow = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (visible == MAP_FAILED || shadow == MAP_FAILED) {
            abort();
        }
        memset(shadow, POISON, taken);
        *range = (struct range){(address)visible, taken, mapped, shadow, device, ranges};
        ranges = range;
        in_use[device] += taken;
        peak_use[device] = in_use[device] > peak_use[device] ? in_use[device] : peak_use[device];
        *out = range->start;
        note("allocate %zu at %llx\n", taken, (unsigned long long)range->start);
    }
    END;
}

static void drop_range(struct range *range) {
    munmap((void *)range->start, range->mapped);
    if (range->shadow) {
        munmap(range->shadow, range->mapped);
        in_use[range->device] -= range->bytes;
    }
    free(range);
}

/* As documented, waits for the device. */
static status release(address start, int of_host) {
    for (struct range **at = &ranges; *at; at = &(*at)->next) {
        struct range *range = *at;
        if (range->start == start && (range->shadow == NULL) == of_host) {
            finish_all();
            note("free %zu at %llx\n", range->bytes, (unsigned long long)start);
            *at = range->next;
            drop_range(range);
            return SUCCESS;
        }
    }
    return INVALID_VALUE;
}

status cuMemFree_v2(address start) {
    BEGIN("cuMemFree_v2", 1);
    outcome = outcome ? outcome : release(start, 0);
    END;
}

status cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    BEGIN("cuMemHostAlloc", 1);
    (void)flags;
    if (outcome == SUCCESS) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes + page - 1) / page * page;
        struct range *range = calloc(1, sizeof *range);
        void *start = bytes ? mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
        if (start == MAP_FAILED || range == NULL) {
            free(range);
            outcome = bytes ? OUT_OF_MEMORY : INVALID_VALUE;
        } else {
            memset(start, POISON, bytes);
            *range = (struct range){(address)start, bytes, mapped, NULL, -1, ranges};
            ranges = range;
            *out = start;
        }
    }
    END;
}

status cuMemFreeHost(void *start) {
    BEGIN("cuMemFreeHost", 1);
    outcome = outcome ? outcome : release((address)start, 1);
    END;
}

status cuStreamCreate(struct stream **out, unsigned flags) {
    BEGIN("cuStreamCreate", 1);
    struct stream *stream = outcome == SUCCESS ? calloc(1, sizeof *stream) : NULL;
    (void)flags;
    if (stream) {
        stream->device = stack[depth - 1]->device;
        stream->number = stream_count++;
        stream->priority = draw(1 << 20);
        stream->next = streams;
        streams = *out = stream;
    }
    END;
}

status cuStreamDestroy_v2(struct stream *stream) {
    BEGIN("cuStreamDestroy_v2", 1);
    if (!has_stream(stream)) {
        outcome = outcome ? outcome : INVALID_HANDLE;
        END;
    }
    while (stream->first && go_on()) {
    }
    for (struct stream **at = &streams; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            free(stream);
            break;
        }
    }
    END;
}

status cuStreamSynchronize(struct stream *stream) {
    BEGIN("cuStreamSynchronize", 1);
    outcome = outcome ? outcome : has_stream(stream) ? SUCCESS : INVALID_HANDLE;
    while (outcome == SUCCESS && stream->first && go_on()) {
    }
    if (outcome == SUCCESS) {
        host_clock = later(host_clock, stream->clock);
        outcome = sticky;
    }
    END;
}

status cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
    BEGIN("cuStreamWaitEvent", 1);
    (void)flags;
    outcome = outcome ? outcome : has_event(event) ? SUCCESS : INVALID_HANDLE;
    /* An event that was never recorded delays nothing. */
    if (outcome == SUCCESS && event->issued > 0) {
        outcome = enqueue(stream, (struct task){.kind = WAIT, .name = "wait", .event = event, .generation = event->issued});
    }
    END;
}

status cuEventCreate(struct event **out, unsigned flags) {
    BEGIN("cuEventCreate", 1);
    struct event *event = outcome == SUCCESS ? calloc(1, sizeof *event) : NULL;
    if (event) {
        event->timing = (flags & 2) == 0;
        event->next = events;
        events = *out = event;
    }
    END;
}

/* The event stays in the list: tasks may still name it. */
status cuEventDestroy_v2(struct event *event) {
    BEGIN("cuEventDestroy_v2", 1);
    if (outcome == SUCCESS && (!has_event(event) || event->dropped)) {
        outcome = INVALID_HANDLE;
    }
    if (outcome == SUCCESS) {
        event->dropped = 1;
    }
    END;
}

status cuEventRecord(struct event *event, struct stream *stream) {
    BEGIN("cuEventRecord", 1);
    outcome = outcome ? outcome : has_event(event) && !event->dropped ? SUCCESS : INVALID_HANDLE;
    if (outcome == SUCCESS) {
        event->issued++;
        outcome = enqueue(stream, (struct task){.kind = RECORD, .name = "record", .event = event, .generation = event->issued});
    }
    END;
}

status cuEventQuery(struct event *event) {
    BEGIN("cuEventQuery", 1);
    outcome = outcome ? outcome : has_event(event) ? SUCCESS : INVALID_HANDLE;
    if (outcome == SUCCESS && event->reached < event->issued) {
        outcome = NOT_READY;
    }
    END;
}

status cuEventSynchronize(struct event *event) {
    BEGIN("cuEventSynchronize", 1);
    outcome = outcome ? outcome : has_event(event) ? SUCCESS : INVALID_HANDLE;
    uint64_t wanted = outcome == SUCCESS ? event->issued : 0;
    while (outcome == SUCCESS && event->reached < wanted && go_on()) {
    }
    if (outcome == SUCCESS) {
        host_clock = later(host_clock, event->time);
        outcome = sticky;
    }
    END;
}

status cuEventElapsedTime(float *millis, struct event *start, struct event *end) {
    BEGIN("cuEventElapsedTime", 1);
    if (outcome == SUCCESS && (!has_event(start) || !has_event(end) || !start->timing || !end->timing)) {
        outcome = INVALID_HANDLE;
    }
    if (outcome == SUCCESS && (start->reached < start->issued || end->reached < end->issued)) {
        outcome = NOT_READY;
    }
    if (outcome == SUCCESS) {
        *millis = ((float)end->time - (float)start->time) / 1e6f;
    }
    END;
}

static status copy(const char *name, struct stream *stream, address to, address from, size_t bytes, int to_host, int from_host) {
    struct range *target = range_of(to, bytes), *source = range_of(from, bytes);
    /* This driver copies between the device and page-locked memory alone. */
    if (target == NULL || source == NULL || (target->shadow == NULL) != to_host || (source->shadow == NULL) != from_host) {
        note("refused %s %llx %llx %zu\n", name, (unsigned long long)to, (unsigned long long)from, bytes);
        return INVALID_VALUE;
    }
    uint64_t rate = to_host || from_host ? copy_rate : 16 * copy_rate;
    return enqueue(stream, (struct task){.kind = COPY, .name = name, .to = to, .from = from, .bytes = bytes, .nanos = bytes / rate + 1});
}

status cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, struct stream *stream) {
    BEGIN("cuMemcpyHtoDAsync_v2", 1);
    outcome = outcome ? outcome : copy("to_device", stream, to, (address)from, bytes, 0, 1);
    END;
}

status cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, struct stream *stream) {
    BEGIN("cuMemcpyDtoHAsync_v2", 1);
    outcome = outcome ? outcome : copy("to_host", stream, (address)to, from, bytes, 1, 0);
    END;
}

status cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, struct stream *stream) {
    BEGIN("cuMemcpyDtoDAsync_v2", 1);
    outcome = outcome ? outcome : copy("within", stream, to, from, bytes, 0, 0);
    END;
}

static status fill(struct stream *stream, address to, unsigned value, unsigned width, size_t bytes) {
    struct range *range = range_of(to, bytes);
    if (range == NULL || range->shadow == NULL) {
        return INVALID_VALUE;
    }
    struct task task = {.kind = FILL, .name = "fill", .to = to, .bytes = bytes, .value = value, .width = width};
    task.nanos = bytes / (16 * copy_rate) + 1;
    return enqueue(stream, task);
}

status cuMemsetD8Async(address to, unsigned char value, size_t count, struct stream *stream) {
    BEGIN("cuMemsetD8Async", 1);
    outcome = outcome ? outcome : fill(stream, to, value, 1, count);
    END;
}

status cuMemsetD32Async(address to, unsigned value, size_t count, struct stream *stream) {
    BEGIN("cuMemsetD32Async", 1);
    outcome = outcome ? outcome : fill(stream, to, value, 4, 4 * count);
    END;
}

status cuGetErrorString(status error, const char **out) {
    static const struct {
        status error;
        const char *text;
    } texts[] = {{INVALID_VALUE, "invalid argument"},
                 {OUT_OF_MEMORY, "out of memory"},
                 {NOT_INITIALIZED, "initialization error"},
                 {LOST, "CUDA-capable device(s) is/are busy or unavailable"},
                 {INVALID_DEVICE, "invalid device ordinal"},
                 {INVALID_CONTEXT, "invalid device context"},
                 {INVALID_HANDLE, "invalid resource handle"},
                 {NOT_READY, "device not ready"},
                 {ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
                 {LAUNCH_FAILED, "unspecified launch failure"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].error == error) {
            *out = texts[i].text;
            return SUCCESS;
        }
    }
    *out = NULL;
    return INVALID_VALUE;
}

/* ---- For tests ---- */

/* Begins again, as after a restart: no memory is allocated, no failure, an empty log, another seed, and this much memory on each device. */
void fake_reset(uint64_t new_seed, size_t memory) {
    pthread_mutex_lock(&lock);
    finish_all();
    while (ranges) {
        struct range *range = ranges;
        ranges = range->next;
        drop_range(range);
    }
    seed = new_seed * 0x9E3779B97F4A7C15ULL + 1;
    draw(1);
    pace = draw(3);
    memory_limit = memory;
    fail_with = sticky = SUCCESS;
    log_bytes = 0;
    for (int device = 0; device < DEVICES; device++) {
        peak_use[device] = in_use[device];
    }
    pthread_mutex_unlock(&lock);
}

/* After `after` successful calls of this name, one fails with this status. Errors of a lost device stay. */
void fake_fail(const char *name, long after, status with) {
    pthread_mutex_lock(&lock);
    snprintf(fail_name, sizeof fail_name, "%s", name);
    fail_after = after;
    fail_with = with;
    pthread_mutex_unlock(&lock);
}

/* A kernel: runs in the order of its stream, and may use `fake_view`. It takes this time by the device's clock. */
status fake_launch(struct stream *stream, void (*kernel)(void *), void *argument, uint64_t nanos) {
    pthread_mutex_lock(&lock);
    status outcome = begin("fake_launch", 0);
    struct task task = {.kind = KERNEL, .name = "kernel", .kernel = kernel, .argument = argument, .nanos = nanos};
    outcome = outcome ? outcome : enqueue(stream, task);
    END;
}

/* Where a kernel reaches bytes of the device; null, and the device is lost, where there are none. */
void *fake_view(address at, size_t bytes) {
    unsigned char *view = reach(at, bytes);
    if (view == NULL) {
        sticky = ILLEGAL_ADDRESS;
    }
    return view;
}

/* Bytes of a device that are allocated, or were at most. */
size_t fake_in_use(int device) { return in_use[device]; }
size_t fake_peak(int device) { return peak_use[device]; }

/* The first `room` bytes of the log; its length. */
size_t fake_log(char *out, size_t room) {
    pthread_mutex_lock(&lock);
    size_t bytes = log_bytes < room ? log_bytes : room;
    if (bytes > 0) {
        memcpy(out, log_text, bytes);
    }
    bytes = log_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}
