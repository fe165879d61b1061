# The CUDA emulator and its test, in three builds: plain, with the race checker, and with address and undefined-behaviour
# sanitizers. `make check-emulator` runs the test in all three; without CUDA's headers there is nothing to build.
#
# For what else is built with it: $(EMU_OBJECTS_plain), _race, _address are its object files; kernels are compiled by
# $(call EMU_COMPILE,plain) -c …, and a program is linked by $(call EMU_LINK,plain) -o ….

CXX ?= g++
EMU_BUILDS = plain race address
EMU_PARTS = cudaemu cublaslt fiber report runtime
EMU_HAVE_CUDA := $(wildcard $(CUDA_HOME)/include/cuda_runtime.h)

# what only kernels are compiled with: the callbacks of the race checker are not instrumented themselves
EMU_KERNEL_FLAGS_race = -fsanitize=thread
# what everything is compiled and linked with
EMU_FLAGS_address = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

EMU_FLAGS = -std=c++17 -g -DBERTH_EMU -Isrc -Itests/cudaemu -isystem $(CUDA_HOME)/include -Wall -Wextra $(WERROR) \
    -Wno-unknown-pragmas -MMD -MP
EMU_COMPILE = $(CXX) -x c++ $(EMU_FLAGS) -O1 $(EMU_FLAGS_$(1)) $(EMU_KERNEL_FLAGS_$(1))
EMU_LINK = $(CXX) -g -fopenmp $(EMU_FLAGS_$(1))
EMU_DIR = $(BUILD)/cudaemu

# $(call EMU_RULES,BUILD): its object files, and the test
define EMU_RULES
EMU_OBJECTS_$(1) = $(EMU_PARTS:%=$(EMU_DIR)/$(1)/%.o) $(if $(filter race,$(1)),$(EMU_DIR)/race/race.o)
$$(EMU_OBJECTS_$(1)): $(EMU_DIR)/$(1)/%.o: tests/cudaemu/%.cpp $(BUILD)/flags.stamp
	@mkdir -p $$(@D)
	$(CXX) $(EMU_FLAGS) -O3 -fopenmp $(EMU_FLAGS_$(1)) -c $$< -o $$@
$(EMU_DIR)/$(1)/test_emulator.o: tests/cudaemu/test_emulator.cpp $(BUILD)/flags.stamp
	@mkdir -p $$(@D)
	$$(call EMU_COMPILE,$(1)) -c $$< -o $$@
$(EMU_DIR)/$(1)/test_emulator: $(EMU_DIR)/$(1)/test_emulator.o $$(EMU_OBJECTS_$(1))
	$$(call EMU_LINK,$(1)) -o $$@ $$^
endef
$(foreach build,$(EMU_BUILDS),$(eval $(call EMU_RULES,$(build))))

EMU_TESTS = $(EMU_BUILDS:%=$(EMU_DIR)/%/test_emulator)

.PHONY: check-emulator
ifneq ($(EMU_HAVE_CUDA),)
check-emulator: $(EMU_TESTS)
	@sh scripts/run_tests.sh $(EMU_TESTS)
else
check-emulator:
	@echo "emulator: skipped: $(CUDA_HOME)/include has no cuda_runtime.h (CUDA_HOME says where CUDA's headers are)"
endif

-include $(wildcard $(EMU_BUILDS:%=$(EMU_DIR)/%/*.d))
