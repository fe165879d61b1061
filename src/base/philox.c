#include "base/philox.h"

#include <math.h>

struct random_stream random_open(uint64_t seed, enum random_domain domain, uint64_t stream) {
    return (struct random_stream){.seed = seed, .stream = stream, .domain = domain, .used = 4};
}

uint32_t random_u32(struct random_stream *random) {
    if (random->used == 4) {
        random->words = philox4x32(random->seed, random->block++, random->domain, (uint32_t)random->stream,
                                   (uint32_t)(random->stream >> 32));
        random->used = 0;
    }
    return random->words.word[random->used++];
}

static uint64_t random_u64(struct random_stream *random) {
    uint64_t high = random_u32(random);
    return high << 32 | random_u32(random);
}

uint64_t random_below(struct random_stream *random, uint64_t bound) {
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound; /* the largest multiple of bound: above it, draw again */
    uint64_t value;
    do
        value = random_u64(random);
    while (value >= limit);
    return value % bound;
}

double random_uniform(struct random_stream *random) { return (double)(random_u64(random) >> 11) * 0x1p-53; }

double random_normal(struct random_stream *random) {
    double u = 1.0 - random_uniform(random), v = random_uniform(random); /* u in (0, 1] */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

void random_permutation(struct random_stream *random, int64_t n, int64_t *permutation) {
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)random_below(random, (uint64_t)i + 1);
        permutation[i] = permutation[j];
        permutation[j] = i;
    }
}
