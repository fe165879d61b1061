/* Philox4x32-10: a counter-based random generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011). The output is a pure function of key and counter, so any element of a random tensor can be made anywhere,
 * in any order. Everything random in berth is a Philox stream: initial weights, masks, order of samples, dropout. */
#ifndef BERTH_BASE_PHILOX_H
#define BERTH_BASE_PHILOX_H

#include <stdint.h>

struct philox {
    uint32_t word[4];
};

static inline struct philox philox4x32(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct philox){{c0, c1, c2, c3}};
}

/* A sequential stream for host code: `domain` separates uses that share a seed, `stream` counts within one. */
struct random_stream {
    uint64_t seed, stream;
    uint32_t domain, block, used; /* `used` words of `words` are spent */
    struct philox words;
};

enum random_domain { RANDOM_INIT = 1, RANDOM_ORDER, RANDOM_INSTANCES, RANDOM_MASKING, RANDOM_TEST };

struct random_stream random_open(uint64_t seed, enum random_domain domain, uint64_t stream);
uint32_t random_u32(struct random_stream *random);
uint64_t random_below(struct random_stream *random,
                      uint64_t bound);               /* uniform in [0, bound), without bias; bound ≥ 1 */
double random_uniform(struct random_stream *random); /* [0, 1), 53 bits */
double random_normal(struct random_stream *random);  /* mean 0, variance 1 */
/* permutation[0..n) becomes a uniform permutation of 0..n-1 (Fisher and Yates). */
void random_permutation(struct random_stream *random, int64_t n, int64_t *permutation);

#endif
