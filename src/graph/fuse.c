#include "graph/fuse.h"

const char *fusion_name(enum fusion level) {
    static const char *const names[FUSION_COUNT] = {"none", "paper", "full"};
    return names[level];
}

status graph_fuse(struct graph *graph, enum fusion level, const char *without) {
    (void)graph;
    (void)level;
    (void)without;
    return OK;
}
