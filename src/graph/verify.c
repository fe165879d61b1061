/* The verifier: holds every node against its row in op.def. What it finds is a bug of a builder or a pass. */
#include <string.h>

#include "graph/graph.h"

struct verifier {
    const struct graph *graph;
    bool *produced; /* [tensors] */
};

static status operand_fails(const struct verifier *v, const struct node *node, const struct operand_info *operand,
                            int tensor, const char *expected) {
    return failed("graph: node %d (%s), operand %s, tensor %s: %s", (int)(node - v->graph->nodes),
                  op_info(node->op)->name, operand->name, v->graph->tensors[tensor].name, expected);
}

/* Letters to dims, the same letter always the same dim. */
static status bind(const struct verifier *v, const struct node *node, const struct operand_info *operand, int tensor,
                   int *binding) {
    if (tensor < 0 || tensor >= v->graph->tensor_count)
        return failed("graph: node %d (%s): operand %s is not a tensor", (int)(node - v->graph->nodes),
                      op_info(node->op)->name, operand->name);
    const struct tensor *t = &v->graph->tensors[tensor];
    if ((size_t)t->rank != strlen(operand->letters))
        return operand_fails(v, node, operand, tensor, "wrong number of dims");
    for (int i = 0; i < t->rank; i++) {
        int *bound = &binding[(unsigned char)operand->letters[i]];
        if (*bound >= 0 && *bound != (int)t->dims[i])
            return operand_fails(v, node, operand, tensor, "a dim differs from that of another operand");
        *bound = t->dims[i];
    }
    enum dtype want = operand->fixed_dtype ? operand->dtype : v->graph->compute;
    return t->dtype == want ? OK : operand_fails(v, node, operand, tensor, dtype_name(want));
}

static status check_input(const struct verifier *v, const struct node *node, const struct operand_info *operand,
                          int tensor) {
    enum tensor_kind kind = v->graph->tensors[tensor].kind;
    bool there = kind == TENSOR_WEIGHT || kind == TENSOR_INPUT || kind == TENSOR_STATE || v->produced[tensor];
    if (kind == TENSOR_GRADIENT && node->pass == PASS_UPDATE)
        there = true; /* the flat buffer covers what the backward pass wrote piece by piece */
    return there ? OK : operand_fails(v, node, operand, tensor, "is read before anything produced it");
}

static status check_output(const struct verifier *v, const struct node *node, const struct operand_info *operand,
                           int tensor) {
    enum tensor_kind kind = v->graph->tensors[tensor].kind;
    if (kind == TENSOR_WEIGHT || kind == TENSOR_INPUT)
        return operand_fails(v, node, operand, tensor, "is not an operator's to write");
    if (v->produced[tensor] && kind == TENSOR_ACTIVATION)
        return operand_fails(v, node, operand, tensor, "has two producers");
    if (v->produced[tensor] && kind == TENSOR_GRADIENT && node->pass == PASS_BACKWARD && !node->attr.add_always)
        return operand_fails(v, node, operand, tensor, "has a second contribution that is not marked add_always");
    v->produced[tensor] = true;
    return OK;
}

static status check_node(const struct verifier *v, const struct node *node) {
    const struct op_info *info = op_info(node->op);
    int binding[256];
    memset(binding, -1, sizeof binding);
    for (int i = 0; i < info->inputs; i++) {
        TRY(bind(v, node, &info->in[i], node->in[i], binding));
        TRY(check_input(v, node, &info->in[i], node->in[i]));
    }
    for (int i = 0; i < info->outputs; i++) {
        TRY(bind(v, node, &info->out[i], node->out[i], binding));
        TRY(check_output(v, node, &info->out[i], node->out[i]));
    }
    return OK;
}

/* Every parameter must get a gradient, or the optimizer would read what nobody wrote. */
static status check_gradients(const struct verifier *v) {
    bool backward = false;
    for (int n = 0; n < v->graph->node_count; n++)
        backward |= v->graph->nodes[n].pass == PASS_BACKWARD;
    for (int t = 0; backward && t < v->graph->tensor_count; t++) {
        const struct tensor *tensor = &v->graph->tensors[t];
        if (tensor->kind == TENSOR_GRADIENT && t != v->graph->gradients && !v->produced[t])
            return failed("graph: no operator produces %s", tensor->name);
    }
    return OK;
}

status graph_verify(const struct graph *graph) {
    struct verifier v = {graph, xcalloc((size_t)graph->tensor_count, sizeof(bool))};
    status code = OK;
    for (int n = 0; n < graph->node_count && code == OK; n++)
        code = check_node(&v, &graph->nodes[n]);
    if (code == OK)
        code = check_gradients(&v);
    memory_free(v.produced);
    return code;
}
