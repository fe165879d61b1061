#!/bin/sh
# Everything about berth that needs a GPU, in parts that each end inside nine minutes, into one Markdown and one JSON report.
# Needs the CUDA toolkit, make and gcc; Python with PyTorch only where PyTorch is the peer. `gpu_check.sh` alone lists the parts.
set -u
cd "$(dirname "$0")/.." || exit 1
SELF=scripts/gpu_check.sh
PARTS="build operators sanitizer curve ranks pretrain bench peer profile"

# name, minutes, what it does: every part once
part_table() {
    cat <<'END'
build     9  build/gpu by nvcc, for this machine's GPU
operators 6  the operator table and the other tests that take a device, and the time of each operator at BERT-base's size
sanitizer 9  compute-sanitizer (memcheck, racecheck, initcheck, synccheck) over all operators on small shapes
curve     6  200 steps of a BERT-tiny on the device beside the CPU backend, in fp32 and in bf16
ranks     6  the same steps on all GPUs of this machine, a process each by mpirun, beside one GPU
pretrain  9  BERT-base at length 128 on real text beside PyTorch, from the same weights on the same batches: SHARDS= and VOCAB=, or TEXT=
bench     9  training steps of BERT-base and BERT-large at 128 and 512, bf16
peer      9  the same steps in PyTorch: eager, SDPA, torch.compile
profile   6  BERT-large's operators at 128 and 512: time, share, percent of roof
END
}

usage() {
    echo "usage: scripts/gpu_check.sh PART... [--out FOLDER] [--no-mpi]"
    echo "       scripts/gpu_check.sh --bundle FILE.tar.gz"
    echo
    echo "Parts, and the minutes after which each is stopped:"
    part_table | awk '{ minutes = $2; name = $1; sub(/^[^ ]+ +[^ ]+ +/, ""); printf "  --%-10s %s  %s\n", name, minutes, $0 }'
    cat <<'END'
  --all            all of them but --pretrain

  --out FOLDER     report.md, report.json and a log for each part (default build/gpu_check). A part that is run again replaces its
                   section; the others stay.
  --no-mpi         build without MPI, even where it is installed
  --bundle FILE    pack the packages that the build needs, from this machine, and stop: for a machine that has none and no network
                   (unpack it there and say DEPS=FOLDER). The C library there must not be older than here.

Exit code 0: no part that was asked for failed; 1: one did; 2: wrong flags. A part that cannot run here says why, and is no failure.

Environment:
  DEPS=FOLDER      prefix with include/ and lib/ of HDF5, cmocka, utf8proc, cJSON, zlib, zstd, libdeflate, oneDNN
  CUDA_HOME=       the toolkit (default /usr/local/cuda)      SM="90"   architectures (default: this GPU's)
  PEER=PYTHON      a Python with torch and transformers, for --pretrain h5py too (default: build/peer's, else python3)
  SHARDS= VOCAB=   of --pretrain: training shards of length 128, and their vocabulary; or
  TEXT=FILE        text that they are made from (default build/quickstart/kjv.txt, which scripts/quickstart.sh makes)
  EMU=1            the CUDA backend on the host (make emu): --build, --operators, --curve and --ranks in a reduced form, to try this script
END
}

wrong() {
    echo "gpu_check: $1; see scripts/gpu_check.sh --help" >&2
    exit 2
}

# --- what a part says ---
# A part runs in a process of its own under timeout, prints to $OUT/PART.log, and leaves behind $OUT/parts/PART.md (its section), PART.json
# (its numbers, without the braces) and PART.why (one line, if it failed or could not run). Reports are put together from these.

row() { printf '%s\n' "$*" >>"$SECTION"; }
# number KEY VALUE: VALUE is JSON
number() {
    [ -s "$NUMBERS" ] && printf ', ' >>"$NUMBERS"
    printf '"%s": %s' "$1" "$2" >>"$NUMBERS"
}
quote() { printf '%s' "$1" | tr -d '\r' | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/^/"/; s/$/"/'; }
failed() {
    echo "$1" >"$WHY"
    echo "FAILED: $1"
    exit 1
}
not_run() {
    echo "$1" >"$WHY"
    echo "not run: $1"
    exit 77
}

# --- the machine ---

gpu_query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

have_driver() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

toolkit() {
    "$CUDA_HOME/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'
}

# the lines of the report's head: key, tab, value
machine() {
    printf 'commit\t%s\n' "$(git describe --always --dirty 2>/dev/null || echo unknown)"
    printf 'command\t%s\n' "$COMMAND"
    printf 'time\t%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    printf 'system\t%s\n' "$(uname -srm)"
    printf 'processor\t%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) threads"
    printf 'toolkit\t%s\n' "$(toolkit | sed 's/^/CUDA /; s/^$/none/')"
    [ "$EMU" = 0 ] || printf 'device\tthe CUDA emulator on the host: nothing here is a number of a GPU\n'
    if have_driver; then
        printf 'driver\t%s\n' "$(gpu_query driver_version | head -n 1), CUDA $(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p')"
        gpu_query name,memory.total,clocks.sm,clocks.max.sm,clocks.max.mem,power.limit |
            awk -F', ' '{ printf "gpu %d\t%s, %s; SM clock now %s, at most %s; memory clock at most %s; power limit %s\n", NR - 1, $1, $2, $3, $4, $5, $6 }'
    else
        printf 'driver\tnone: no nvidia-smi, or it lists no GPU\n'
    fi
}

# --- reports ---

write_markdown() {
    {
        echo "# berth on a GPU"
        echo
        echo "| | |"
        echo "|---|---|"
        awk -F'\t' '{ gsub(/\|/, "\\|"); printf "| %s | %s |\n", $1, $2 }' "$OUT/parts/machine"
        for name in $PARTS; do
            [ -f "$OUT/parts/$name.status" ] || continue
            IFS='	' read -r result seconds commit <"$OUT/parts/$name.status"
            printf '\n## %s: %s\n\n%s s, commit %s, log: %s.log\n' "$name" "$result" "$seconds" "$commit" "$name"
            [ -s "$OUT/parts/$name.why" ] && printf '\n%s: %s\n' "$result" "$(head -n 1 "$OUT/parts/$name.why")"
            [ -s "$OUT/parts/$name.md" ] && echo && cat "$OUT/parts/$name.md"
        done
    } >"$OUT/report.md"
}

write_json() {
    {
        printf '{"machine": {'
        comma=
        while IFS='	' read -r key value; do
            printf '%s%s: %s' "$comma" "$(quote "$key")" "$(quote "$value")"
            comma=', '
        done <"$OUT/parts/machine"
        printf '}, "parts": {'
        comma=
        for name in $PARTS; do
            [ -f "$OUT/parts/$name.status" ] || continue
            IFS='	' read -r result seconds commit <"$OUT/parts/$name.status"
            printf '%s\n"%s": {"result": "%s", "seconds": %s, "commit": %s' "$comma" "$name" "$result" "$seconds" "$(quote "$commit")"
            [ -s "$OUT/parts/$name.why" ] && printf ', "why": %s' "$(quote "$(head -n 1 "$OUT/parts/$name.why")")"
            printf ', "numbers": {%s}}' "$(cat "$OUT/parts/$name.json")"
            comma=,
        done
        printf '}}\n'
    } >"$OUT/report.json"
}

# --- what parts share ---

# the arguments of make: where everything goes, and what it is built from
set_make() {
    BUILD=build/gpu
    [ "$EMU" = 0 ] || BUILD=build/emu
    BERTH=$BUILD/berth
    [ "$EMU" = 0 ] || BERTH=build/berth-emu
    TABLE=$BUILD/tests/kernels/test_optable
}

run_make() {
    if [ -n "$DEPS" ]; then
        # DT_RPATH, which also holds for the libraries that these libraries need
        set -- "CPPFLAGS=-I$DEPS/include" "LDFLAGS=-L$DEPS/lib -Wl,-rpath,$DEPS/lib -Wl,--disable-new-dtags" "HDF5_HOME=$DEPS" "$@"
    fi
    if [ "$EMU" = 0 ]; then
        # lines of the source in what compute-sanitizer says
        set -- BUILD=$BUILD CUDA=1 "CUDA_HOME=$CUDA_HOME" ${SM:+"SM=$SM"} NVCC_FLAGS="-O3 -lineinfo" "$@"
    else
        set -- EMU=1 "$@"
    fi
    [ "$NO_MPI" = 0 ] || set -- MPI=0 "$@"
    # other compilers than ours warn of other things
    make -j"${JOBS:-$(nproc)}" WERROR= "$@"
}

need_program() {
    [ -x "$BERTH" ] || not_run "$BERTH is not there: ask for --build too"
}

need_device() {
    need_program
    [ "$EMU" = 0 ] || return 0
    found=$("$BERTH" config 2>/dev/null | grep '^cuda:')
    case $found in
        "" | "cuda: no"*) not_run "no GPU that berth can use: ${found:-$BERTH does not say}" ;;
    esac
}

no_emulator() {
    [ "$EMU" = 0 ] || not_run "the emulator's times are no times of a GPU"
}

# berth's last word in the part's log, which says why it failed
last_message() { grep '^berth: ' "$OUT/$part.log" | tail -n 1; }

# the value of a key in each line of a metrics.jsonl
metric() { sed -n "s/.*\"$2\": \([^,}]*\).*/\1/p" "$1"; }

# made_text FOLDER WORDS DOCUMENTS SENTENCES: text and its vocabulary, made without a download. Neighbours in the lexicon are neighbours in
# sentences, so that there is something to learn; with a large lexicon it is as good as random numbers.
made_text() {
    mkdir -p "$1"
    awk -v words="$2" 'BEGIN { n = split("[PAD] [UNK] [CLS] [SEP] [MASK] .", special, " "); for (i = 1; i <= n; i++) print special[i]
        for (w = 0; w < words; w++) print "w" w }' >"$1/vocab.txt"
    awk -v words="$2" -v documents="$3" -v sentences="$4" 'BEGIN { srand(7)
        for (d = 0; d < documents; d++) {
            for (s = 0; s < sentences; s++) {
                w = int(rand() * words); line = ""
                for (n = 4 + int(rand() * 11); n > 0; n--) { line = line "w" w " "; w = (w + 1 + (rand() < 1 / 3)) % words }
                print line "."
            }
            print "" } }' >"$1/text.txt"
}

# make_shards FOLDER LENGTH PREDICTIONS [OPTION]: from what made_text left there
make_shards() {
    rm -rf "${1:?}/$2"
    # shellcheck disable=SC2086
    "$BERTH" shard ${4:-} --input "$1/text.txt" --vocab "$1/vocab.txt" --output "$1/$2" --seq-len "$2" --max-predictions "$3" --sentences-per-line \
        --short-seq-prob 0 --held-out 0 --seed 1
}

# --- build ---

part_build() {
    if [ "$EMU" = 0 ] && [ -z "$(toolkit)" ]; then
        not_run "no nvcc in $CUDA_HOME/bin or in the PATH: set CUDA_HOME"
    fi
    if [ -z "${SM:-}" ] && have_driver; then
        SM=$(gpu_query compute_cap | head -n 1 | tr -d .)
    fi
    run_make all || failed "$(grep -E ' error:|^berth: |: \*\*\* |undefined reference|No such file' "$OUT/build.log" | head -n 1)"
    ! "$BERTH" config | grep -q '^cuda: not in this build' || failed "$BERTH was built without the CUDA backend"
    row "\`$("$BERTH" --version)\`, architectures ${SM:-as the Makefile has them}${DEPS:+, packages from DEPS}"
    row ""
    row '```'
    cat "$BUILD/features.txt" >>"$SECTION"
    row '```'
    number version "$(quote "$("$BERTH" --version)")"
    # the tests need cmocka, which may be missing: the other parts go without
    # shellcheck disable=SC2046
    if run_make $(test_programs); then
        number tests true
    else
        row ""
        row "The tests were not built (no cmocka?): --operators and --sanitizer cannot run."
        number tests false
    fi
}

# --- operators ---

# the tests that run on the device named by BERTH_TEST_DEVICE
test_programs() {
    if [ "$EMU" = 0 ]; then
        echo "$BUILD/tests/kernels/test_optable $BUILD/tests/optim/test_optim $BUILD/tests/kernels/test_choices $BUILD/tests/train/test_network $BUILD/tests/train/test_recording $BUILD/tests/train/test_nccl $BUILD/tests/reference/test_reference"
    else
        echo "$TABLE"
    fi
}

need_tests() {
    [ -x "$TABLE" ] || not_run "$TABLE is not there: --build could not make it, or was not asked for (needs cmocka)"
}

part_operators() {
    need_device
    need_tests
    export BERTH_TEST_DEVICE=cuda
    bad=
    row "| test program | passed | failed | skipped |"
    row "|---|---|---|---|"
    for program in $(test_programs); do
        [ -x "$program" ] || continue
        # shellcheck disable=SC2086
        "$program" ${EMU_OPERATORS:+only $EMU_OPERATORS} >"$OUT/parts/test.txt" 2>&1 || bad="$bad $(basename "$program")"
        cat "$OUT/parts/test.txt"
        add_test_row "$(basename "$program")"
    done
    [ "$EMU" != 0 ] || add_perf
    [ -z "$bad" ] || failed "these tests fail on the device:$bad"
}

# a test's counts from cmocka's lines, and what failed
add_test_row() {
    good=$(cmocka_count PASSED) wrong=$(cmocka_count FAILED) skipped=$(cmocka_count SKIPPED)
    row "| $1 | $good | $wrong | $skipped |"
    number "$1" "{\"passed\": $good, \"failed\": $wrong, \"skipped\": $skipped}"
}

# from the line "[  PASSED  ] 7 test(s)"
cmocka_count() { sed -n "s/^.*\[  $1 *\] \([0-9]*\) test(s).*/\1/p" "$OUT/parts/test.txt" | awk '{ n += $1 } END { print n + 0 }'; }

# times of the operators one by one, BERT-base, 4,096 tokens: `test_optable perf` prints operator, dtype, us, GB/s, GFLOP/s
add_perf() {
    "$TABLE" perf 4096 768 12 30528 >"$OUT/parts/perf.txt" 2>&1 || { cat "$OUT/parts/perf.txt"; failed "test_optable perf"; }
    for way in whole blocks; do # attention's backward pass by each of its ways
        BERTH_ATTENTION_DX=$way "$TABLE" perf 4096 768 12 30528 attention_dx >"$OUT/parts/way.txt" 2>&1 ||
            { cat "$OUT/parts/way.txt"; failed "test_optable perf, BERTH_ATTENTION_DX=$way"; }
        awk -v way="$way" 'NR > 2 { $1 = $1 "_" way; print }' "$OUT/parts/way.txt" >>"$OUT/parts/perf.txt"
    done
    cat "$OUT/parts/perf.txt"
    row ""
    row "Each operator alone, best of 7 runs: $(head -n 1 "$OUT/parts/perf.txt" | sed 's/, [0-9]* threads//')"
    row ""
    row "| operator | dtype | µs | GB/s | GFLOP/s |"
    row "|---|---|---|---|---|"
    awk 'NR > 2 { printf "| %s | %s | %s | %s | %s |\n", $1, $2, $3, $4, $5 }' "$OUT/parts/perf.txt" >>"$SECTION"
    number operators "[$(awk 'NR > 2 { printf "%s{\"name\": \"%s\", \"dtype\": \"%s\", \"us\": %s, \"gb_s\": %s, \"gflop_s\": %s}", c, $1, $2, $3, $4, $5; c = ", " }' "$OUT/parts/perf.txt")]"
}

# --- sanitizer ---

# Eight operators at a time, so that a slow group costs its own time and not the rest's; a tool has its share of the part's time.
part_sanitizer() {
    no_emulator_memory
    need_device
    need_tests
    sanitizer=$(command -v compute-sanitizer || echo "$CUDA_HOME/bin/compute-sanitizer")
    [ -x "$sanitizer" ] || not_run "no compute-sanitizer in the PATH or in $CUDA_HOME/bin"
    BERTH_TEST_DEVICE=cuda "$TABLE" support | awk 'NR > 1 { line = line " " $1; if (NR % 8 == 1) { print line; line = "" } } END { print line }' |
        grep . >"$OUT/parts/groups"
    bad=
    row "| tool | groups of operators | clean | with errors | not finished | first error |"
    row "|---|---|---|---|---|---|"
    for tool in memcheck racecheck initcheck synccheck; do
        sanitize "$tool"
    done
    [ -z "$bad" ] || failed "$bad"
}

no_emulator_memory() {
    [ "$EMU" = 0 ] || not_run "the emulator has checks of its own (make check-emulator)"
}

sanitize() { # TOOL
    tool=$1 clean=0 errors=0 unfinished=0 first=
    end=$(($(date +%s) + 128)) # a quarter of the part's time
    while read -r operators; do
        left=$((end - $(date +%s)))
        if [ "$left" -lt 5 ]; then
            unfinished=$((unfinished + 1))
            continue
        fi
        [ "$left" -le 45 ] || left=45
        echo "--- $tool: $operators"
        # shellcheck disable=SC2086
        BERTH_TEST_DEVICE=cuda timeout -k 5 "$left" "$sanitizer" --tool "$tool" --error-exitcode 99 "$TABLE" only $operators \
            </dev/null >"$OUT/parts/sanitizer.txt" 2>&1
        code=$?
        cat "$OUT/parts/sanitizer.txt"
        case $code in
            0) clean=$((clean + 1)) ;;
            124 | 137) unfinished=$((unfinished + 1)) ;;
            *)
                errors=$((errors + 1))
                [ -n "$first" ] || first=$(first_error)
                ;;
        esac
    done <"$OUT/parts/groups"
    row "| $tool | $(grep -c . "$OUT/parts/groups") | $clean | $errors | $unfinished | $first |"
    number "$tool" "{\"clean\": $clean, \"errors\": $errors, \"unfinished\": $unfinished, \"first\": $(quote "$first")}"
    [ "$errors" = 0 ] || bad="${bad:+$bad; }$tool: $errors groups with errors: $first"
    [ "$clean$errors" != 00 ] || bad="${bad:+$bad; }$tool: no group finished"
}

# what the tool found, or which operator's numbers were wrong
first_error() {
    grep -E '^========= |expected|FAILED' "$OUT/parts/sanitizer.txt" | grep -vE 'COMPUTE-SANITIZER|SUMMARY' | head -n 1 | sed 's/^=* *//' | tr '|' '/'
}

# --- curve ---

part_curve() {
    need_device
    work=$OUT/parts/curve steps=200 documents=600
    [ "$EMU" = 0 ] || steps=20 documents=60
    made_text "$work" 300 $documents 12
    make_shards "$work" 64 10 || failed "berth shard"
    bad=
    row "BERT-tiny, $steps steps of 16 sequences of 64 tokens, AdamW, dropout 0.1 with the same masks, from the same weights on the same batches."
    row ""
    row "| precision | loss at the start | CPU at the end | device at the end | largest relative difference | limit |"
    row "|---|---|---|---|---|---|"
    # The CPU backend's own curves, at other fusion levels, micro-batches and numbers of threads, stay within 1e-8 of this one's
    # (fp32) and 2e-4 (bf16), as measured. Another device sums in another order in every product and rounds other functions
    # (exp, erf) in their last place, and Adam divides by roots of small moments, which magnifies that at first. So the limits
    # are far above rounding, and still below the noise of a batch; what is wrong in a single operator is found by --operators.
    # fp16 rounds to three bits more than bf16.
    compare_curves fp32 2e-3
    compare_curves bf16 2e-2
    compare_curves fp16 5e-3
    [ -z "$bad" ] || failed "$bad"
}

# difference A B LIMIT STEPS: of two lists of losses; prints the first, the last of each, the largest relative difference, good or bad
difference() {
    paste "$1" "$2" | awk -v limit="$3" -v steps="$4" '
        function abs(x) { return x < 0 ? -x : x }
        # a loss that is no number compares as nothing else does
        NF == 2 && $1 + 0 > 0 && $2 + 0 > 0 { d = abs($1 - $2) / $1; if (d > worst) worst = d; n++ }
        NR == 1 { first = $1 } { a = $1; b = $2 }
        END { print first, a, b, worst + 0, (n == steps && NR == steps && worst <= limit) ? "good" : "bad" }'
}

compare_curves() { # PRECISION LIMIT
    for device in cpu cuda; do
        rm -rf "$work/$device-$1"
        "$BERTH" train configs/bert-tiny.ini "model.vocab=$work/vocab.txt" "data.train=$work/64/train" data.seq_len=64 "train.steps=$steps" \
            train.global_batch=16 train.micro_batch=16 "train.precision=$1" optim.lr=5e-4 optim.warmup=0.1 checkpoint.every=0 \
            "device.type=$device" device.peak_tflops=1 "checkpoint.dir=$work/$device-$1" || failed "$1 on $device: $(last_message)"
        metric "$work/$device-$1/metrics.jsonl" loss >"$work/$device-$1.txt"
    done
    result=$(difference "$work/cpu-$1.txt" "$work/cuda-$1.txt" "$2" "$steps")
    # shellcheck disable=SC2086
    set -- "$1" "$2" $result
    row "| $1 | $3 | $4 | $5 | $6 | $2 |"
    number "$1" "{\"steps\": $steps, \"start\": $3, \"cpu_end\": $4, \"device_end\": $5, \"largest_relative_difference\": $6, \"limit\": $2}"
    [ "$7" = good ] || bad="${bad:+$bad; }$1: the loss differs by $6 of itself, limit $2"
}

# --- ranks ---

part_ranks() {
    need_device
    command -v mpirun >/dev/null 2>&1 || not_run "no mpirun"
    "$BERTH" config >"$OUT/parts/config.txt"
    for feature in MPI NCCL; do
        grep -q "^HAVE_$feature" "$BUILD/features.mk" || not_run "$BERTH was built without $feature"
    done
    gpus=$(grep -c '^cuda: ' "$OUT/parts/config.txt") steps=200 documents=600 limit=2e-3 # as --curve
    [ "$EMU" = 0 ] || gpus=2 steps=4 documents=60
    [ "$gpus" -gt 1 ] || not_run "one GPU only: NCCL wants one for each process (--operators has a sum of one process)"
    work=$OUT/parts/ranks
    made_text "$work" 300 $documents 12
    make_shards "$work" 64 10 --rows-per-shard=100 || failed "berth shard"
    for ranks in 1 "$gpus"; do
        rm -rf "$work/$ranks"
        launch=
        [ "$ranks" = 1 ] || launch="mpirun -np $ranks --bind-to none"
        # shellcheck disable=SC2086
        $launch "$BERTH" train configs/bert-tiny.ini "model.vocab=$work/vocab.txt" "data.train=$work/64/train" data.seq_len=64 "train.steps=$steps" \
            train.global_batch=16 train.micro_batch=16 optim.lr=5e-4 optim.warmup=0.1 checkpoint.every=0 device.type=cuda device.peak_tflops=1 \
            "checkpoint.dir=$work/$ranks" || failed "$ranks processes: $(last_message)"
        metric "$work/$ranks/metrics.jsonl" loss >"$work/$ranks.txt"
    done
    # shellcheck disable=SC2046
    set -- $(difference "$work/1.txt" "$work/$gpus.txt" $limit $steps)
    row "BERT-tiny, $steps steps of 16 sequences, fp32, dropout 0.1: $gpus processes, each with a GPU, beside one. Loss $1 at the start, $2 and $3 at the end; largest relative difference $4, limit $limit."
    number processes "$gpus"
    number largest_relative_difference "$4"
    [ "$5" = good ] || failed "$gpus processes: the loss differs by $4 of itself, limit $limit"
}

# --- bench ---

# size, length, micro-batch that fills a large device
bench_table() {
    cat <<'END'
base 128 256
base 512 64
large 128 128
large 512 32
END
}

# steps of a case that count, and how many before them warm up
BENCH_STEPS=20
BENCH_WARM_UP=10

part_bench() {
    no_emulator
    need_device
    work=$OUT/parts/bench
    mkdir -p "$work"
    row "\`berth bench\`: steps of one micro-batch of random tokens, vocabulary 30522, median of $BENCH_STEPS steps after $BENCH_WARM_UP; graphs: device.cuda_graphs."
    row ""
    row "| case | micro-batch | sequences/s | tokens/s | MFU | GB planned | sequences/s without graphs |"
    row "|---|---|---|---|---|---|---|"
    : >"$OUT/parts/bench.tsv"
    bad=
    bench_table >"$work/cases"
    while read -r size length batch; do
        bench_case "$size" "$length" "$batch"
    done <"$work/cases"
    [ -z "$bad" ] || failed "$bad"
}

bench_case() { # SIZE LENGTH BATCH: a batch that does not fit is halved
    name=$1-$2-bf16 batch=$3
    until bench_steps "$1" "$2" "$batch" auto; do
        batch=$((batch / 2))
        if [ "$batch" -lt "$(($3 / 8))" ] || [ "$batch" = 0 ]; then
            row "| $name | | failed | | | | |"
            bad="${bad:+$bad; }$name: $(last_message)"
            return
        fi
        echo "--- $name: again with micro-batches of $batch"
    done
    lines=$work/bench.json
    cat "$lines"
    set -- "$1" "$2" "$(metric "$lines" sequences_per_s)" "$(metric "$lines" tokens_per_s)" "$(metric "$lines" mfu)" "$(metric "$lines" memory_bytes)"
    bench_steps "$1" "$2" "$batch" off && eager=$(metric "$lines" sequences_per_s) || eager=null
    printf '%s\t%s\t%s\n' "$name" "$batch" "$3" >>"$OUT/parts/bench.tsv"
    row "| $name | $batch | $3 | $4 | $5 | $(echo "$6" | awk '{ printf "%.2f", 1e-9 * $1 }') | $eager |"
    number "$name" "{\"micro_batch\": $batch, \"sequences_per_s\": $3, \"tokens_per_s\": $4, \"mfu\": $5, \"memory_bytes\": $6, \"sequences_per_s_without_graphs\": $eager}"
}

bench_steps() { # SIZE LENGTH BATCH GRAPHS: one JSON object into bench.json
    printf '[model]\npreset = %s\nvocab_size = 30522\n' "$1" >"$work/bench.ini"
    echo "--- $1, length $2, micro-batches of $3, device.cuda_graphs=$4"
    "$BERTH" bench "$work/bench.ini" train.precision=bf16 optim.name=adamw device.type=cuda "device.cuda_graphs=$4" \
        --seq-len "$2" --batch "$3" --steps "$BENCH_STEPS" --warm-up "$BENCH_WARM_UP" --json >"$work/bench.json"
}

# --- the peer ---

find_peer() {
    if [ -z "$PEER" ]; then
        PEER=build/peer/bin/python
        [ -f build/peer/ready ] || PEER=python3
    fi
    command -v "$PEER" >/dev/null 2>&1 || not_run "no Python: $PEER is not there (PEER=PYTHON with torch and transformers)"
    "$PEER" -c "import torch, transformers${1:+, $1}" 2>"$OUT/parts/import.txt" ||
        not_run "$PEER cannot import torch, transformers${1:+, $1}: $(tail -n 1 "$OUT/parts/import.txt")"
    "$PEER" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || not_run "PyTorch of $PEER sees no GPU"
}

# The micro-batches that --bench could use, where it ran; the fastest mode counts.
part_peer() {
    no_emulator
    find_peer ""
    cases=$(bench_table | while read -r size length batch; do
        used=$(awk -F'\t' -v name="$size-$length-bf16" '$1 == name { print $2 }' "$OUT/parts/bench.tsv" 2>/dev/null)
        echo "$size-$length-bf16@${used:-$batch}"
    done)
    # shellcheck disable=SC2086
    timeout -k 5 490 "$PEER" scripts/bench_step.py --rates $cases >"$OUT/parts/peer.txt" 2>&1
    code=$?
    cat "$OUT/parts/peer.txt"
    add_peer_rows
    [ $code != 124 ] || failed "not all modes were reached in time"
    [ $code = 0 ] || failed "bench_step.py --rates: $(tail -n 1 "$OUT/parts/peer.txt")"
    grep -q '^peer ' "$OUT/parts/peer.txt" || failed "no mode of PyTorch runs: $(tail -n 1 "$OUT/parts/peer.txt")"
}

add_peer_rows() {
    row "transformers' BertForPreTraining, bf16 autocast, AdamW (fused), MLM head on masked rows, full sequences, torch $(awk '/^peer / { v = $5 } END { print v }' "$OUT/parts/peer.txt")"
    row ""
    row "| case | micro-batch | mode | sequences/s | berth / PyTorch |"
    row "|---|---|---|---|---|"
    [ -f "$OUT/parts/bench.tsv" ] || : >"$OUT/parts/bench.tsv"
    awk 'FILENAME == ARGV[1] { split($0, f, "\t"); ours[f[1]] = f[3]; next }
        $1 == "peer" { split($2, name, "@"); r = name[1] in ours ? sprintf("%.2f", ours[name[1]] / $4) : ""
            printf "| %s | %s | %s | %s | %s |\n", name[1], name[2], $3, $4, r }' "$OUT/parts/bench.tsv" "$OUT/parts/peer.txt" >>"$SECTION"
    grep '^note: ' "$OUT/parts/peer.txt" | sed 's/^note: /\n/' >>"$SECTION"
    number rates "[$(awk '$1 == "peer" { split($2, name, "@"); printf "%s{\"case\": \"%s\", \"micro_batch\": %s, \"mode\": \"%s\", \"sequences_per_s\": %s, \"torch\": \"%s\"}", c, name[1], name[2], $3, $4, $5; c = ", " }' "$OUT/parts/peer.txt")]"
}

# --- pretrain ---

part_pretrain() {
    no_emulator
    need_device
    find_peer "h5py, numpy"
    work=$OUT/parts/pretrain
    mkdir -p "$work"
    find_shards
    "$PEER" scripts/bench_step.py "$BERTH" --pretrain "$work" --shards "$SHARDS" --vocab "$VOCAB" --minutes 3.3 >"$OUT/parts/pretrain.txt" ||
        failed "bench_step.py --pretrain: $(tail -n 1 "$OUT/pretrain.log")"
    cat "$OUT/parts/pretrain.txt"
    rm -rf "$work/run" "$work/start" # some gigabytes
    cp "$work/curves.svg" "$work/curves.tsv" "$OUT/"
    add_pretrain_rows
}

# real text: SHARDS and VOCAB, or made from TEXT
find_shards() {
    if [ -n "$SHARDS" ]; then
        [ -r "$VOCAB" ] || not_run "SHARDS is given, but VOCAB is no file"
        return
    fi
    [ -r "$TEXT" ] || not_run "no shards of real text: say SHARDS=FOLDER and VOCAB=FILE, or TEXT=FILE ($TEXT is not there)"
    VOCAB=$work/vocab.txt SHARDS=$work/shards/train
    rm -rf "$work/shards"
    "$BERTH" vocab --input "$TEXT" --size 16000 --output "$VOCAB" || failed "berth vocab, from $TEXT"
    "$BERTH" shard --input "$TEXT" --vocab "$VOCAB" --output "$work/shards" --seq-len 128 --max-predictions 20 --dupe-factor 5 --held-out 0 --seed 1 ||
        failed "berth shard, from $TEXT"
}

# of means of 20 losses: dropout draws other masks on each side, and so each curve wanders by itself
PRETRAIN_LIMIT=0.03

add_pretrain_rows() {
    # shellcheck disable=SC2046
    set -- $(sed -n 's/^pretrain //p' "$OUT/parts/pretrain.txt")
    row "BERT-base, length 128, bf16, 256 sequences a step, dropout 0.1, AdamW, the same weights and batches: $1 steps; berth $3 sequences/s, PyTorch ($5) $4."
    row "Losses are means of 20 steps; largest relative difference of these $2, limit $PRETRAIN_LIMIT. Every step: curves.tsv."
    row ""
    row "![losses](curves.svg)"
    row ""
    row "| step | berth | PyTorch |"
    row "|---|---|---|"
    awk '$1 == "at" { printf "| %s | %s | %s |\n", $2, $3, $4 }' "$OUT/parts/pretrain.txt" >>"$SECTION"
    number steps "$1"
    number largest_relative_difference "$2"
    number sequences_per_s "{\"berth\": $3, \"peer\": $4}"
    number curve "[$(awk '$1 == "at" { printf "%s[%s, %s, %s]", c, $2, $3, $4; c = ", " }' "$OUT/parts/pretrain.txt")]"
    awk -v d="$2" -v limit=$PRETRAIN_LIMIT 'BEGIN { exit !(d <= limit) }' || failed "the curves differ by $2 of the loss, limit $PRETRAIN_LIMIT"
}

# --- profile ---

part_profile() {
    no_emulator
    need_device
    profile_case configs/bert-large-phase1.ini 128 64
    profile_case configs/bert-large-phase2.ini 512 16
}

profile_case() { # SETTINGS LENGTH BATCH
    "$BERTH" analyze "$1" train.precision=bf16 device.type=cuda --seq-len "$2" --batch "$3" --measure >"$OUT/parts/profile-$2.txt" || failed "berth analyze --measure, length $2"
    cat "$OUT/parts/profile-$2.txt"
    row ""
    row "### BERT-large, length $2, $3 sequences, bf16"
    row ""
    row "Each operator of one micro-batch and the update, waited for one by one; roof: least possible time / measured time."
    row ""
    row "| operator | pass | count | ms | % | GB/s | Gflop/s | roof % |"
    row "|---|---|---|---|---|---|---|---|"
    measured_rows "$2" | awk '{ printf "| %s | %s | %s | %s | %s | %s | %s | %s |\n", $1, $2, $4, $5, $6, $7, $8, $9 }' >>"$SECTION"
    row ""
    row '```'
    sed -n '/^measured:/,$p' "$OUT/parts/profile-$2.txt" | sed -n '/^class /,$p' >>"$SECTION"
    row '```'
    number "large-$2-bf16" "[$(measured_rows "$2" | awk '{ printf "%s{\"name\": \"%s\", \"pass\": \"%s\", \"count\": %s, \"ms\": %s, \"gb_s\": %s, \"gflop_s\": %s, \"roof_percent\": %s}", c, $1, $2, $4, $5, $7, $8, $9; c = ", " }')]"
}

# the rows of the table of operators in `berth analyze --measure`: name pass class count ms % GB/s Gflop/s roof% MUE%
measured_rows() { sed -n '/^measured:/,$p' "$OUT/parts/profile-$1.txt" | awk '$1 == "operator" { on = 1; next } NF == 0 { on = 0 } on && NF == 10'; }

# --- the bundle ---

# libraries that every machine with gcc has, and that must be its own
SYSTEM_LIBRARIES='/(ld-linux[^/]*|libc|libm|libpthread|libdl|librt|libresolv|libutil|libstdc\+\+|libgcc_s|libgomp)\.so'

make_bundle() { # FILE
    # shellcheck source=scripts/packages.sh
    . scripts/packages.sh
    prefix=$(mktemp -d) || exit 1
    trap 'rm -rf "$prefix"' EXIT
    mkdir "$prefix/include" "$prefix/lib"
    for package in $BUILD_PACKAGES $TEST_PACKAGES; do
        case $package in lib*-dev | zlib1g-dev) add_package "$package" ;; esac
    done
    add_needed_libraries
    tar -C "$prefix" -czf "$1" include lib || exit 1
    echo "$1: $(find "$prefix/include" -type f | wc -l) headers, $(find "$prefix/lib" -name '*.so*' -type f | wc -l) libraries"
    echo "there: mkdir deps && tar -C deps -xzf $(basename "$1") && DEPS=\$PWD/deps sh scripts/gpu_check.sh --all"
}

# headers keep their folders below include/, but those of HDF5, which Debian keeps apart
add_package() {
    dpkg -L "$1" >"$prefix/files" 2>/dev/null || { echo "gpu_check: $1 is not installed: run scripts/check.sh first" >&2; exit 1; }
    while read -r path; do
        case $path in
            */hdf5/serial/*.h) cp "$path" "$prefix/include/" ;;
            */hdf5/serial/*.mod) ;; # Fortran's
            /usr/include/*) [ -f "$path" ] && add_header "$path" ;;
            */libhdf5*cpp* | */libhdf5*fortran* | */libhdf5*hl*) ;; # of other languages, and what berth does not call
            */lib*.so | */lib*.so.*) [ -f "$path" ] && add_library "$path" ;;
        esac
    done <"$prefix/files"
    rm "$prefix/files"
}

add_header() { # those of the machine's own folder (include/x86_64-linux-gnu) go to the top
    below=$(echo "${1#/usr/include/}" | sed 's,^[^/]*-linux-gnu[^/]*/,,')
    mkdir -p "$prefix/include/$(dirname "$below")"
    cp "$1" "$prefix/include/$below"
}

# add_library PATH: the file under the name that programs ask for (its soname), and under the linker's (libNAME.so)
add_library() {
    real=$(readlink -f "$1")
    soname=$(objdump -p "$real" 2>/dev/null | awk '$1 == "SONAME" { print $2 }')
    [ -n "$soname" ] || return 0
    [ -f "$prefix/lib/$soname" ] || cp "$real" "$prefix/lib/$soname"
    name=$(basename "$1")
    [ -e "$prefix/lib/$name" ] || ln -s "$soname" "$prefix/lib/$name"
}

add_needed_libraries() {
    find "$prefix/lib" -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | grep -Ev "$SYSTEM_LIBRARIES" >"$prefix/needed"
    while read -r path; do
        [ -f "$prefix/lib/$(basename "$path")" ] || cp -L "$path" "$prefix/lib/"
    done <"$prefix/needed"
    rm "$prefix/needed"
}

# --- running parts ---

limit_of() { part_table | awk -v part="$1" '$1 == part { print $2 }'; }

# run_part PART: its status, and one line on the terminal
run_part() {
    part=$1 limit=$(limit_of "$1") began=$(date +%s)
    rm -f "$OUT/parts/$part.why" "$OUT/parts/$part.status"
    : >"$OUT/parts/$part.md"
    : >"$OUT/parts/$part.json"
    timeout -k 10 $((limit * 60 - 15)) sh "$SELF" --inside "$part" >"$OUT/$part.log" 2>&1
    code=$?
    case $code in
        0) outcome=passed ;;
        77) outcome="not run" notes=$((notes + 1)) ;;
        *)
            outcome=failed failures=$((failures + 1))
            [ $code != 124 ] && [ $code != 137 ] || echo "stopped at its limit of $limit minutes" >"$OUT/parts/$part.why"
            [ -s "$OUT/parts/$part.why" ] || echo "ended with $code, the log says why" >"$OUT/parts/$part.why"
            ;;
    esac
    printf '%s\t%s\t%s\n' "$outcome" $(($(date +%s) - began)) "$(git describe --always --dirty 2>/dev/null || echo unknown)" >"$OUT/parts/$part.status"
    write_markdown
    write_json
    echo "$part: $outcome$(sed '1s/^/: /; 2,$d' "$OUT/parts/$part.why" 2>/dev/null)"
}

EMU=${EMU:-0} DEPS=${DEPS:-} PEER=${PEER:-} SHARDS=${SHARDS:-} VOCAB=${VOCAB:-} TEXT=${TEXT:-build/quickstart/kjv.txt}
CUDA_HOME=${CUDA_HOME:-/usr/local/cuda} NO_MPI=${NO_MPI:-0}
[ -n "${SM:-}" ] || unset SM # make takes an empty one as given
if [ ! -x "$CUDA_HOME/bin/nvcc" ] && command -v nvcc >/dev/null 2>&1; then
    CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
fi
# in the emulator: a family of each kind
EMU_OPERATORS=
[ "$EMU" = 0 ] || EMU_OPERATORS="add layernorm_dx softmax linear gather"
set_make

if [ "${1:-}" = --inside ]; then # from run_part: OUT is set
    part=$2 SECTION=$OUT/parts/$2.md NUMBERS=$OUT/parts/$2.json WHY=$OUT/parts/$2.why
    "part_$part"
    exit 0
fi

OUT=build/gpu_check asked='' COMMAND="scripts/gpu_check.sh $*"
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --all) asked="build operators sanitizer curve ranks bench peer profile $asked" ;;
        --out) [ $# -gt 1 ] || wrong "--out needs a folder"; OUT=$2 && shift ;;
        --no-mpi) NO_MPI=1 ;;
        --bundle) [ $# -gt 1 ] || wrong "--bundle needs a file"; make_bundle "$2" && exit 0 ;;
        --*) limit=$(limit_of "${1#--}"); [ -n "$limit" ] || wrong "unknown flag $1"; asked="$asked ${1#--}" ;;
        *) wrong "unexpected word $1" ;;
    esac
    shift
done
[ -n "$asked" ] || { usage; exit 0; }
if [ -n "$DEPS" ]; then
    if [ ! -d "$DEPS/include" ] || [ ! -d "$DEPS/lib" ]; then
        wrong "DEPS=$DEPS has no include/ and lib/"
    fi
    DEPS=$(cd "$DEPS" && pwd)
fi
mkdir -p "$OUT/parts" || exit 1
export OUT COMMAND EMU DEPS PEER SHARDS VOCAB TEXT CUDA_HOME NO_MPI
machine >"$OUT/parts/machine"
failures=0 notes=0
for part in $PARTS; do
    case " $asked " in *" $part "*) run_part "$part" ;; esac
done
echo "$failures failed, $notes not run: $OUT/report.md, $OUT/report.json"
[ "$failures" = 0 ]
