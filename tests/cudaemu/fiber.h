/* Threads that only change hands when they say so: each has a stack, and a switch takes a few nanoseconds. */
#ifndef BERTH_TESTS_CUDAEMU_FIBER_H
#define BERTH_TESTS_CUDAEMU_FIBER_H

#include <stddef.h>

namespace emu {

/* Where a fiber, or the host's own stack, stands while another one runs. */
struct context {
    void *stack_pointer;
    const void *stack; /* the lowest address of the stack */
    size_t stack_bytes;
    void *sanitizer; /* the address sanitizer's record */
};

/* `made`, which has a stack, begins at `entry`, which must never return. */
void context_make(context *made, size_t stack_bytes, void (*entry)());

/* Goes on in `to`; returns when something switches back to `from`. `ends`: nothing will. */
void context_switch(context *from, context *to, bool ends);

/* The first thing that an entry does. */
void context_entered();

}  // namespace emu

#endif
