// A coroutine context with its stack, and the switch between two of them.
//
// x86-64 has a hand-written switch, which takes a few nanoseconds; a barrier of 256 threads needs
// 256 switches. Other architectures use the C library's slower ucontext. -DSIMULATOR_UCONTEXT
// selects ucontext everywhere.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(SIMULATOR_UCONTEXT)

namespace simulator {
struct Context {
  void* stack_pointer = nullptr;
};
extern "C" void troupe_simulator_switch(void** save, void* load);
// Prepares a stack so that the first switch to it "returns" into entry. The zero above
// aligns it as after a call.
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
