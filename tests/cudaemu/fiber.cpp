#include "fiber.h"

#include <stdint.h>

#include "internal.h"

namespace emu {

#if !defined(EMU_UCONTEXT)

/* Only what a called function must keep is saved: to the compiler a switch is a call. */
extern "C" void berth_emu_switch(void **save, void *stack_pointer);
asm(R"(
    .text
    .globl berth_emu_switch
    .type berth_emu_switch, @function
berth_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size berth_emu_switch, . - berth_emu_switch
)");

static void machine_make(context *made, void *stack, size_t bytes, void (*entry)()) {
    void **top = reinterpret_cast<void **>(((uintptr_t)stack + bytes) & ~(uintptr_t)15);
    *--top = nullptr; /* entry's return address, and with it the alignment that a called function expects */
    *--top = reinterpret_cast<void *>(entry);
    for (int saved = 0; saved < 6; saved++)
        *--top = nullptr;
    made->stack_pointer = top;
}

static void machine_switch(context *from, context *to) { berth_emu_switch(&from->stack_pointer, to->stack_pointer); }

#else

static void machine_make(context *made, void *stack, size_t bytes, void (*entry)()) {
    getcontext(&made->saved);
    made->saved.uc_stack.ss_sp = stack;
    made->saved.uc_stack.ss_size = bytes;
    made->saved.uc_link = nullptr;
    makecontext(&made->saved, entry, 0);
}

static void machine_switch(context *from, context *to) { swapcontext(&from->saved, &to->saved); }

#endif

void context_make(context *made, void *stack, size_t bytes, void (*entry)()) {
    ASAN_UNPOISON_MEMORY_REGION(stack, bytes); /* what a fiber before this one never returned from */
    machine_make(made, stack, bytes, entry);
    made->stack = stack;
    made->stack_bytes = bytes;
    made->sanitizer = nullptr;
}

#if defined(__SANITIZE_ADDRESS__)

/* The sanitizer has to know which stack is in use. It tells where the one that was left lies, which for the host's own
 * stack nobody else knows. */
static context *left;

void context_entered() { __sanitizer_finish_switch_fiber(nullptr, &left->stack, &left->stack_bytes); }

void context_switch(context *from, context *to, bool ends) {
    left = from;
    __sanitizer_start_switch_fiber(ends ? nullptr : &from->sanitizer, to->stack, to->stack_bytes);
    machine_switch(from, to);
    __sanitizer_finish_switch_fiber(from->sanitizer, &left->stack, &left->stack_bytes);
}

#else

void context_entered() {}

void context_switch(context *from, context *to, bool) { machine_switch(from, to); }

#endif

}  // namespace emu
