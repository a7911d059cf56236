// A flow of control with a separate stack, and the switch between two of them.
//
// x86-64 has a hand-written switch (a few nanoseconds: a barrier of 256 threads is 256 switches); elsewhere the
// C library's ucontext does it, slower. Both compile everywhere they can: -DSIMULATOR_UCONTEXT picks the second.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(SIMULATOR_UCONTEXT)

namespace simulator {
struct Context {
  void* stack_pointer = nullptr;
};
extern "C" void troupe_simulator_switch(void** save, void* load);
// A stack whose first switch "returns" into entry; the zero above it aligns the stack as after a call.
inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
  void** top = (void**)(stack + bytes);
  *--top = nullptr;
  *--top = (void*)entry;
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  context.stack_pointer = top;
}
inline void switch_context(Context& from, Context& to) { troupe_simulator_switch(&from.stack_pointer, to.stack_pointer); }
}  // namespace simulator
#define SIMULATOR_SWITCH_CODE                                                                                   \
  asm(".text\n.globl troupe_simulator_switch\n.type troupe_simulator_switch,@function\n"                        \
      "troupe_simulator_switch:\n"                                                                              \
      " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"                          \
      " movq %rsp,(%rdi)\n movq %rsi,%rsp\n"                                                                    \
      " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n"                          \
      ".size troupe_simulator_switch,.-troupe_simulator_switch\n");

#else

#include <ucontext.h>
namespace simulator {
struct Context {
  ucontext_t state;
};
inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
}  // namespace simulator
#define SIMULATOR_SWITCH_CODE

#endif
