/* NCCL on one device: a sum over one rank is the values themselves, made in the order of the device's work. What one
 * machine with one GPU can show; tests/train/check_ranks.py has more processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "dist/dist.h"

enum { COUNT = 100003, SUMS = 5 };

static void test_sums_of_one_rank(void **state) {
    (void)state;
#if defined(BERTH_CUDA) && defined(BERTH_NCCL)
    static float values[COUNT], seen[COUNT];
    struct backend *backend;
    struct nccl *nccl;
    void *memory;
    if (!test_on_cuda())
        skip();
    assert_int_equal(test_backend_new(&backend), OK);
    assert_non_null(backend->stream);
    if (nccl_new(&nccl, comm_self(), backend->stream) != OK)
        fail_msg("%s", status_message());
    assert_int_equal(backend->memory_new(backend, &memory, sizeof values, "values"), OK);
    for (int sum = 0; sum < SUMS; sum++) { /* behind its upload, before its download */
        for (int i = 0; i < COUNT; i++)
            values[i] = (float)(i * (sum + 1)) / 7;
        assert_int_equal(backend->upload(backend, memory, values, sizeof values), OK);
        assert_int_equal(nccl_sum_f32(nccl, memory, COUNT), OK);
        assert_int_equal(backend->download(backend, seen, memory, sizeof seen), OK);
        assert_memory_equal(values, seen, sizeof values);
    }
    assert_int_equal(backend->clear(backend, memory, sizeof values), OK);
    assert_int_equal(nccl_sum_f32(nccl, memory, COUNT), OK);
    assert_int_equal(backend->download(backend, seen, memory, sizeof seen), OK);
    for (int i = 0; i < COUNT; i++)
        assert_true(seen[i] == 0);
    nccl_free(nccl);
    backend->memory_free(backend, memory);
    backend->free(backend);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_of_one_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
