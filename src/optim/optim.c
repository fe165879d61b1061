#include "optim/optim.h"

static struct attr attributes(const struct optim_config *config) {
    return (struct attr){.epsilon = config->epsilon,
                         .beta1 = config->beta1,
                         .beta2 = config->beta2,
                         .weight_decay = config->weight_decay,
                         .clip = config->clip,
                         .decoupled = config->name != OPTIM_ADAM,
                         .bias_correction = config->bias_correction,
                         .growth_interval = config->growth_interval};
}

static void append(struct graph *graph, const struct attr *attr, enum op op, const int *in, const int *out) {
    graph_node(graph, op, PASS_UPDATE, -1, in, out)->attr = *attr;
}

static void append_lamb(struct graph *graph, const struct attr *attr, const struct optim_tensors *t) {
    int norms = graph_tensor(graph, TENSOR_ACTIVATION, F64, "zs", "optim.norms");
    append(graph, attr, OP_lamb_moments, (int[]){t->norm, t->step, graph->master},
           (int[]){graph->gradients, t->m, t->v, norms});
    append(graph, attr, OP_lamb_apply, (int[]){graph->gradients, norms, t->norm, t->lr_table, t->step},
           (int[]){graph->master, graph->weights});
}

static void append_norm(struct graph *graph, const struct attr *attr, const struct optim_tensors *t) {
    int partial = graph_tensor(graph, TENSOR_ACTIVATION, F64, "z", "optim.partial"), norm = t->norm;
    if (graph->loss_scale >= 0)
        norm = graph_tensor(graph, TENSOR_ACTIVATION, F64, "1", "optim.scaled_norm");
    append(graph, attr, OP_grad_norm, &graph->gradients, (int[]){partial, norm});
    if (graph->loss_scale >= 0)
        append(graph, attr, OP_unscale_norm, (int[]){norm, graph->loss_scale}, &t->norm);
}

status optim_append(struct graph *graph, const struct optim_config *config, struct optim_tensors *out) {
    if (graph->capacity.n[DIM_X] < 1)
        return failed("the learning-rate table has no entries");
    struct attr attr = attributes(config);
    bool scaled = graph->loss_scale >= 0;
    *out = (struct optim_tensors){
        .m = graph_tensor(graph, TENSOR_STATE, F32, "f", "optim.m"),
        .v = graph_tensor(graph, TENSOR_STATE, F32, "f", "optim.v"),
        .step = graph_tensor(graph, TENSOR_STATE, I64, "s", "optim.step"),
        .lr_table = graph_tensor(graph, TENSOR_STATE, F32, "x", "optim.lr_table"),
        .norm = graph_tensor(graph, TENSOR_RESULT, F64, scaled ? "s" : "1", "optim.norm"),
    };
    append_norm(graph, &attr, out);
    if (config->name == OPTIM_LAMB)
        append_lamb(graph, &attr, out);
    else
        append(graph, &attr, OP_adam, (int[]){graph->gradients, out->norm, out->lr_table, out->step},
               (int[]){graph->master, out->m, out->v, graph->weights});
    append(graph, &attr, OP_step_advance, &out->norm, &out->step);
    if (scaled)
        append(graph, &attr, OP_loss_scale_advance, &out->norm, &graph->loss_scale);
    return OK;
}
