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

static void check(struct optim_config config, bool overflow) {
    struct sizes sizes = {0};
    sizes_set(&sizes, DIM_V, ROWS);
    sizes_set(&sizes, DIM_I, COLUMNS);
    sizes_set(&sizes, DIM_X, STEPS);
    struct graph *graph = graph_new(F32, &sizes);
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
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < TOTAL; i++)
            gradient[i] = (float)cos(i * 0.3 + step) * 0.05f;
        if (overflow) { /* a step that must change nothing but the count of skipped ones */
            float bad = gradient[5];
            gradient[5] = step % 2 ? INFINITY : NAN;
            exec_upload_slice(exec, graph->gradients, 0, gradient);
            exec_upload_slice(exec, graph->gradients, 1, gradient + WEIGHTS);
            assert_int_equal(exec_run(exec, PASS_UPDATE, true, false), OK);
            gradient[5] = bad;
        }
        exec_upload_slice(exec, graph->gradients, 0, gradient);
        exec_upload_slice(exec, graph->gradients, 1, gradient + WEIGHTS);
        assert_int_equal(exec_run(exec, PASS_UPDATE, true, false), OK);
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
        for (int variant = 0; variant < 8; variant++)
            check((struct optim_config){.name = name,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .epsilon = 1e-6,
                                        .weight_decay = variant & 1 ? 0.01 : 0,
                                        .clip = variant & 2 ? 1 : 0,
                                        .bias_correction = variant & 4},
                  false);
}

static void test_overflow_changes_nothing(void **state) {
    (void)state;
    for (int name = OPTIM_ADAM; name <= OPTIM_LAMB; name++)
        check((struct optim_config){.name = name,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .epsilon = 1e-6,
                                    .weight_decay = 0.01,
                                    .clip = 1,
                                    .bias_correction = true},
              true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_overflow_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
