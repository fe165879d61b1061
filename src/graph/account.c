#include "graph/account.h"

const char *op_class_name(enum op_class class) {
    static const char *const names[] = {[CONTRACTION] = "contraction",
                                        [NORMALIZATION] = "normalization",
                                        [ELEMENTWISE] = "elementwise",
                                        [UPDATE] = "update"};
    return names[class];
}

const char *pass_name(enum pass pass) {
    return pass == PASS_FORWARD ? "forward" : pass == PASS_BACKWARD ? "backward" : "update";
}

static struct account_row *row_of(struct account *account, const struct node *node) {
    for (int r = 0; r < account->count; r++)
        if (account->rows[r].op == node->op && account->rows[r].pass == node->pass)
            return &account->rows[r];
    account->rows[account->count] = (struct account_row){.op = node->op, .pass = node->pass};
    return &account->rows[account->count++];
}

/* Bytes of the gradients that a node adds to from the second micro-batch on: what it would read if it always added. */
static double accumulated_bytes(const struct graph *graph, const struct node *node, const struct sizes *sizes) {
    struct node adding = *node;
    double first, later, out;
    adding.attr.add_always = true;
    node_bytes(graph, node, sizes, &first, &out);
    node_bytes(graph, &adding, sizes, &later, &out);
    return later - first;
}

/* The node `first` times as in a step's first micro-batch, and `later` times as in the others. */
static void add_node(struct account *account, const struct graph *graph, const struct sizes *sizes, int number,
                     const double *seconds, int64_t first, int64_t later) {
    const struct node *node = &graph->nodes[number];
    struct account_row *row = row_of(account, node);
    double times = (double)(first + later), in, out, accumulated = accumulated_bytes(graph, node, sizes);
    node_bytes(graph, node, sizes, &in, &out);
    row->count += first + later;
    row->flop += times * node_flop(graph, node, sizes);
    row->bytes_in += times * in + (double)later * accumulated;
    row->bytes_out += times * out;
    row->accumulated += accumulated;
    row->seconds += seconds ? times * seconds[number] : 0;
}

void account_layer(const struct graph *graph, const struct sizes *sizes, const double *seconds, struct account *out) {
    out->count = 0;
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].layer == 0)
            add_node(out, graph, sizes, n, seconds, 1, 0);
}

void account_step(const struct graph *graph, const struct sizes *sizes, int64_t micro_batches, const double *seconds,
                  struct account *out) {
    out->count = 0;
    for (int n = 0; n < graph->node_count; n++)
        add_node(out, graph, sizes, n, seconds, 1, graph->nodes[n].pass == PASS_UPDATE ? 0 : micro_batches - 1);
}

struct account_row account_total(const struct account *account, int class) {
    struct account_row total = {0};
    for (int r = 0; r < account->count; r++) {
        const struct account_row *row = &account->rows[r];
        if (class != ACCOUNT_ALL && (int)op_info(row->op)->kind != class)
            continue;
        total.count += row->count;
        total.flop += row->flop;
        total.bytes_in += row->bytes_in;
        total.bytes_out += row->bytes_out;
        total.accumulated += row->accumulated;
        total.seconds += row->seconds;
    }
    return total;
}

double account_erf_bytes(const struct graph *graph, const struct sizes *sizes) {
    double bytes = 0;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        const struct tensor *first = &graph->tensors[node->out[0]];
        double once = (double)tensor_count(first, sizes) * (double)dtype_size(first->dtype);
        if (node->layer != 0 || node->attr.act != ACT_GELU)
            continue;
        bytes += node->op == OP_linear_act ? once : node->op == OP_linear_dx_act ? 2 * once : 0;
    }
    return bytes;
}

bool account_in_contraction(const struct account_row *row) { return row->op == OP_bias && row->pass == PASS_FORWARD; }

double account_eager_bytes(const struct account *unfused) {
    double bytes = 0;
    for (int r = 0; r < unfused->count; r++) {
        const struct account_row *row = &unfused->rows[r];
        if (!account_in_contraction(row))
            bytes += row->bytes_in + row->bytes_out;
    }
    return bytes;
}
