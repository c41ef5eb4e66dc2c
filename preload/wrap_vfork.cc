// vfork(2) and clone(2): noticed, and left to libc. Both return twice, or on another stack, so no frame of ours may
// be there meanwhile: they set a flag and jump, with all registers that hold arguments as they came.
#include "preload/lent_memory.h"
#include "preload/real.h"

using namespace ringroad::preload;

extern "C" {
RR_HIDDEN constinit std::atomic<bool> rr_memory_was_lent{false};
// Where they jump to. Before bind_real() that is what calls it, as other libraries' constructors run before ours.
RR_HIDDEN void rr_first_vfork();
RR_HIDDEN void rr_first_clone();
RR_HIDDEN constinit std::atomic<void (*)()> rr_next_vfork{rr_first_vfork};
RR_HIDDEN constinit std::atomic<void (*)()> rr_next_clone{rr_first_clone};
[[gnu::used]] RR_HIDDEN void rr_bind_next() noexcept {
  const Real& next = bound_real();
  rr_next_vfork = reinterpret_cast<void (*)()>(next.vfork);
  rr_next_clone = reinterpret_cast<void (*)()>(next.clone);
}
}

// clang-format off
#if defined(__x86_64__)
#define RR_LENDS(name)                                                               \
  asm(".text\n.p2align 4\n.globl " name "\n.type " name ", @function\n" name ":\n"   \
      "  endbr64\n"                                                                  \
      "  movb $1, rr_memory_was_lent(%rip)\n"                                        \
      "  jmp *rr_next_" name "(%rip)\n"                                              \
      ".size " name ", . - " name "\n"                                               \
      ".p2align 4\n.hidden rr_first_" name "\n.globl rr_first_" name "\n"            \
      ".type rr_first_" name ", @function\nrr_first_" name ":\n"                     \
      "  endbr64\n"                                                                  \
      "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n" \
      "  push %rax\n" /* seven and the return address: aligned */                    \
      "  call rr_bind_next\n"                                                        \
      "  pop %rax\n"                                                                 \
      "  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"       \
      "  jmp *rr_next_" name "(%rip)\n"                                              \
      ".size rr_first_" name ", . - rr_first_" name "\n")
#elif defined(__aarch64__)
#define RR_LENDS(name)                                                               \
  asm(".text\n.p2align 4\n.globl " name "\n.type " name ", %function\n" name ":\n"   \
      "  hint #34\n" /* bti c */                                                     \
      "  adrp x16, rr_memory_was_lent\n"                                             \
      "  mov w17, #1\n"                                                              \
      "  strb w17, [x16, #:lo12:rr_memory_was_lent]\n"                               \
      "  adrp x16, rr_next_" name "\n"                                               \
      "  ldr x16, [x16, #:lo12:rr_next_" name "]\n"                                  \
      "  br x16\n"                                                                   \
      ".size " name ", . - " name "\n"                                               \
      ".p2align 4\n.hidden rr_first_" name "\n.globl rr_first_" name "\n"            \
      ".type rr_first_" name ", %function\nrr_first_" name ":\n"                     \
      "  hint #34\n"                                                                 \
      "  stp x29, x30, [sp, #-80]!\n"                                                \
      "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n"                           \
      "  stp x4, x5, [sp, #48]\n  stp x6, x7, [sp, #64]\n"                           \
      "  bl rr_bind_next\n"                                                          \
      "  ldp x0, x1, [sp, #16]\n  ldp x2, x3, [sp, #32]\n"                           \
      "  ldp x4, x5, [sp, #48]\n  ldp x6, x7, [sp, #64]\n"                           \
      "  ldp x29, x30, [sp], #80\n"                                                  \
      "  adrp x16, rr_next_" name "\n"                                               \
      "  ldr x16, [x16, #:lo12:rr_next_" name "]\n"                                  \
      "  br x16\n"                                                                   \
      ".size rr_first_" name ", . - rr_first_" name "\n")
#else
#error "vfork and clone have to be noticed without a frame: write that for this processor"
#endif
// clang-format on

RR_LENDS("vfork");
RR_LENDS("clone");
