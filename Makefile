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
CUDA_HOME ?= /usr/local/cuda
SANITIZE ?= 0

# --- what is built where ---
ifeq ($(SANITIZE),0)
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
SANITIZE_FLAGS = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
PROGRAM = $(if $(filter build/release,$(BUILD)),build/berth,$(BUILD)/berth)

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
LIBS = $(FEATURE_LIBS) -lm -lpthread
COMMIT := $(shell git describe --always 2>/dev/null)

# --- an archive a folder: what a test links is what its folder may see ---
FOLDERS = cmd train data optim model dist kernels/cpu graph config base
SOURCES = $(filter-out $(if $(HAVE_MPI),,src/dist/mpi.c) $(if $(HAVE_NCCL),,src/dist/nccl.c),\
    $(wildcard $(FOLDERS:%=src/%/*.c)))
ARCHIVES = $(FOLDERS:%=$(BUILD)/lib/%.a)
objects_of = $(patsubst src/%.c,$(BUILD)/obj/%.o,$(filter $(wildcard src/$(1)/*.c),$(SOURCES)))
LINK_base = base
LINK_config = config base
LINK_data = data base
LINK_graph = graph base
LINK_kernels = kernels/cpu graph base
LINK_dist = dist graph base
LINK_model = model kernels/cpu graph base
LINK_optim = optim kernels/cpu graph base
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
$(call stamp,$(BUILD)/flags.stamp,$(COMPILE) $(LINK_FLAGS))
$(call stamp,$(BUILD)/version.stamp,$(VERSION) $(COMMIT))
$(call stamp,$(BUILD)/sources.stamp,$(SOURCES))
endif

all: $(PROGRAM)

$(PROGRAM): $(BUILD)/obj/main.o $(ARCHIVES)
	$(CC) $(LINK_FLAGS) -o $@ $< -Wl,--start-group $(ARCHIVES) -Wl,--end-group $(LIBS)

$(BUILD)/obj/main.o: CPPFLAGS += -DBERTH_VERSION='"$(VERSION)$(if $(COMMIT), ($(COMMIT)))"'
$(BUILD)/obj/main.o: $(BUILD)/version.stamp
# the loops of the kernels can only be vectorized when comparisons need not raise exceptions; no value changes
$(BUILD)/obj/kernels/cpu/%.o: CFLAGS += -fno-trapping-math -fno-math-errno
$(BUILD)/obj/%.o: src/%.c $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	$(COMPILE) -MMD -MP -c $< -o $@

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

FORMATTED = $(shell find src tests -name '*.[ch]')
FORMAT_VERSION = 14
format-check:
	@found=$$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p'); \
	if [ "$$found" = $(FORMAT_VERSION) ]; then clang-format --dry-run -Werror $(FORMATTED); \
	else echo "format: skipped: clang-format is $${found:-not there}, other versions than $(FORMAT_VERSION) format otherwise"; fi

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
	@echo "make features     what was found        make clean          removes BUILD ($(BUILD))"
	@echo "make install      PREFIX=/usr/local DESTDIR=     make uninstall"
	@echo "make bench-data   preparing data beside other programs (TEXT=FILE)"
	@echo "Features: DEFLATE ZSTD ONEDNN OPENMP MPI CUDA NCCL = 0 (leave out) or 1 (must be there); sh scripts/check.sh checks everything."

# data preparation beside its peers; build/venv is made by scripts/check.sh
TEXT ?= build/quickstart/kjv.txt
bench-data: $(PROGRAM)
	@test -x build/venv/bin/python || { echo "bench-data: run scripts/check.sh first, which makes build/venv" >&2; exit 2; }
	@test -r $(TEXT) || { echo "bench-data: $(TEXT) is not there: say TEXT=FILE, or run scripts/quickstart.sh first" >&2; exit 2; }
	@build/venv/bin/python scripts/bench_data.py $(PROGRAM) $(TEXT)

include tests/cudaemu/emu.mk

.SECONDARY:
.PHONY: all tests print-tests check check-layers format-check install uninstall features clean help bench-data
-include $(SOURCES:src/%.c=$(BUILD)/obj/%.d) $(BUILD)/obj/main.d $(TESTS:%=%.d)
