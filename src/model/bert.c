#include "model/bert.h"

#include <math.h>
#include <string.h>

#include "base/philox.h"

/* FNV-1a: a parameter's own random stream, whatever stands before it in the table. */
static uint64_t hash_name(const char *name) {
    uint64_t hash = 14695981039346656037u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash;
}

static float truncated_normal(struct random_stream *random, double deviation) {
    double value;
    do
        value = random_normal(random);
    while (fabs(value) > 2);
    return (float)(value * deviation);
}

void bert_init_parameter(const struct bert_config *config, const struct parameter *parameter, uint64_t seed,
                         float *values) {
    int64_t count = parameter->rows * parameter->columns, in_file = parameter->file_rows * parameter->columns;
    struct random_stream random = random_open(seed, RANDOM_INIT, hash_name(parameter->name));
    memset(values, 0, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < in_file && parameter->init != INIT_ZERO; i++)
        values[i] = parameter->init == INIT_ONE ? 1 : truncated_normal(&random, config->initializer_range);
}

double bert_flop(const struct bert_config *config, int64_t length, int64_t masked) {
    double i = (double)config->hidden_size, u = (double)config->intermediate_size, n = (double)length;
    double layers = (double)config->num_hidden_layers;
    double encoder = layers * (4 * i * i + 2 * i * u);
    double heads = (double)masked * (i * i + i * (double)config->vocab_size) + (config->nsp ? i * i + 2 * i : 0);
    return 6 * encoder * n + 12 * layers * i * n * n + 6 * heads;
}
