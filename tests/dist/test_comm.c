/* The communicators: this program starts itself, by mpirun and with MASTER_ADDR and its kin, in 1, 2 and 3 processes,
 * which check what they get from one another; and once more with processes that fail. */
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/memory.h"
#include "dist/dist.h"

static const char *program;

/* --- what each process does --- */

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "rank %d, line %d: %s\n", comm->rank, __LINE__, #condition); \
            comm->abort(comm, 77);                                                       \
            exit(77);                                                                    \
        }                                                                                \
    } while (0)

/* Of very different sizes, so that another order of sums gives other bits. */
static double value(int rank, int64_t i) {
    uint64_t mixed = (uint64_t)(i * 31 + rank + 1) * 0x9E3779B97F4A7C15u;
    double size = (double)((int64_t)1 << (mixed >> 59)); /* 1 to 2^31 */
    return ((double)(mixed >> 20 & 0xFFFFFF) / 0xFFFFFF - 0.5) * size;
}

static void check_sums(struct comm *comm) {
    static const int64_t counts[] = {0, 1, 2, 64, 65, 1000};
    double values[1000];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int64_t i = 0; i < counts[c]; i++)
            values[i] = value(comm->rank, i);
        CHECK(comm->sum_f64(comm, values, counts[c]) == OK);
        for (int64_t i = 0; i < counts[c]; i++) {
            double sum = value(0, i);
            for (int r = 1; r < comm->ranks; r++)
                sum += value(r, i);
            CHECK(sum == values[i]);
        }
    }
}

/* Fewer values than processes, numbers that do not divide, more than one piece (2^22 values). */
static void check_large_sums(struct comm *comm) {
    static const int64_t counts[] = {0, 1, 2, 5, 100003, (1 << 22) - 1, 2 * (1 << 22) + 5};
    float *values = xmalloc(sizeof *values * (2 * (1 << 22) + 6));
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int64_t i = 0; i <= counts[c]; i++)
            values[i] = (float)value(comm->rank, i);
        CHECK(comm->sum_f32(comm, values, counts[c]) == OK);
        CHECK(values[counts[c]] == (float)value(comm->rank, counts[c])); /* nothing beyond */
        int wrong = 0;
        for (int64_t i = 0; i < counts[c]; i++) {
            float sum = (float)value(0, i);
            for (int r = 1; r < comm->ranks; r++)
                sum += (float)value(r, i);
            wrong += sum != values[i];
        }
        CHECK(wrong == 0);
    }
    free(values);
}

static void check_broadcast(struct comm *comm) {
    int64_t bytes = (1 << 22) + 100;
    char *data = xmalloc((size_t)bytes);
    for (int root = 0; root < comm->ranks; root++) {
        memset(data, 'a' + comm->rank, (size_t)bytes);
        CHECK(comm->broadcast(comm, root, data, bytes) == OK);
        CHECK(data[0] == 'a' + root && memcmp(data, data + 1, (size_t)bytes - 1) == 0);
    }
    free(data);
    char *text = comm->rank == 0 ? xstrdup("of rank 0") : NULL, *none = NULL;
    CHECK(comm_share_text(comm, &text) == OK && strcmp(text, "of rank 0") == 0);
    CHECK(comm_share_text(comm, &none) == OK && !none);
    free(text);
}

static void check_agreement(struct comm *comm) {
    int last = comm->ranks - 1;
    char expected[100];
    CHECK(comm_agree(comm, OK) == OK && !comm->agreed);
    CHECK(comm_agree(comm, comm->rank == last ? failed("no %s", "luck") : OK) == FAILED);
    snprintf(expected, sizeof expected, last ? "rank %d: no luck" : "no luck", last);
    CHECK(strcmp(status_message(), expected) == 0);
    CHECK(comm->agreed == (comm->ranks > 1));
    CHECK(comm_alone(comm, FAILED) == FAILED); /* agreed on: nobody is ended by it */
    CHECK(comm_agree(comm, bad_input("all of us, rank %d", comm->rank)) == BAD_INPUT);
    CHECK(strcmp(status_message(), "all of us, rank 0") == 0);
    uint64_t hash = comm_hash(HASH_START, "abcdefghi", 9);
    CHECK(hash != comm_hash(HASH_START, "abcdefghj", 9) && hash != comm_hash(HASH_START, "abcdefgh", 8));
    CHECK(comm_hash(HASH_START, "", 0) != comm_hash(HASH_START, "\0", 1));
    CHECK(comm_same(comm, "bytes", hash) == OK);
    if (comm->ranks > 1)
        CHECK(comm_same(comm, "bytes", hash + (comm->rank == last)) == BAD_INPUT && strstr(status_message(), "bytes"));
}

static int work(const char *what, int ranks) {
    struct comm *comm;
    status code = comm_open(&comm);
    if (code != OK) {
        fprintf(stderr, "%s\n", status_message());
        return code;
    }
    double sums[2] = {1, comm->rank};
    CHECK(comm->ranks == ranks && comm->sharers >= 1 && comm->local_ranks == ranks);
    CHECK(comm->local_rank == comm->rank); /* all run here */
    CHECK(comm->sum_f64(comm, sums, 2) == OK && sums[0] == ranks && sums[1] == ranks * (ranks - 1) / 2);
    if (strcmp(what, "alone") == 0) {
        if (comm->rank == ranks - 1)
            return comm_alone(comm, bad_input("only here"));
        comm->sum_f64(comm, sums, 1); /* waits for one that does not come */
        return 0;
    }
    check_sums(comm);
    check_large_sums(comm);
    check_broadcast(comm);
    check_agreement(comm);
    comm->free(comm);
    return OK;
}

/* --- starting them --- */

struct output {
    int code;
    char text[4000];
};

static struct output run(const char *before, const char *what, int ranks) {
    char command[1000];
    struct output output = {0};
    /* libraries of MPI keep memory to the end */
    snprintf(command, sizeof command, "%s ASAN_OPTIONS=detect_leaks=0 timeout 60 %s %s %d 2>&1", before, program, what,
             ranks);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output.text, 1, sizeof output.text - 1, pipe);
    output.text[length] = 0;
    int ended = pclose(pipe);
    output.code = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
    return output;
}

#ifdef BERTH_MPI
static struct output launch(const char *what, int ranks) {
    char before[200];
    snprintf(before, sizeof before,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -np %d env", ranks);
    return run(before, what, ranks);
}

static bool has_launcher(void) {
    bool found = system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") == 0;
    if (!found)
        print_message("skipped: no mpirun of Open MPI\n");
    return found;
}

static void test_processes(void **state) {
    (void)state;
    if (!has_launcher())
        skip();
    for (int ranks = 1; ranks <= 3; ranks++) {
        struct output output = launch("all", ranks);
        if (output.code != 0)
            fail_msg("%d processes: exit %d: %s", ranks, output.code, output.text);
    }
}

static void test_one_that_fails_ends_all(void **state) {
    (void)state;
    if (!has_launcher())
        skip();
    struct output output = launch("alone", 3);
    assert_int_equal(output.code, BAD_INPUT);
    char *said = strstr(output.text, "berth: rank 2: only here\n");
    assert_non_null(said);
    assert_null(strstr(said + strlen("berth: rank 2: only here"), "only here"));
}
#else
static void test_without_mpi(void **state) {
    (void)state;
    static const char *const launchers[] = {
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=", "PMI_SIZE=2 PMI_RANK=", "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID="};
    for (int i = 0; i < 3; i++)
        for (int rank = 0; rank < 2; rank++) {
            char before[200];
            snprintf(before, sizeof before, "%s%d", launchers[i], rank);
            struct output output = run(before, "all", 2);
            assert_int_equal(output.code, BAD_INPUT);
            if (rank == 0)
                assert_non_null(strstr(output.text, "started 2 processes, but this berth was built without MPI"));
            else
                assert_string_equal(output.text, "\n");
        }
}
#endif

/* --- TCP --- */

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int made = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(made, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(made, (struct sockaddr *)&address, &size), 0);
    close(made);
    return ntohs(address.sin_port);
}

static pid_t start_by_tcp(int rank, int ranks, int port) {
    pid_t started = fork();
    char text[4][20];
    if (started)
        return started;
    snprintf(text[0], sizeof text[0], "%d", rank);
    snprintf(text[1], sizeof text[1], "%d", ranks);
    snprintf(text[2], sizeof text[2], "%d", port);
    setenv("RANK", text[0], 1);
    setenv("WORLD_SIZE", text[1], 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", text[2], 1);
    execl(program, program, "all", text[1], NULL);
    _exit(127);
}

static void all_end_well(const pid_t *started, int ranks) {
    for (int rank = 0; rank < ranks; rank++) {
        int ended;
        waitpid(started[rank], &ended, 0);
        assert_int_equal(ended, 0);
    }
}

/* A process for each rank, the last one first. */
static void test_processes_by_tcp(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        pid_t started[3];
        int port = free_port();
        for (int rank = ranks - 1; rank >= 0; rank--)
            started[rank] = start_by_tcp(rank, ranks, port);
        all_end_well(started, ranks);
    }
}

static struct sockaddr_in here(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Somebody who comes to rank 0, says so many bytes, and stays. */
static int come(int port, size_t bytes) {
    struct sockaddr_in address = here(port);
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int tries = 0; connect(made, (struct sockaddr *)&address, sizeof address); tries++) {
        assert_true(tries < 1000);
        usleep(10000);
    }
    char *words = xcalloc(1, bytes + 1);
    assert_int_equal(send(made, words, bytes, MSG_NOSIGNAL), bytes);
    free(words);
    return made;
}

/* More of them than rank 0 has patience with, and all of them before the one for whom it waits. */
static void test_strangers(void **state) {
    (void)state;
    static const size_t says[] = {0, 5, 20, 3000};
    int port = free_port(), strangers[72];
    double began = clock_seconds();
    pid_t started[2] = {start_by_tcp(0, 2, port)};
    for (int i = 0; i < 72; i++)
        strangers[i] = come(port, says[i % 4]);
    started[1] = start_by_tcp(1, 2, port);
    all_end_well(started, 2);
    assert_true(clock_seconds() - began < 9); /* a silent one is sent away after 10 s */
    for (int i = 0; i < 72; i++)
        close(strangers[i]);
}

static void check_in_vain(int rank, int port, int code, const char *says) {
    char before[200];
    snprintf(before, sizeof before, "BERTH_PATIENCE=1 WORLD_SIZE=2 RANK=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d", rank,
             port);
    struct output output = run(before, "all", 2);
    if (output.code != code || !strstr(output.text, says))
        fail_msg("expected exit %d, '%s', got %d, '%s'", code, says, output.code, output.text);
}

static void test_nobody_comes(void **state) {
    (void)state;
    check_in_vain(0, free_port(), FAILED, "rank 0: waited 1 s (BERTH_PATIENCE) in vain for rank 1 at port");
    check_in_vain(1, free_port(), FAILED,
                  "rank 1: tried for 1 s (BERTH_PATIENCE) in vain to reach rank 0 at MASTER_ADDR");
}

/* Another program has the port: it lets all in, and says nothing, or something. */
static void test_a_stranger_at_the_port(void **state) {
    (void)state;
    struct sockaddr_in address = here(0);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 5), 0);
    getsockname(listener, (struct sockaddr *)&address, &size);
    int port = ntohs(address.sin_port);
    check_in_vain(0, port, BAD_INPUT, "cannot listen there");
    check_in_vain(1, port, BAD_INPUT,
                  "what answers at 127.0.0.1 is not rank 0: expected its greeting within 1 s, got nothing");
    pid_t talker = fork();
    if (talker == 0) {
        for (;;) {
            int guest = accept(listener, NULL, NULL);
            send(guest, "220 mail.example.org ready", 26, MSG_NOSIGNAL);
        }
    }
    check_in_vain(1, port, BAD_INPUT, "got other bytes");
    kill(talker, SIGKILL);
    waitpid(talker, NULL, 0);
    close(listener);
}

static void test_wrong_variables(void **state) {
    (void)state;
    static const struct {
        const char *variables, *says;
    } cases[] = {
        {"WORLD_SIZE=2", "WORLD_SIZE = 2: expected RANK, MASTER_ADDR and MASTER_PORT, too"},
        {"WORLD_SIZE=2 RANK=2 MASTER_ADDR=localhost MASTER_PORT=1", "RANK = 2, WORLD_SIZE = 2"},
        {"WORLD_SIZE=2 RANK=1 MASTER_ADDR=localhost MASTER_PORT=x", "MASTER_PORT = x: expected"},
        {"WORLD_SIZE=2 RANK=1 MASTER_ADDR=no.such.host.invalid MASTER_PORT=9", "MASTER_ADDR = no.such.host.invalid"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct output output = run(cases[i].variables, "all", 2);
        assert_int_equal(output.code, BAD_INPUT);
        assert_non_null(strstr(output.text, cases[i].says));
    }
}

/* A launcher of one process, a batch script, or none: no communicator is looked for. */
static void test_one_process(void **state) {
    (void)state;
    static const char *const alone[] = {"", "OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1", "SLURM_STEP_NUM_TASKS=1",
                                        "SLURM_NTASKS=4 SLURM_PROCID=0"};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        struct output output = run(alone[i], "all", 1);
        if (output.code != 0)
            fail_msg("%s: exit %d: %s", alone[i], output.code, output.text);
    }
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 3)
        return work(argv[1], atoi(argv[2]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_process),     cmocka_unit_test(test_processes_by_tcp),
        cmocka_unit_test(test_wrong_variables), cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_nobody_comes),    cmocka_unit_test(test_a_stranger_at_the_port),
#ifdef BERTH_MPI
        cmocka_unit_test(test_processes),       cmocka_unit_test(test_one_that_fails_ends_all),
#else
        cmocka_unit_test(test_without_mpi),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
