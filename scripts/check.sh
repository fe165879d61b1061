#!/bin/sh
# Installs what the tests need, then runs all of them: layers, format, every cmocka test optimized and under the address and
# undefined-behaviour sanitizers, the reader under the thread sanitizer, and the end-to-end checks tests/*/check_*.py.
# Ends with "N passed, N failed, N skipped"; exit 0 only if nothing failed. CHECK_FAST=1 leaves the sanitizers out.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh
counts=build/counts
mkdir -p build
: >$counts

# step TITLE COMMAND...: one thing that passes or fails, or says SKIPPED in its only line
step() {
    title=$1
    shift
    if "$@" >build/step.log 2>&1; then
        if [ "$(wc -l <build/step.log)" = 1 ] && grep -q '^SKIPPED: ' build/step.log; then
            skip "$title: $(sed 's/^SKIPPED: //' build/step.log)"
            return
        fi
        echo "ok      $title"
        grep -i 'skip' build/step.log | sed 's/^/    /'
        echo "1 0 0" >>$counts
    else
        echo "FAILED  $title"
        tail -n 40 build/step.log | sed 's/^/    /'
        echo "0 1 0" >>$counts
    fi
}

skip() {
    echo "SKIPPED $1"
    echo "0 0 1" >>$counts
}

# tests TITLE MAKE_ARGUMENTS...: build and run the test programs whose names match ${only:-.}
tests() {
    title=$1
    shift
    programs=$(make -s "$@" print-tests 2>/dev/null | tr ' ' '\n' | grep '^build/.*/tests/' | grep "${only:-.}")
    # shellcheck disable=SC2086
    if make -j2 "$@" $programs >build/step.log 2>&1; then
        echo "--- $title"
        COUNTS=$counts sh scripts/run_tests.sh $programs
    else
        echo "FAILED  $title: building"
        grep -E 'error|\*\*\*' build/step.log | head -n 20 | sed 's/^/    /'
        echo "0 1 0" >>$counts
    fi
}

# shellcheck disable=SC2086
need_packages $BUILD_PACKAGES $TEST_PACKAGES || exit 1
need_packages $RANKS_PACKAGES
need_packages $PARITY_PACKAGES
step "build" make -j2
if grep -q HAVE_CUDA build/release/features.mk; then
    step "CUDA kernels compile for every architecture and spill no registers" make nvcc-check
else
    skip "compiling CUDA kernels: no nvcc (set CUDA_HOME)"
fi
step "layers" make check-layers
step "format" make format-check
tests "optimized"
if [ "${CHECK_FAST:-0}" != 1 ]; then
    tests "address and undefined-behaviour sanitizers" SANITIZE=1
    only=test_reader tests "thread sanitizer" SANITIZE=thread
    if [ -r "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime.h" ]; then
        step "the CUDA emulator finds planted faults" make check-emulator
        export BERTH_TEST_DEVICE=cuda
        only='test_optable\|test_optim\|test_choices\|test_recording\|test_nccl' tests "CUDA backend in the emulator" EMU=1
        only='test_optable\|test_optim' tests "CUDA kernels under the race checker" EMU=race
        only='test_optable\|test_optim\|test_choices\|test_recording\|test_nccl' \
            tests "CUDA backend under address and undefined-behaviour sanitizers" EMU=1 SANITIZE=1
        export BERTH_TEST_ONLY=test_fusion_in_16_bits # all of test_network would take five minutes
        only=test_network tests "levels of fusion in the emulator" EMU=1
        BERTH_TEST_ONLY=test_nothing_of_the_step_before
        only=test_network tests "shares without masks or sequences in the emulator" EMU=1
        unset BERTH_TEST_ONLY
        unset BERTH_TEST_DEVICE
        step "the program with the emulator" make emu
        step "tests/cudaemu/train_check.py" python3 tests/cudaemu/train_check.py build/berth build/berth-emu
        step "tests/train/check_ranks.py in the emulator" python3 tests/train/check_ranks.py build/berth build/berth-emu
    else
        skip "CUDA kernels: CUDA's headers are not here (set CUDA_HOME)"
    fi
    only='test_optable\|test_network\|test_reference\|test_shard_forms\|test_documents\|test_comm' \
        tests "without optional libraries" BUILD=build/plain ONEDNN=0 DEFLATE=0 ZSTD=0 MPI=0 CUDA=0
fi

# Python with PyTorch and transformers: Debian's torch, the rest from requirements.txt
python=build/venv/bin/python
if [ ! -f build/venv/ready ]; then
    echo "--- making build/venv (tests/reference/requirements.txt)"
    if /usr/bin/python3 -m venv --clear --system-site-packages build/venv &&
        build/venv/bin/pip install -q -r tests/reference/requirements.txt >build/step.log 2>&1 &&
        build/venv/bin/python -c 'import torch, transformers, h5py' >build/step.log 2>&1; then
        touch build/venv/ready
    else
        tail -n 5 build/step.log
    fi
fi
for check in tests/*/check_*.py; do
    if [ -f build/venv/ready ] || ! grep -q 'import torch\|import transformers\|h5py' "$check"; then
        [ -f build/venv/ready ] && run=$python || run=python3
        step "$check" "$run" "$check" build/berth
    else
        skip "$check: Python packages could not be installed"
    fi
done

# HuggingFace's tokenizers, newer than the transformers above allow, beside berth tokenize
if [ ! -d build/tokenizers/tokenizers ]; then
    python3 -m pip --version >/dev/null 2>&1 && pip="python3 -m pip" || pip=build/venv/bin/pip
    $pip install -q --no-deps --target build/tokenizers tokenizers==0.23.1 >build/step.log 2>&1 || tail -n 5 build/step.log
fi
if [ -d build/tokenizers/tokenizers ]; then
    step "tests/reference/tokenizer_parity.py" env PYTHONPATH=build/tokenizers \
        python3 tests/reference/tokenizer_parity.py build/berth README.md docs/data.md
else
    skip "tests/reference/tokenizer_parity.py: tokenizers could not be installed"
fi

awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }' $counts
