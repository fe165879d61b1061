#include "graph/checkpoint.h"

#include <stdlib.h>
#include <string.h>

struct rewriter {
    struct graph *graph;
    struct node *nodes; /* the new list */
    int count;
    int *copy; /* [tensors of the old graph] the tensor that stands for it in the layer at hand; -1: itself */
};

static bool of_layer(const struct node *node, enum pass pass, int layer) {
    return node->pass == pass && node->layer == layer;
}

/* Marks what a node reads. */
static void need(const struct node *node, bool *needed) {
    for (int i = 0; i < op_info(node->op)->inputs; i++)
        needed[node->in[i]] = true;
}

static bool gives(const struct node *node, const bool *needed) {
    for (int i = 0; i < op_info(node->op)->outputs; i++)
        if (needed[node->out[i]])
            return true;
    return false;
}

static int copy_of(struct rewriter *r, int tensor) {
    if (r->copy[tensor] < 0) {
        struct tensor like = r->graph->tensors[tensor];
        r->copy[tensor] = graph_tensor(r->graph, TENSOR_ACTIVATION, like.dtype, "1", "%s.again", like.name);
        struct tensor *copy = &r->graph->tensors[r->copy[tensor]];
        copy->rank = like.rank;
        memcpy(copy->dims, like.dims, sizeof copy->dims);
    }
    return r->copy[tensor];
}

static void redirect(const struct rewriter *r, struct node *node) {
    for (int i = 0; i < op_info(node->op)->inputs; i++)
        if (r->copy[node->in[i]] >= 0)
            node->in[i] = r->copy[node->in[i]];
}

/* Copies of the layer's forward nodes that its backward nodes need, directly or not. */
static void make_again(struct rewriter *r, int layer, int tensors) {
    const struct graph *graph = r->graph;
    bool *needed = xcalloc((size_t)tensors, sizeof *needed), *again = xcalloc((size_t)graph->node_count, sizeof *again);
    for (int n = 0; n < graph->node_count; n++)
        if (of_layer(&graph->nodes[n], PASS_BACKWARD, layer))
            need(&graph->nodes[n], needed);
    for (int n = graph->node_count - 1; n >= 0; n--)
        if (of_layer(&graph->nodes[n], PASS_FORWARD, layer) && gives(&graph->nodes[n], needed)) {
            again[n] = true;
            need(&graph->nodes[n], needed);
        }
    for (int n = 0; n < graph->node_count; n++) {
        if (!again[n])
            continue;
        struct node node = graph->nodes[n];
        node.pass = PASS_BACKWARD;
        redirect(r, &node);
        for (int i = 0; i < op_info(node.op)->outputs; i++)
            node.out[i] = copy_of(r, node.out[i]);
        r->nodes[r->count++] = node;
    }
    free(needed);
    free(again);
}

void graph_checkpoint(struct graph *graph) {
    int tensors = graph->tensor_count, layer = -1;
    struct rewriter r = {.graph = graph};
    r.nodes = xmalloc(2 * (size_t)graph->node_count * sizeof *r.nodes);
    r.copy = xmalloc((size_t)tensors * sizeof *r.copy);
    for (int n = 0; n < graph->node_count; n++) {
        struct node node = graph->nodes[n];
        bool backward = node.pass == PASS_BACKWARD && node.layer >= 0;
        if (backward && node.layer != layer) { /* the nodes of a layer stand together */
            layer = node.layer;
            memset(r.copy, -1, (size_t)tensors * sizeof *r.copy);
            make_again(&r, layer, tensors);
        }
        if (backward)
            redirect(&r, &node);
        r.nodes[r.count++] = node;
    }
    free(graph->nodes);
    free(r.copy);
    graph->nodes = r.nodes;
    graph->node_count = r.count;
    graph->node_capacity = r.count;
}
