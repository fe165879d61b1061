/* Schedules against values worked out by hand, and the optimizers against the formulas of optim/optim.h in double
 * precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "graph/exec.h"
#include "optim/optim.h"
#include "optim/schedule.h"

static void expect_rate(const struct schedule *schedule, int64_t t, double rate) {
    double found = schedule_rate(schedule, t);
    if (!(fabs(found - rate) <= 1e-12 * (1 + fabs(rate))))
        fail_msg("schedule %d at %lld: %.15g, expected %.15g", schedule->kind, (long long)t, found, rate);
}

static void test_schedules(void **state) {
    (void)state;
    struct schedule s = {.kind = NVIDIA_POLY, .rate = 6e-3, .steps = 7038, .warmup_share = 0.2843, .power = 0.5};
    expect_rate(&s, 1, 6e-3 / 7038 / 0.2843);
    expect_rate(&s, 2000, 6e-3 * 2000 / 7038 / 0.2843);    /* 2000/7038 = 0.28417: the last of the warm-up */
    expect_rate(&s, 2001, 6e-3 * sqrt(1 - 2001.0 / 7038)); /* the jump down, to 5.08e-3 */
    assert_true(fabs(schedule_rate(&s, 2001) - 5.08e-3) < 1e-5);
    expect_rate(&s, 7038, 0);
    s = (struct schedule){.kind = POLY, .rate = 2, .steps = 100, .warmup_steps = 20, .power = 0.5};
    expect_rate(&s, 10, 1);
    expect_rate(&s, 20, 2);
    expect_rate(&s, 40, 2 * sqrt(60.0 / 80));
    s.kind = LINEAR;
    expect_rate(&s, 20, 2);
    expect_rate(&s, 21, 2 * 79.0 / 80);
    expect_rate(&s, 100, 0);
    s.kind = COSINE;
    expect_rate(&s, 60, 1);
    expect_rate(&s, 100, 0);
    s.kind = CONSTANT;
    expect_rate(&s, 1, 0.1);
    expect_rate(&s, 100, 2);
    s = (struct schedule){.kind = LINEAR, .rate = 1, .steps = 10};
    expect_rate(&s, 1, 0.9); /* no warm-up */
}

/* A decaying matrix of 64 x 300 (two chunks) and a vector that does not decay. */
enum { ROWS = 64, COLUMNS = 300, WEIGHTS = ROWS * COLUMNS, TOTAL = WEIGHTS + COLUMNS, STEPS = 6 };

struct model {
    double p[TOTAL], m[TOTAL], v[TOTAL];
};

static double norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void plain_step(struct model *model, const struct optim_config *c, const float *gradient, double rate, int t) {
    static double u[TOTAL], g[TOTAL];
    for (int i = 0; i < TOTAL; i++)
        g[i] = gradient[i];
    double all = norm(g, TOTAL), clip = c->clip > 0 && all > c->clip ? c->clip / all : 1;
    double b1 = c->bias_correction ? 1 - pow(c->beta1, t) : 1, b2 = c->bias_correction ? 1 - pow(c->beta2, t) : 1;
    for (int i = 0; i < TOTAL; i++) {
        double decay = i < WEIGHTS ? c->weight_decay : 0,
               grad = clip * g[i] + (c->name == OPTIM_ADAM ? decay * model->p[i] : 0);
        model->m[i] = c->beta1 * model->m[i] + (1 - c->beta1) * grad;
        model->v[i] = c->beta2 * model->v[i] + (1 - c->beta2) * grad * grad;
        u[i] = model->m[i] / b1 / (sqrt(model->v[i] / b2) + c->epsilon) +
               (c->name == OPTIM_ADAM ? 0 : decay * model->p[i]);
    }
    double ratio = 1;
    if (c->name == OPTIM_LAMB && c->weight_decay > 0)
        ratio = norm(model->p, WEIGHTS) / norm(u, WEIGHTS);
    for (int i = 0; i < TOTAL; i++)
        model->p[i] -= rate * (i < WEIGHTS ? ratio : 1) * u[i];
}

/* In f16 gradients come scaled, by what the device's scale should be then: it starts at LOSS_SCALE, grows after
 * INTERVAL good steps, and an overflow halves it. */
enum { LOSS_SCALE = 1024, INTERVAL = 2 };

static void upload_gradient(struct exec *exec, const struct graph *graph, const float *gradient, double scale) {
    static float scaled[TOTAL];
    for (int i = 0; i < TOTAL; i++)
        scaled[i] = gradient[i] * (float)scale;
    assert_int_equal(exec_upload_slice(exec, graph->gradients, 0, scaled), OK);
    assert_int_equal(exec_upload_slice(exec, graph->gradients, 1, scaled + WEIGHTS), OK);
}

/* What the device says of norm and scale after a step whose gradients had the scale `scale`. */
static void check_scale(struct exec *exec, const struct graph *graph, const struct optim_tensors *t,
                        const float *gradient, double scale, double next, double steps) {
    double norms[2], scales[2], plain[TOTAL];
    for (int i = 0; i < TOTAL; i++)
        plain[i] = gradient[i];
    assert_int_equal(exec_download(exec, t->norm, norms, 2), OK);
    assert_int_equal(exec_download(exec, graph->loss_scale, scales, 2), OK);
    assert_true(isfinite(norm(plain, TOTAL)) ? fabs(norms[0] / norm(plain, TOTAL) - 1) < 1e-12 : !isfinite(norms[0]));
    assert_true(norms[1] == scale && scales[0] == next && scales[1] == steps);
}

static void check(struct optim_config config, enum dtype compute, bool overflow) {
    struct sizes sizes = {0};
    sizes_set(&sizes, DIM_V, ROWS);
    sizes_set(&sizes, DIM_I, COLUMNS);
    sizes_set(&sizes, DIM_X, STEPS);
    struct graph *graph = graph_new(compute, &sizes);
    graph_parameter(graph, "vi", INIT_NORMAL, true, "matrix");
    graph_parameter(graph, "i", INIT_ZERO, false, "vector");
    graph_close_parameters(graph);
    struct optim_tensors t;
    struct backend *backend;
    struct exec *exec;
    assert_int_equal(optim_append(graph, &config, &t), OK);
    assert_int_equal(test_backend_new(&backend), OK);
    if (exec_new(&exec, graph, backend, 0) != OK)
        fail_msg("%s", status_message());
    static struct model model;
    static float p[TOTAL], gradient[TOTAL], rates[STEPS];
    memset(&model, 0, sizeof model);
    for (int i = 0; i < TOTAL; i++)
        model.p[i] = p[i] = (float)sin(i * 0.7) * 0.3f;
    for (int i = 0; i < STEPS; i++)
        rates[i] = 0.01f / (float)(i + 1);
    assert_int_equal(exec_upload(exec, t.lr_table, rates, STEPS), OK);
    assert_int_equal(exec_upload_slice(exec, graph->master, 0, p), OK);
    assert_int_equal(exec_upload_slice(exec, graph->master, 1, p + WEIGHTS), OK);
    double scale = compute == F16 ? LOSS_SCALE : 1;
    if (compute == F16)
        assert_int_equal(exec_upload(exec, graph->loss_scale, (const double[]){LOSS_SCALE, 0}, 2), OK);
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < TOTAL; i++)
            gradient[i] = (float)cos(i * 0.3 + step) * 0.05f;
        if (overflow) { /* a step that must change nothing but the count of skipped ones */
            float bad = gradient[5];
            gradient[5] = step % 2 ? INFINITY : NAN;
            upload_gradient(exec, graph, gradient, scale);
            assert_int_equal(exec_run(exec, PASS_UPDATE, true, false), OK);
            if (compute == F16)
                check_scale(exec, graph, &t, gradient, scale, scale / 2, 0);
            scale = compute == F16 ? scale / 2 : 1;
            gradient[5] = bad;
        }
        upload_gradient(exec, graph, gradient, scale);
        assert_int_equal(exec_run(exec, PASS_UPDATE, true, false), OK);
        bool grows = !overflow && step % INTERVAL == 0; /* overflows come more often than INTERVAL */
        if (compute == F16)
            check_scale(exec, graph, &t, gradient, scale, grows ? 2 * scale : scale, grows ? 0 : 1);
        scale = compute == F16 && grows ? 2 * scale : scale;
        plain_step(&model, &config, gradient, rates[step - 1], step);
    }
    int64_t steps[2];
    exec_download(exec, t.step, steps, 2);
    assert_int_equal(steps[0], STEPS);
    assert_int_equal(steps[1], overflow ? STEPS : 0);
    exec_download_slice(exec, graph->master, 0, p);
    exec_download_slice(exec, graph->master, 1, p + WEIGHTS);
    for (int i = 0; i < TOTAL; i++)
        if (!(fabs(p[i] - model.p[i]) <= 1e-6)) /* six updates of at most 0.01, each within a few units of f32 */
            fail_msg("optimizer %d, element %d: %.9g, expected %.9g", config.name, i, p[i], model.p[i]);
    exec_free(exec);
    graph_free(graph);
    backend->free(backend);
}

static void test_optimizers(void **state) {
    (void)state;
    for (int name = OPTIM_ADAM; name <= OPTIM_LAMB; name++)
        for (int variant = 0; variant < 16; variant++)
            check((struct optim_config){.name = name,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .epsilon = 1e-6,
                                        .weight_decay = variant & 1 ? 0.01 : 0,
                                        .clip = variant & 2 ? 1 : 0,
                                        .bias_correction = variant & 4,
                                        .growth_interval = INTERVAL},
                  variant & 8 ? F16 : F32, false);
}

static void test_overflow_changes_nothing(void **state) {
    (void)state;
    for (int name = OPTIM_ADAM; name <= OPTIM_LAMB; name++)
        for (int half = 0; half < 2; half++)
            check((struct optim_config){.name = name,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .epsilon = 1e-6,
                                        .weight_decay = 0.01,
                                        .clip = 1,
                                        .bias_correction = true,
                                        .growth_interval = INTERVAL},
                  half ? F16 : F32, true);
}

/* The scale stays between its bounds. */
static void test_loss_scale_is_bounded(void **state) {
    (void)state;
    struct sizes sizes = {0};
    sizes_set(&sizes, DIM_I, 4);
    sizes_set(&sizes, DIM_X, 1);
    const struct optim_config config = {.name = OPTIM_ADAMW, .growth_interval = 1};
    struct graph *graph = graph_new(F16, &sizes);
    struct optim_tensors t;
    struct backend *backend;
    struct exec *exec;
    graph_parameter(graph, "i", INIT_ZERO, false, "vector");
    graph_close_parameters(graph);
    assert_int_equal(optim_append(graph, &config, &t), OK);
    assert_int_equal(test_backend_new(&backend), OK);
    assert_int_equal(exec_new(&exec, graph, backend, 0), OK);
    const float gradients[2][4] = {{INFINITY}, {1}};
    const double starts[2] = {LOSS_SCALE_LEAST, LOSS_SCALE_MOST};
    for (int i = 0; i < 2; i++) {
        double scale[2] = {starts[i], 0};
        exec_upload(exec, graph->loss_scale, scale, 2);
        exec_upload(exec, t.step, (const int64_t[]){0, 0}, 2);
        exec_upload_slice(exec, graph->gradients, 0, gradients[i]);
        assert_int_equal(exec_run(exec, PASS_UPDATE, true, false), OK);
        exec_download(exec, graph->loss_scale, scale, 2);
        assert_true(scale[0] == starts[i] && scale[1] == 0);
    }
    exec_free(exec);
    graph_free(graph);
    backend->free(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_overflow_changes_nothing),
        cmocka_unit_test(test_loss_scale_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
