/* Places the five buffers of MiniMalloc's example, then with a pin, a gap and capacities. */
#include <elbowroom_pack.h>
#include <stdio.h>

static struct elbowroom_pack_buffer buffer(uint64_t lower, uint64_t upper, uint64_t size) {
    struct elbowroom_pack_buffer made = {lower, upper, size, 1, -1, -1, NULL, 0};
    return made;
}

static void print(const char *title, int result, uint64_t height, const uint64_t *offsets, size_t count) {
    printf("%s: result %d, height %llu, offsets", title, result, (unsigned long long)height);
    for (size_t i = 0; i < count; i++) {
        printf(" %llu", (unsigned long long)offsets[i]);
    }
    printf("%s%s\n", *elbowroom_pack_error() ? "; " : "", elbowroom_pack_error());
}

int main(void) {
    struct elbowroom_pack_buffer buffers[] = {buffer(0, 3, 4), buffer(3, 9, 4), buffer(0, 9, 4), buffer(9, 21, 4), buffer(0, 21, 4)};
    struct elbowroom_pack_options options = {0, 0, 100, 0, 1, NULL};
    uint64_t offsets[5] = {0};
    uint64_t height = 0;
    int result = elbowroom_pack(buffers, 5, &options, offsets, &height);
    print("smallest", result, height, offsets, 0);

    buffers[4].offset = 0;
    result = elbowroom_pack(buffers, 5, &options, offsets, &height);
    print("pinned", result, height, offsets + 4, 1);

    struct elbowroom_pack_gap gap = {3, 9, 0, 2};
    buffers[4].gaps = &gap;
    buffers[4].gap_count = 1;
    options.capacity = 10;
    result = elbowroom_pack(buffers, 5, &options, offsets, &height);
    print("within 10", result, height, offsets, 0);

    options.packer = "none";
    result = elbowroom_pack(buffers, 5, &options, offsets, &height);
    printf("bad input: result %d; %s\n", result, elbowroom_pack_error());
    return 0;
}
