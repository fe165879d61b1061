/* Threads that only change hands when they say so: each has a stack, and a switch takes a few nanoseconds. */
#ifndef BERTH_TESTS_CUDAEMU_FIBER_H
#define BERTH_TESTS_CUDAEMU_FIBER_H

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emu {

/* Where a fiber, or the host's own stack, stands while another one runs. */
struct context {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t saved;
#endif
    const void *stack; /* the lowest address of the stack */
    size_t stack_bytes;
    void *sanitizer; /* the address sanitizer's record */
};

/* A context that begins at `entry`, which must never return. */
void context_make(context *made, void *stack, size_t bytes, void (*entry)());

/* Goes on in `to`; returns when something switches back to `from`. `ends`: nothing will. */
void context_switch(context *from, context *to, bool ends);

/* The first thing that an entry does. */
void context_entered();

}  // namespace emu

#endif
