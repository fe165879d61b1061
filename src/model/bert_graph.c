/* The training step of BERT, operator by operator, as an eager framework would run it: what the fusion passes start
 * from. Forward functions return the tensor they produce and note in a struct what their backward twin, which stands
 * below them, will read. */
#include <stdio.h>
#include <stdlib.h>

#include "model/bert.h"

struct dense {
    int weight, bias; /* parameters */
    int x;            /* [.,k] input */
};

struct norm {
    int gamma, beta;   /* parameters */
    int x, mean, rstd; /* [.,i] input; [.] statistics */
};

struct layer {
    struct dense query, key, value, output, up, down;
    struct norm attention_norm, output_norm;
    int q, k, v;                     /* [t,i] */
    int probabilities, dropped;      /* [h,e] before and after dropout */
    int probabilities_mask;          /* [h,e] u8; the masks are -1 where there is no dropout */
    int attention_mask, output_mask; /* [t,i] u8 */
    int up_out;                      /* [t,u] before the activation */
};

struct builder {
    struct graph *graph;
    const struct bert_config *config;
    struct bert_tensors *tensors;
    enum pass pass;
    int layer;                /* -1 outside the encoder */
    int word, position, type; /* parameters of the embeddings */
    struct norm embedding_norm;
    int embedding_mask;
    struct layer *layers;
    struct dense transform, pooler, nsp; /* of the heads */
    struct norm transform_norm;
    int decoder_bias, transform_out, decoder_in; /* decoder_bias: parameter; [m,i] before the activation; [m,i] */
    int pooler_out, mlm_lse, nsp_lse;            /* [b,i] before tanh; [m]; [b] */
};

static int activation(struct builder *b, const char *letters, const char *name) {
    return b->layer < 0
               ? graph_tensor(b->graph, TENSOR_ACTIVATION, b->graph->compute, letters, "%s", name)
               : graph_tensor(b->graph, TENSOR_ACTIVATION, b->graph->compute, letters, "layer.%d.%s", b->layer, name);
}

static int typed(struct builder *b, enum dtype dtype, const char *letters, const char *name) {
    int tensor = activation(b, letters, name);
    b->graph->tensors[tensor].dtype = dtype;
    return tensor;
}

static int weight_of(const struct builder *b, int parameter) { return b->graph->parameters[parameter].weight; }

static int gradient_of(const struct builder *b, int parameter) { return b->graph->parameters[parameter].gradient; }

static struct node *emit(struct builder *b, enum op op, const int *in, const int *out) {
    return graph_node(b->graph, op, b->pass, b->layer, in, out);
}

/* An operator with up to three inputs and one activation as output. */
static int apply(struct builder *b, enum op op, const char *letters, const char *name, int x, int y, int z) {
    int out = activation(b, letters, name);
    emit(b, op, (int[]){x, y, z}, &out);
    return out;
}

static struct node *last_node(struct builder *b) { return &b->graph->nodes[b->graph->node_count - 1]; }

/* "te" for row dim t and the dim of a weight's rows or columns. */
static const char *letters_of(char row, enum dim column, char letters[3]) {
    letters[0] = row;
    letters[1] = dim_letter(column);
    letters[2] = 0;
    return letters;
}

static char row_letter(const struct builder *b, int tensor) { return dim_letter(b->graph->tensors[tensor].dims[0]); }

/* --- dense: y = x w^T + bias --- */

static int dense_forward(struct builder *b, struct dense *dense, int x, const char *name) {
    char letters[3], product[64];
    snprintf(product, sizeof product, "%s.product", name);
    letters_of(row_letter(b, x), b->graph->parameters[dense->weight].dims[0], letters);
    dense->x = x;
    int y = apply(b, OP_linear, letters, product, x, weight_of(b, dense->weight), -1);
    return apply(b, OP_bias, letters, name, y, weight_of(b, dense->bias), -1);
}

static int dense_backward(struct builder *b, const struct dense *dense, int dy, const char *name) {
    char letters[3];
    int gradient = gradient_of(b, dense->weight), bias = gradient_of(b, dense->bias);
    letters_of(row_letter(b, dy), b->graph->parameters[dense->weight].dims[1], letters);
    emit(b, OP_bias_dw, &dy, &bias);
    emit(b, OP_linear_dw, (int[]){dy, dense->x}, &gradient);
    return apply(b, OP_linear_dx, letters, name, dy, weight_of(b, dense->weight), -1);
}

/* --- LayerNorm --- */

static int norm_forward(struct builder *b, struct norm *norm, int x, const char *name) {
    char letters[3] = {row_letter(b, x), 'i', 0}, row[2] = {letters[0], 0}, statistics[64];
    int out[3] = {activation(b, letters, name)};
    snprintf(statistics, sizeof statistics, "%s.mean", name);
    out[1] = typed(b, F32, row, statistics);
    snprintf(statistics, sizeof statistics, "%s.rstd", name);
    out[2] = typed(b, F32, row, statistics);
    norm->x = x;
    norm->mean = out[1];
    norm->rstd = out[2];
    struct node *node = emit(b, OP_layernorm, (int[]){x, weight_of(b, norm->gamma), weight_of(b, norm->beta)}, out);
    node->attr.epsilon = b->config->layer_norm_eps;
    return out[0];
}

static int norm_backward(struct builder *b, const struct norm *norm, int dy, const char *name) {
    char letters[3] = {row_letter(b, dy), 'i', 0};
    int out[2] = {gradient_of(b, norm->gamma), gradient_of(b, norm->beta)}, dx;
    emit(b, OP_layernorm_dw, (int[]){dy, norm->x, norm->mean, norm->rstd}, out);
    dx = activation(b, letters, name);
    emit(b, OP_layernorm_dx, (int[]){dy, norm->x, norm->mean, norm->rstd, weight_of(b, norm->gamma)}, &dx);
    return dx;
}

/* --- dropout; sites: 0 embeddings, then three a layer --- */

enum { SITE_EMBEDDING = 0, SITE_PROBABILITIES = 1, SITE_ATTENTION = 2, SITE_OUTPUT = 3, SITES_A_LAYER = 3 };

static int dropout_forward(struct builder *b, enum op op, int site, double probability, int x, int *mask,
                           const char *name) {
    *mask = -1;
    if (probability == 0)
        return x;
    const char *letters = op == OP_attn_dropout ? "he" : "ti";
    char mask_name[64];
    snprintf(mask_name, sizeof mask_name, "%s.mask", name);
    int out[2] = {activation(b, letters, name), typed(b, U8, letters, mask_name)};
    struct node *node = emit(b, op, &x, out);
    node->attr.probability = (float)probability;
    node->attr.site = (uint32_t)(b->layer < 0 ? site : SITES_A_LAYER * b->layer + site);
    *mask = out[1];
    return out[0];
}

static int dropout_backward(struct builder *b, enum op op, double probability, int dy, int mask, const char *name) {
    if (mask < 0)
        return dy;
    int dx = apply(b, op, op == OP_attn_dropout_dx ? "he" : "ti", name, dy, mask, -1);
    last_node(b)->attr.probability = (float)probability;
    return dx;
}

static int act_forward(struct builder *b, enum activation act, const char *letters, const char *name, int x) {
    int y = apply(b, OP_act, letters, name, x, -1, -1);
    last_node(b)->attr.act = act;
    return y;
}

static int act_backward(struct builder *b, enum activation act, const char *letters, const char *name, int x, int dy) {
    int dx = apply(b, OP_act_dx, letters, name, x, dy, -1);
    last_node(b)->attr.act = act;
    return dx;
}

/* --- embeddings --- */

static int embedding_forward(struct builder *b) {
    const struct bert_tensors *in = b->tensors;
    int word = apply(b, OP_gather, "ti", "embedding.word", weight_of(b, b->word), in->ids, -1);
    int position = apply(b, OP_gather, "ti", "embedding.position", weight_of(b, b->position), in->positions, -1);
    int type = apply(b, OP_gather, "ti", "embedding.type", weight_of(b, b->type), in->types, -1);
    int sum = apply(b, OP_add, "ti", "embedding.word_position", word, position, -1);
    sum = apply(b, OP_add, "ti", "embedding.sum", sum, type, -1);
    int y = norm_forward(b, &b->embedding_norm, sum, "embedding.norm");
    return dropout_forward(b, OP_dropout, SITE_EMBEDDING, b->config->hidden_dropout_prob, y, &b->embedding_mask,
                           "embedding.dropout");
}

static void embedding_backward(struct builder *b, int dy) {
    const struct bert_tensors *in = b->tensors;
    dy = dropout_backward(b, OP_dropout_dx, b->config->hidden_dropout_prob, dy, b->embedding_mask,
                          "d.embedding.dropout");
    dy = norm_backward(b, &b->embedding_norm, dy, "d.embedding.sum");
    int word = gradient_of(b, b->word), position = gradient_of(b, b->position), type = gradient_of(b, b->type);
    /* the tied decoder's contribution came first */
    emit(b, OP_embed_dw, (int[]){dy, in->word_order, in->ids}, &word)->attr.add_always = true;
    emit(b, OP_embed_dw, (int[]){dy, in->position_order, in->positions}, &position);
    emit(b, OP_embed_dw, (int[]){dy, in->type_order, in->types}, &type);
}

/* --- encoder layer --- */

static int scale_scores(struct builder *b, int x, const char *name) {
    double head_size = (double)b->config->hidden_size / (double)b->config->num_attention_heads;
    int y = apply(b, OP_attn_scale, "he", name, x, -1, -1);
    last_node(b)->attr.scale = (float)(1.0 / __builtin_sqrt(head_size));
    return y;
}

static int attention_forward(struct builder *b, struct layer *layer, int x) {
    const struct bert_config *config = b->config;
    layer->q = dense_forward(b, &layer->query, x, "query");
    layer->k = dense_forward(b, &layer->key, x, "key");
    layer->v = dense_forward(b, &layer->value, x, "value");
    int scores = apply(b, OP_attn_scores, "he", "scores", layer->q, layer->k, -1);
    scores = scale_scores(b, scores, "scaled_scores");
    scores = apply(b, OP_attn_mask, "he", "masked_scores", scores, b->tensors->attention_mask, -1);
    layer->probabilities = apply(b, OP_softmax, "he", "probabilities", scores, -1, -1);
    layer->dropped = dropout_forward(b, OP_attn_dropout, SITE_PROBABILITIES, config->attention_probs_dropout_prob,
                                     layer->probabilities, &layer->probabilities_mask, "probabilities.dropout");
    int context = apply(b, OP_attn_context, "ti", "context", layer->dropped, layer->v, -1);
    int y = dense_forward(b, &layer->output, context, "attention");
    y = dropout_forward(b, OP_dropout, SITE_ATTENTION, config->hidden_dropout_prob, y, &layer->attention_mask,
                        "attention.dropout");
    y = apply(b, OP_add, "ti", "attention.residual", y, x, -1);
    return norm_forward(b, &layer->attention_norm, y, "attention.norm");
}

static int attention_backward(struct builder *b, const struct layer *layer, int dy) {
    const struct bert_config *config = b->config;
    int d_residual = norm_backward(b, &layer->attention_norm, dy, "d.attention.residual");
    int d = dropout_backward(b, OP_dropout_dx, config->hidden_dropout_prob, d_residual, layer->attention_mask,
                             "d.attention.dropout");
    int d_context = dense_backward(b, &layer->output, d, "d.context");
    int dp = apply(b, OP_attn_context_dp, "he", "d.probabilities.dropout", d_context, layer->v, -1);
    int dv = apply(b, OP_attn_context_dv, "ti", "d.value", layer->dropped, d_context, -1);
    dp = dropout_backward(b, OP_attn_dropout_dx, config->attention_probs_dropout_prob, dp, layer->probabilities_mask,
                          "d.probabilities");
    int ds = apply(b, OP_softmax_dx, "he", "d.scaled_scores", dp, layer->probabilities, -1);
    ds = scale_scores(b, ds, "d.scores");
    int dq = apply(b, OP_attn_scores_dq, "ti", "d.query", ds, layer->k, -1);
    int dk = apply(b, OP_attn_scores_dk, "ti", "d.key", ds, layer->q, -1);
    int dx = dense_backward(b, &layer->query, dq, "d.query.input");
    dx = apply(b, OP_add, "ti", "d.input.query", dx, d_residual, -1);
    int dx_key = dense_backward(b, &layer->key, dk, "d.key.input");
    dx = apply(b, OP_add, "ti", "d.input.key", dx, dx_key, -1);
    int dx_value = dense_backward(b, &layer->value, dv, "d.value.input");
    return apply(b, OP_add, "ti", "d.input", dx, dx_value, -1);
}

static int feed_forward(struct builder *b, struct layer *layer, int x) {
    layer->up_out = dense_forward(b, &layer->up, x, "up");
    int y = act_forward(b, b->config->hidden_act, "tu", "activation", layer->up_out);
    y = dense_forward(b, &layer->down, y, "down");
    y = dropout_forward(b, OP_dropout, SITE_OUTPUT, b->config->hidden_dropout_prob, y, &layer->output_mask,
                        "output.dropout");
    y = apply(b, OP_add, "ti", "output.residual", y, x, -1);
    return norm_forward(b, &layer->output_norm, y, "output.norm");
}

static int feed_backward(struct builder *b, const struct layer *layer, int dy) {
    int d_residual = norm_backward(b, &layer->output_norm, dy, "d.output.residual");
    int d = dropout_backward(b, OP_dropout_dx, b->config->hidden_dropout_prob, d_residual, layer->output_mask,
                             "d.output.dropout");
    d = dense_backward(b, &layer->down, d, "d.activation");
    d = act_backward(b, b->config->hidden_act, "tu", "d.up", layer->up_out, d);
    d = dense_backward(b, &layer->up, d, "d.up.input");
    return apply(b, OP_add, "ti", "d.attention.norm", d, d_residual, -1);
}

/* --- heads --- */

static void loss_forward(struct builder *b, int logits, int labels, int64_t classes, const char *row, int *lse,
                         int *sums, const char *name) {
    char tensor[64];
    snprintf(tensor, sizeof tensor, "%s.lse", name);
    int out[3] = {typed(b, F32, row, tensor)};
    snprintf(tensor, sizeof tensor, "%s.loss", name);
    out[1] = typed(b, F32, row, tensor);
    snprintf(tensor, sizeof tensor, "%s.hit", name);
    out[2] = typed(b, I32, row, tensor);
    emit(b, OP_xent, (int[]){logits, labels}, out)->attr.classes = classes;
    *lse = out[0];
    *sums = graph_tensor(b->graph, TENSOR_RESULT, F64, "s", "%s.sums", name);
    emit(b, OP_loss_sum, &out[1], sums);
}

static int loss_backward(struct builder *b, int logits, int lse, int labels, int scale, int64_t classes,
                         const char *letters, const char *name) {
    if (b->graph->loss_scale >= 0) {
        const int factors[] = {scale, b->graph->loss_scale};
        scale = typed(b, F32, "1", "d.loss");
        emit(b, OP_scale_loss, factors, &scale);
    }
    int d = activation(b, letters, name);
    emit(b, OP_xent_dx, (int[]){logits, lse, labels, scale}, &d)->attr.classes = classes;
    return d;
}

static void mlm_forward(struct builder *b, int encoded) {
    struct bert_tensors *io = b->tensors;
    int x = apply(b, OP_gather, "mi", "mlm.masked", encoded, io->masked_rows, -1);
    b->transform_out = dense_forward(b, &b->transform, x, "mlm.transform");
    x = act_forward(b, b->config->hidden_act, "mi", "mlm.activation", b->transform_out);
    b->decoder_in = norm_forward(b, &b->transform_norm, x, "mlm.norm");
    x = apply(b, OP_linear, "mv", "mlm.logits.product", b->decoder_in, weight_of(b, b->word), -1);
    io->mlm_logits = apply(b, OP_bias, "mv", "mlm.logits", x, weight_of(b, b->decoder_bias), -1);
    loss_forward(b, io->mlm_logits, io->masked_labels, b->config->vocab_size, "m", &b->mlm_lse, &io->mlm_sums, "mlm");
}

static int mlm_backward(struct builder *b) {
    struct bert_tensors *io = b->tensors;
    int word = gradient_of(b, b->word), bias = gradient_of(b, b->decoder_bias);
    int d = loss_backward(b, io->mlm_logits, b->mlm_lse, io->masked_labels, io->mlm_scale, b->config->vocab_size, "mv",
                          "d.mlm.logits");
    emit(b, OP_bias_dw, &d, &bias);
    emit(b, OP_linear_dw, (int[]){d, b->decoder_in}, &word);
    d = apply(b, OP_linear_dx, "mi", "d.mlm.norm", d, weight_of(b, b->word), -1);
    d = norm_backward(b, &b->transform_norm, d, "d.mlm.activation");
    d = act_backward(b, b->config->hidden_act, "mi", "d.mlm.transform", b->transform_out, d);
    d = dense_backward(b, &b->transform, d, "d.mlm.masked");
    return apply(b, OP_scatter_rows, "ti", "d.encoded.mlm", d, io->masked_rows, -1);
}

static void nsp_forward(struct builder *b, int encoded) {
    struct bert_tensors *io = b->tensors;
    int x = apply(b, OP_gather, "bi", "nsp.first", encoded, io->first_rows, -1);
    b->pooler_out = dense_forward(b, &b->pooler, x, "nsp.pooler");
    x = act_forward(b, ACT_TANH, "bi", "nsp.pooled", b->pooler_out);
    io->nsp_logits = dense_forward(b, &b->nsp, x, "nsp.logits");
    loss_forward(b, io->nsp_logits, io->nsp_labels, 2, "b", &b->nsp_lse, &io->nsp_sums, "nsp");
}

static int nsp_backward(struct builder *b) {
    struct bert_tensors *io = b->tensors;
    int d = loss_backward(b, io->nsp_logits, b->nsp_lse, io->nsp_labels, io->nsp_scale, 2, "bn", "d.nsp.logits");
    d = dense_backward(b, &b->nsp, d, "d.nsp.pooled");
    d = act_backward(b, ACT_TANH, "bi", "d.nsp.pooler", b->pooler_out, d);
    d = dense_backward(b, &b->pooler, d, "d.nsp.first");
    return apply(b, OP_scatter_rows, "ti", "d.encoded.nsp", d, io->first_rows, -1);
}

/* --- parameters, in the order of the flat buffers --- */

static struct norm norm_parameters(struct builder *b, const char *prefix) {
    struct norm norm = {0};
    norm.gamma = graph_parameter(b->graph, "i", INIT_ONE, false, "%s.LayerNorm.weight", prefix);
    norm.beta = graph_parameter(b->graph, "i", INIT_ZERO, false, "%s.LayerNorm.bias", prefix);
    return norm;
}

static struct dense dense_parameters(struct builder *b, const char *letters, const char *name) {
    struct dense dense = {0};
    char row[2] = {letters[0], 0};
    dense.weight = graph_parameter(b->graph, letters, INIT_NORMAL, true, "%s.weight", name);
    dense.bias = graph_parameter(b->graph, row, INIT_ZERO, false, "%s.bias", name);
    return dense;
}

static void layer_parameters(struct builder *b, struct layer *layer) {
    struct graph *graph = b->graph;
    char prefix[64], name[128];
    snprintf(prefix, sizeof prefix, "bert.encoder.layer.%d", (int)(layer - b->layers));
    /* the three weights, and the three biases, lie side by side: stacked, they are one operand */
    struct dense *stacked[] = {&layer->query, &layer->key, &layer->value};
    static const char *const part[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++)
        stacked[i]->weight =
            graph_parameter(graph, "ii", INIT_NORMAL, true, "%s.attention.self.%s.weight", prefix, part[i]);
    for (int i = 0; i < 3; i++)
        stacked[i]->bias = graph_parameter(graph, "i", INIT_ZERO, false, "%s.attention.self.%s.bias", prefix, part[i]);
    snprintf(name, sizeof name, "%s.attention.output.dense", prefix);
    layer->output = dense_parameters(b, "ii", name);
    snprintf(name, sizeof name, "%s.attention.output", prefix);
    layer->attention_norm = norm_parameters(b, name);
    snprintf(name, sizeof name, "%s.intermediate.dense", prefix);
    layer->up = dense_parameters(b, "ui", name);
    snprintf(name, sizeof name, "%s.output.dense", prefix);
    layer->down = dense_parameters(b, "iu", name);
    snprintf(name, sizeof name, "%s.output", prefix);
    layer->output_norm = norm_parameters(b, name);
}

static void all_parameters(struct builder *b) {
    struct graph *graph = b->graph;
    b->word = graph_parameter(graph, "vi", INIT_NORMAL, true, "bert.embeddings.word_embeddings.weight");
    graph->parameters[b->word].file_rows = b->config->vocab_size;
    b->position = graph_parameter(graph, "li", INIT_NORMAL, true, "bert.embeddings.position_embeddings.weight");
    b->type = graph_parameter(graph, "yi", INIT_NORMAL, true, "bert.embeddings.token_type_embeddings.weight");
    b->embedding_norm = norm_parameters(b, "bert.embeddings");
    for (int i = 0; i < b->config->num_hidden_layers; i++)
        layer_parameters(b, &b->layers[i]);
    if (b->config->nsp)
        b->pooler = dense_parameters(b, "ii", "bert.pooler.dense");
    b->decoder_bias = graph_parameter(graph, "v", INIT_ZERO, false, "cls.predictions.bias");
    graph->parameters[b->decoder_bias].file_rows = b->config->vocab_size;
    b->transform = dense_parameters(b, "ii", "cls.predictions.transform.dense");
    b->transform_norm = norm_parameters(b, "cls.predictions.transform");
    if (b->config->nsp)
        b->nsp = dense_parameters(b, "ni", "cls.seq_relationship");
    graph_close_parameters(graph);
}

static int input(struct builder *b, enum dtype dtype, const char *letters, const char *name) {
    return graph_tensor(b->graph, TENSOR_INPUT, dtype, letters, "%s", name);
}

static void all_inputs(struct builder *b) {
    bool nsp = b->config->nsp;
    *b->tensors = (struct bert_tensors){
        .ids = input(b, I32, "t", "ids"),
        .positions = input(b, I32, "t", "positions"),
        .types = input(b, I32, "t", "types"),
        .word_order = input(b, I32, "t", "word_order"),
        .position_order = input(b, I32, "t", "position_order"),
        .type_order = input(b, I32, "t", "type_order"),
        .masked_rows = input(b, I32, "m", "masked_rows"),
        .masked_labels = input(b, I32, "m", "masked_labels"),
        .first_rows = nsp ? input(b, I32, "b", "first_rows") : -1,
        .nsp_labels = nsp ? input(b, I32, "b", "nsp_labels") : -1,
        .attention_mask = input(b, F32, "t", "attention_mask"),
        .mlm_scale = input(b, F32, "1", "mlm_scale"),
        .nsp_scale = nsp ? input(b, F32, "1", "nsp_scale") : -1,
        .nsp_sums = -1,
        .nsp_logits = -1,
    };
}

static void build_forward(struct builder *b) {
    b->pass = PASS_FORWARD;
    int x = embedding_forward(b);
    for (b->layer = 0; b->layer < b->config->num_hidden_layers; b->layer++) {
        x = attention_forward(b, &b->layers[b->layer], x);
        x = feed_forward(b, &b->layers[b->layer], x);
    }
    b->layer = -1;
    mlm_forward(b, x);
    if (b->config->nsp)
        nsp_forward(b, x);
}

static void build_backward(struct builder *b) {
    b->pass = PASS_BACKWARD;
    int d = mlm_backward(b);
    if (b->config->nsp)
        d = apply(b, OP_add, "ti", "d.encoded", d, nsp_backward(b), -1);
    for (b->layer = (int)b->config->num_hidden_layers - 1; b->layer >= 0; b->layer--) {
        d = feed_backward(b, &b->layers[b->layer], d);
        d = attention_backward(b, &b->layers[b->layer], d);
    }
    embedding_backward(b, d);
}

/* So many that the table's gradient, which each block reads and writes, costs less than the block's products; of BERT's
 * vocabulary they take 62 MB in 16 bits. */
enum { LOGIT_ROWS = 1024 };

static struct sizes capacity_of(const struct bert_config *config, const struct bert_shape *shape) {
    struct sizes sizes = {0};
    sizes_set_ragged(&sizes, DIM_T, shape->sequences * shape->seq_len);
    sizes_set_ragged(&sizes, DIM_M, shape->sequences * shape->max_predictions);
    sizes_set_ragged(&sizes, DIM_B,
                     shape->short_sequences > shape->sequences ? shape->short_sequences : shape->sequences);
    sizes_set_ragged(&sizes, DIM_E, shape->sequences * shape->seq_len * shape->seq_len);
    sizes_set(&sizes, DIM_I, config->hidden_size);
    sizes_set(&sizes, DIM_U, config->intermediate_size);
    sizes_set(&sizes, DIM_V, (config->vocab_size + 63) / 64 * 64);
    sizes_set(&sizes, DIM_W, sizes.padded[DIM_M] < LOGIT_ROWS ? sizes.padded[DIM_M] : LOGIT_ROWS);
    sizes_set(&sizes, DIM_L, config->max_position_embeddings);
    sizes_set(&sizes, DIM_Y, config->type_vocab_size);
    sizes_set(&sizes, DIM_N, 2);
    sizes_set(&sizes, DIM_H, config->num_attention_heads);
    sizes_set(&sizes, DIM_Q, 3);
    return sizes;
}

static status check_config(const struct bert_config *config, const struct bert_shape *shape) {
    if (config->num_attention_heads < 1 || config->hidden_size % config->num_attention_heads)
        return bad_input("model.hidden_size = %lld is not a multiple of model.num_attention_heads = %lld",
                         (long long)config->hidden_size, (long long)config->num_attention_heads);
    if (shape->seq_len > config->max_position_embeddings)
        return bad_input("sequences of %lld tokens do not fit model.max_position_embeddings = %lld",
                         (long long)shape->seq_len, (long long)config->max_position_embeddings);
    if (shape->sequences * shape->seq_len > INT32_MAX)
        return bad_input("a micro-batch of %lld sequences of %lld tokens has more than 2^31 tokens",
                         (long long)shape->sequences, (long long)shape->seq_len);
    return OK;
}

status bert_build(const struct bert_config *config, const struct bert_shape *shape, enum dtype compute,
                  struct graph **out, struct bert_tensors *tensors) {
    *out = NULL;
    TRY(check_config(config, shape));
    struct sizes capacity = capacity_of(config, shape);
    struct builder b = {.graph = graph_new(compute, &capacity), .config = config, .tensors = tensors, .layer = -1};
    b.layers = xcalloc((size_t)config->num_hidden_layers, sizeof *b.layers);
    all_parameters(&b);
    all_inputs(&b);
    build_forward(&b);
    build_backward(&b);
    free(b.layers);
    *out = b.graph;
    return OK;
}
