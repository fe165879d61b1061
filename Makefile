# berth. `make` builds build/berth; `make help` lists everything else.
#
#   make SANITIZE=1            address and undefined-behaviour sanitizers, in build/sanitize/ (SANITIZE=thread: build/thread/)
#   make ONEDNN=0 OPENMP=1 …   0: leave a feature out, 1: fail if it is not there; not given: use it if it is there
# Also respected: CC CFLAGS CPPFLAGS LDFLAGS, WERROR= (warnings are no errors), PREFIX DESTDIR, HDF5_HOME or HDF5_CFLAGS and
# HDF5_LIBS, CUDA_HOME, NCCL_HOME, and BUILD, the folder that everything goes to.

.DEFAULT_GOAL = all
VERSION = 0.1.0
CC = gcc
PREFIX ?= /usr/local
ifndef CUDA_HOME
CUDA_HOME := $(or $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)),/usr/local/cuda)
endif
SANITIZE ?= 0
EMU ?= 0

# --- what is built where ---
ifneq ($(EMU),0)
# the CUDA backend on the host: tests/cudaemu stands in for the device and its libraries
BUILD ?= build/emu$(filter-out 1,$(EMU))$(if $(filter 1,$(SANITIZE)),-sanitize)
CFLAGS ?= -O2 -g
CUDA = 0
OPENMP ?= 0
else ifeq ($(SANITIZE),0)
BUILD ?= build/release
CFLAGS ?= -O3 -g
else ifeq ($(SANITIZE),thread)
# libgomp and oneDNN synchronize where the thread sanitizer cannot see it
BUILD ?= build/thread
CFLAGS ?= -O1 -g
ONEDNN ?= 0
OPENMP ?= 0
SANITIZE_FLAGS = -fsanitize=thread
else
BUILD ?= build/sanitize
CFLAGS ?= -O1 -g
endif
# the kernels are sanitized in the emulator
ifneq ($(SANITIZE),0)
CUDA = 0
endif
ifeq ($(SANITIZE),1)
SANITIZE_FLAGS = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
PROGRAM = $(if $(filter build/release,$(BUILD)),build/berth,$(if $(filter build/emu,$(BUILD)),build/berth-emu,$(BUILD)/berth))

# --- features: probed once a build folder, and again when what is asked for changes ---
MPI_SOURCES = $(wildcard src/dist/mpi.c)
CUDA_SOURCES = $(wildcard src/kernels/cuda/*.cu)
NCCL_SOURCES = $(wildcard src/dist/nccl.c)
PROBE_INPUTS = CC CPPFLAGS LDFLAGS DEFLATE ZSTD ONEDNN OPENMP MPI CUDA NCCL HDF5_CFLAGS HDF5_LIBS HDF5_HOME CUDA_HOME NCCL_HOME \
    MPI_SOURCES CUDA_SOURCES NCCL_SOURCES
PROBE_ENVIRONMENT = $(foreach name,$(PROBE_INPUTS),$(name)='$($(name))')

# --- flags ---
WERROR ?= -Werror
COMPILE = $(CC) -std=c11 -D_GNU_SOURCE -Isrc -Wall -Wextra $(WERROR) $(FEATURE_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(SANITIZE_FLAGS)
LINK_FLAGS = $(CFLAGS) $(SANITIZE_FLAGS) $(LDFLAGS)
LIBS = $(FEATURE_LIBS) $(if $(HAVE_CUDA),$(CUDA_LIBS)) -lm -lpthread
COMMIT := $(shell git describe --always 2>/dev/null)

# --- CUDA: kernels by nvcc, or by g++ for the emulator. Compiled once, to PTX for the first of SM, the lowest; assembled for each of
# them; the PTX is there for later ones. Not given: those of 80, 90 and 100 that nvcc knows ---
SM ?= $(SM_KNOWN)
NVCC ?= $(CUDA_HOME)/bin/nvcc
NVCC_FLAGS ?= -O3 -Xfatbin -compress-all
SPACE := $(subst ,, )
NVCC_TARGETS = -gencode 'arch=compute_$(firstword $(SM)),code=[$(subst $(SPACE),$(,),$(SM:%=sm_%)),compute_$(firstword $(SM))]'
COMPILE_CUDA = $(NVCC) -std=c++17 -Isrc $(NVCC_FLAGS) $(NVCC_TARGETS) -Werror all-warnings \
    -Xcompiler -Wall,-Wextra$(if $(WERROR),$(,)-Werror)
, := ,
ifneq ($(EMU),0)
HAVE_CUDA = 1
EMU_RUNTIME = $(filter-out tests/cudaemu/test_% $(if $(filter race,$(EMU)),,tests/cudaemu/race.cpp),$(wildcard tests/cudaemu/*.cpp))
EMU_OBJECTS = $(EMU_RUNTIME:tests/%.cpp=$(BUILD)/obj/%.o)
CXX = g++
COMPILE_EMU = $(CXX) -x c++ -std=c++17 -DBERTH_EMU -Isrc -Itests/cudaemu -I$(CUDA_HOME)/include -Wall -Wextra -Wno-unknown-pragmas $(WERROR) \
    $(CFLAGS) $(SANITIZE_FLAGS) -O1
# EMU=race: accesses of kernels call tests/cudaemu/race.cpp
RACE_FLAGS = $(if $(filter race,$(EMU)),-fsanitize=thread -fno-omit-frame-pointer)
CUDA_LIBS = -lstdc++
else
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 $(if $(NCCL_HOME),-Wl$(,)-rpath$(,)$(NCCL_HOME)/lib) -lcudart_static -ldl -lrt -lstdc++
endif

# --- an archive a folder: what a test links is what its folder may see ---
FOLDERS = cmd train data optim model dist kernels/cpu $(if $(HAVE_CUDA),kernels/cuda) graph config base
SOURCES = $(filter-out $(if $(HAVE_MPI),,src/dist/mpi.c),$(wildcard $(FOLDERS:%=src/%/*.c)))
ARCHIVES = $(FOLDERS:%=$(BUILD)/lib/%.a)
objects_of = $(patsubst src/%.c,$(BUILD)/obj/%.o,$(filter $(wildcard src/$(1)/*.c),$(SOURCES))) \
    $(if $(filter kernels/cuda,$(1)),$(CUDA_SOURCES:src/%.cu=$(BUILD)/obj/%.cu.o) $(EMU_OBJECTS))
KERNELS = kernels/cpu $(if $(HAVE_CUDA),kernels/cuda)
LINK_base = base
LINK_config = config base
LINK_data = data base
LINK_graph = graph base
LINK_kernels = $(KERNELS) graph base
LINK_dist = dist graph base
LINK_model = model $(KERNELS) graph base
LINK_optim = optim $(KERNELS) graph base
LINK_train = $(filter-out cmd,$(FOLDERS))
LINK_cmd = $(FOLDERS)
LINK_reference = $(LINK_train)
TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*/test_*.c tests/*/*/test_*.c))

# --- what the build depends on beside its sources ---
# $(call stamp,FILE,TEXT): rewrites FILE if its text is another one, so that what depends on it is made again
stamp = $(shell mkdir -p $(dir $(1)); printf '%s\n' "$(2)" >$(1).new; cmp -s $(1).new $(1) && rm $(1).new || mv $(1).new $(1))

NO_BUILD_GOALS = clean help uninstall check-layers format-check
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(NO_BUILD_GOALS),$(MAKECMDGOALS)),all),)
$(call stamp,$(BUILD)/probe.stamp,$(PROBE_ENVIRONMENT))
$(BUILD)/features.mk: scripts/probe.sh $(BUILD)/probe.stamp
	@$(PROBE_ENVIRONMENT) sh scripts/probe.sh $(BUILD)
include $(BUILD)/features.mk
# nvcc's build and the emulator's
ifdef HAVE_CUDA
FEATURE_CFLAGS += -DBERTH_CUDA $(if $(HAVE_NCCL),-DBERTH_NCCL)
endif
$(call stamp,$(BUILD)/flags.stamp,$(COMPILE) $(LINK_FLAGS) $(if $(HAVE_CUDA),$(COMPILE_CUDA) $(COMPILE_EMU) $(RACE_FLAGS)))
$(call stamp,$(BUILD)/version.stamp,$(VERSION) $(COMMIT))
$(call stamp,$(BUILD)/sources.stamp,$(SOURCES))
endif

all: $(PROGRAM)

# the same program with the CUDA backend on the emulator: build/berth-emu
emu: cuda-headers
	@$(MAKE) EMU=1 all

cuda-headers:
	@test -r $(CUDA_HOME)/include/cuda_runtime.h || { echo "CUDA's headers are not in $(CUDA_HOME)/include: set CUDA_HOME" >&2; exit 2; }

$(PROGRAM): $(BUILD)/obj/main.o $(ARCHIVES)
	$(CC) $(LINK_FLAGS) -o $@ $< -Wl,--start-group $(ARCHIVES) -Wl,--end-group $(LIBS)

$(BUILD)/obj/main.o: CPPFLAGS += -DBERTH_VERSION='"$(VERSION)$(if $(COMMIT), ($(COMMIT)))"'
$(BUILD)/obj/main.o: $(BUILD)/version.stamp
# the loops of the kernels can only be vectorized when comparisons need not raise exceptions (no value changes); multiply and add are one
# instruction, rounded once, where the processor has it
$(BUILD)/obj/kernels/cpu/%.o: CFLAGS += -fno-trapping-math -fno-math-errno -ffp-contract=fast -fno-thread-jumps
$(BUILD)/obj/%.o: src/%.c $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	$(COMPILE) -MMD -MP -c $< -o $@

$(BUILD)/obj/dist/mpi.o: CPPFLAGS += $(MPI_CFLAGS)
$(BUILD)/obj/dist/nccl.o: CPPFLAGS += $(NCCL_CFLAGS) $(if $(filter-out 0,$(EMU)),-DBERTH_EMU)
$(BUILD)/obj/kernels/cuda/%.o: CPPFLAGS += -I$(CUDA_HOME)/include $(if $(filter-out 0,$(EMU)),-DBERTH_EMU)
ifeq ($(EMU),0)
$(BUILD)/obj/%.cu.o: src/%.cu $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	@echo "$(COMPILE_CUDA) -c $< -o $@"
	@$(COMPILE_CUDA) -Xptxas -v -MMD -MP -c $< -o $@ >$(@:.o=.log) 2>&1 || { cat $(@:.o=.log) >&2; exit 1; }
else
$(BUILD)/obj/%.cu.o: src/%.cu $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	$(COMPILE_EMU) $(RACE_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/obj/cudaemu/%.o: tests/cudaemu/%.cpp $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	$(COMPILE_EMU) -O2 -MMD -MP -c $< -o $@
$(BUILD)/obj/cudaemu/nccl.o: COMPILE_EMU += $(NCCL_CFLAGS)
# its own tests, whose kernels are compiled as all kernels are
$(BUILD)/tests/cudaemu/test_%: tests/cudaemu/test_%.cpp $(EMU_OBJECTS) $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	$(COMPILE_EMU) $(RACE_FLAGS) -MMD -MP -MT $@ -c $< -o $@.o
	$(CXX) $(SANITIZE_FLAGS) -o $@ $@.o $(EMU_OBJECTS)
endif

.SECONDEXPANSION:
$(BUILD)/lib/%.a: $$(call objects_of,$$*) $(BUILD)/sources.stamp
	@mkdir -p $(@D)
	@rm -f $@
	ar rcs $@ $(filter %.o,$^)

# what the tests of a folder share: its sources that are not named test_
shared_sources = $(filter-out $(wildcard tests/$(1)test_*.c),$(wildcard tests/$(1)*.c))
$(BUILD)/tests/%: tests/%.c $(BUILD)/flags.stamp $$(call shared_sources,$$(dir $$*)) \
    $$(foreach f,$$(LINK_$$(firstword $$(subst /, ,$$*))),$(BUILD)/lib/$$(f).a)
	@mkdir -p $(@D)
	$(COMPILE) -MMD -MP -o $@ $(filter %.c,$^) $(LINK_FLAGS) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group -lcmocka $(LIBS)

tests: $(TESTS)

print-tests:
	@echo $(TESTS)

check: tests
	@sh scripts/run_tests.sh $(TESTS)

check-layers:
	@python3 scripts/check_layers.py --self-test && python3 scripts/check_layers.py

FORMATTED = $(shell find src tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp')
FORMAT_VERSION = 14
format-check:
	@found=$$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p'); \
	if [ "$$found" = $(FORMAT_VERSION) ]; then clang-format --dry-run -Werror $(FORMATTED); \
	else echo "format: skipped: clang-format is $${found:-not there}, other versions than $(FORMAT_VERSION) format otherwise"; fi

# the emulator finds planted faults, and nothing in their twins: as it is, with the race checker, with sanitizers
EMU_TESTS = tests/cudaemu/test_emulator tests/cudaemu/test_streams
check-emulator: cuda-headers
	@$(MAKE) -s EMU=1 $(EMU_TESTS:%=build/emu/%)
	@$(MAKE) -s EMU=race $(EMU_TESTS:%=build/emurace/%)
	@$(MAKE) -s EMU=1 SANITIZE=1 $(EMU_TESTS:%=build/emu-sanitize/%)
	@sh scripts/run_tests.sh $(foreach build,emu emurace emu-sanitize,$(EMU_TESTS:%=build/$(build)/%))

# the CUDA backend without a GPU: the emulator itself, the operator table and the optimizers in it and under its race checker,
# and steps of training beside the CPU backend
EMU_KERNEL_TESTS = tests/kernels/test_optable tests/kernels/test_choices tests/optim/test_optim
EMU_TRAIN_TESTS = tests/train/test_recording tests/train/test_nccl
check-emu: all check-emulator
	@$(MAKE) -s EMU=1 all $(EMU_KERNEL_TESTS:%=build/emu/%) $(EMU_TRAIN_TESTS:%=build/emu/%) build/emu/tests/train/test_network
	@$(MAKE) -s EMU=race $(EMU_KERNEL_TESTS:%=build/emurace/%)
	@BERTH_TEST_DEVICE=cuda sh scripts/run_tests.sh $(EMU_KERNEL_TESTS:%=build/emu/%) $(EMU_TRAIN_TESTS:%=build/emu/%) \
	    $(EMU_KERNEL_TESTS:%=build/emurace/%)
	@for only in test_fusion_in_16_bits test_nothing_of_the_step_before; do \
	    BERTH_TEST_DEVICE=cuda BERTH_TEST_ONLY=$$only sh scripts/run_tests.sh build/emu/tests/train/test_network || exit 1; done
	@python3 tests/cudaemu/train_check.py $(PROGRAM) build/berth-emu
	@python3 tests/train/check_ranks.py $(PROGRAM) build/berth-emu

# a table of what ptxas made of the kernels, docs/results/kernels.md; fails where registers are spilled or the page is of others.
# NCCL is loaded at run time: that its functions are there as its header has them shows where they are linked
nvcc-check: all $(if $(HAVE_NCCL),$(BUILD)/nccl-linked)
	@$(if $(HAVE_CUDA),,echo "nvcc-check: this build has no CUDA (make features)" >&2; exit 2)
	@python3 scripts/kernel_table.py $(NVCC) docs/results/kernels.md $(CUDA_SOURCES:src/%.cu=$(BUILD)/obj/%.cu.log) >$(BUILD)/kernels.md; \
	    code=$$?; cat $(BUILD)/kernels.md; exit $$code

$(BUILD)/nccl-linked: src/dist/nccl.c $(BUILD)/lib/dist.a $(BUILD)/lib/base.a
	@echo 'int main(void) { return 0; }' | $(COMPILE) -DBERTH_NCCL_LINKED $(NCCL_CFLAGS) -o $@ -x c - -x none $^ $(LINK_FLAGS) $(LIBS) $(NCCL_LIBS)
	@echo "src/dist/nccl.c links against NCCL"

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/berth/configs
	install -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/berth
	install -m 644 configs/*.ini $(DESTDIR)$(PREFIX)/share/berth/configs

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/berth
	rm -rf $(DESTDIR)$(PREFIX)/share/berth

features: $(BUILD)/features.mk
	@cat $(BUILD)/features.txt

clean:
	rm -rf $(BUILD) $(PROGRAM)

help:
	@echo "make              build/berth, optimized (objects in build/release)"
	@echo "make SANITIZE=1   build/sanitize/berth, with address and undefined-behaviour sanitizers"
	@echo "make tests        all test programs     make check          run them and count"
	@echo "make check-layers who includes whom     make format-check   clang-format finds nothing to change"
	@echo "make check-emulator   the emulator that CUDA kernels are tested in finds planted faults"
	@echo "make emu          build/berth-emu, the CUDA backend on the host (slow)"
	@echo "make check-emu    CUDA kernels without a GPU    make nvcc-check     registers and spills of the kernels"
	@echo "make features     what was found        make clean          removes BUILD ($(BUILD))"
	@echo "make install      PREFIX=/usr/local DESTDIR=     make uninstall"
	@echo "make bench-data   preparing data beside other programs (TEXT=FILE)"
	@echo "make bench-gemm   products of this build beside oneDNN's (SHAPES=1024x768, a part of their names)"
	@echo "make bench-cpu    training steps beside PyTorch's (CASES=\"base-128-bf16 …\", PEER=PYTHON)"
	@echo "sh scripts/gpu_check.sh                 everything that needs a GPU, with a report"
	@echo "Features: DEFLATE ZSTD ONEDNN OPENMP MPI CUDA NCCL = 0 (leave out) or 1 (must be there); sh scripts/check.sh checks everything."

# data preparation beside its peers; build/venv is made by scripts/check.sh
TEXT ?= build/quickstart/kjv.txt
bench-data: $(PROGRAM)
	@test -x build/venv/bin/python || { echo "bench-data: run scripts/check.sh first, which makes build/venv" >&2; exit 2; }
	@test -r $(TEXT) || { echo "bench-data: $(TEXT) is not there: say TEXT=FILE, or run scripts/quickstart.sh first" >&2; exit 2; }
	@build/venv/bin/python scripts/bench_data.py $(PROGRAM) $(TEXT)

# products beside oneDNN's, in turn: "gemm NAME berth_gflops library_gflops ratio", best of the rounds
bench-gemm: $(BUILD)/tests/kernels/test_products
	@$< perf $(SHAPES)

# whole training steps beside PyTorch's; PEER: a Python with torch, transformers, h5py and numpy. Not given: one is made with the
# newest of them, some gigabytes
PEER ?= build/peer/bin/python
bench-cpu: $(PROGRAM) $(if $(filter build/peer/bin/python,$(PEER)),build/peer/ready)
	@test -x "$$(command -v $(PEER))" || { echo "bench-cpu: $(PEER) is not there: say PEER=PYTHON with torch, transformers, h5py and numpy, or nothing, and one is made" >&2; exit 2; }
	@$(PEER) scripts/bench_step.py $(PROGRAM) $(CASES)

build/peer/ready:
	@echo "bench-cpu: making build/peer (torch, transformers, h5py, numpy)" >&2
	@rm -rf build/peer && python3 -m venv build/peer && build/peer/bin/pip install -q torch transformers h5py numpy >build/peer.log 2>&1 && touch $@ || \
	    { tail -n 5 build/peer.log; echo "bench-cpu: build/peer could not be made: say PEER=PYTHON" >&2; exit 1; }

.SECONDARY:
.PHONY: all emu cuda-headers check-emulator check-emu tests print-tests check check-layers format-check nvcc-check install uninstall features clean help bench-data bench-gemm bench-cpu
-include $(CUDA_SOURCES:src/%.cu=$(BUILD)/obj/%.cu.d) $(EMU_OBJECTS:.o=.d) $(wildcard $(BUILD)/tests/cudaemu/*.d)
-include $(SOURCES:src/%.c=$(BUILD)/obj/%.d) $(BUILD)/obj/main.d $(TESTS:%=%.d)
