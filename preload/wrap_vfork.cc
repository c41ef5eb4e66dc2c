// vfork(2) and clone(2), by both names that libc has for them: noticed, and left to libc. They return twice,
// or on another stack, so no frame of ours may be there meanwhile: each sets a flag and jumps, with all
// registers that hold arguments as they came.
#include "preload/lent_memory.h"
#include "preload/real.h"

using namespace ringroad::preload;

// Where they jump to. Before bind_real() that is what calls it, as other libraries' constructors run before
// ours.
#define RR_NEXT(name)               \
  RR_HIDDEN void rr_first_##name(); \
  RR_HIDDEN constinit std::atomic<void (*)()> rr_next_##name{rr_first_##name};
extern "C" {
RR_HIDDEN constinit std::atomic<bool> rr_memory_was_lent{false};
RR_NEXT(vfork)
RR_NEXT(__vfork)
RR_NEXT(clone)
RR_NEXT(__clone)
[[gnu::used]] RR_HIDDEN void rr_bind_next() noexcept {
  const Real& next = bound_real();
  rr_next_vfork = reinterpret_cast<void (*)()>(next.vfork);
  rr_next___vfork = reinterpret_cast<void (*)()>(next.__vfork);
  rr_next_clone = reinterpret_cast<void (*)()>(next.clone);
  rr_next___clone = reinterpret_cast<void (*)()>(next.__clone);
}
}
#undef RR_NEXT

// clang-format off
#if defined(__x86_64__)
#define RR_LENDS(name)                                                                \
  asm(".text\n.p2align 4\n.globl " name "\n.type " name ", @function\n" name ":\n"    \
      "  .cfi_startproc\n  endbr64\n"                                                 \
      "  movb $1, rr_memory_was_lent(%rip)\n"                                         \
      "  jmp *rr_next_" name "(%rip)\n  .cfi_endproc\n"                               \
      ".size " name ", . - " name "\n"                                                \
      ".p2align 4\n.hidden rr_first_" name "\n.globl rr_first_" name "\n"             \
      ".type rr_first_" name ", @function\nrr_first_" name ":\n"                      \
      "  .cfi_startproc\n  endbr64\n"                                                 \
      "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n"  \
      "  push %rax\n" /* seven and the return address: aligned */                     \
      "  .cfi_adjust_cfa_offset 56\n"                                                 \
      "  call rr_bind_next\n"                                                         \
      "  pop %rax\n"                                                                  \
      "  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"        \
      "  .cfi_adjust_cfa_offset -56\n"                                                \
      "  jmp *rr_next_" name "(%rip)\n  .cfi_endproc\n"                               \
      ".size rr_first_" name ", . - rr_first_" name "\n")
#elif defined(__aarch64__)
#define RR_LENDS(name)                                                                \
  asm(".text\n.p2align 4\n.globl " name "\n.type " name ", %function\n" name ":\n"    \
      "  .cfi_startproc\n  hint #34\n" /* bti c */                                    \
      "  adrp x16, rr_memory_was_lent\n"                                              \
      "  mov w17, #1\n"                                                               \
      "  strb w17, [x16, #:lo12:rr_memory_was_lent]\n"                                \
      "  adrp x16, rr_next_" name "\n"                                                \
      "  ldr x16, [x16, #:lo12:rr_next_" name "]\n"                                   \
      "  br x16\n  .cfi_endproc\n"                                                    \
      ".size " name ", . - " name "\n"                                                \
      ".p2align 4\n.hidden rr_first_" name "\n.globl rr_first_" name "\n"             \
      ".type rr_first_" name ", %function\nrr_first_" name ":\n"                      \
      "  .cfi_startproc\n  hint #34\n"                                                \
      "  stp x29, x30, [sp, #-80]!\n"                                                 \
      "  .cfi_def_cfa_offset 80\n  .cfi_offset 29, -80\n  .cfi_offset 30, -72\n"      \
      "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n"                            \
      "  stp x4, x5, [sp, #48]\n  stp x6, x7, [sp, #64]\n"                            \
      "  bl rr_bind_next\n"                                                           \
      "  ldp x0, x1, [sp, #16]\n  ldp x2, x3, [sp, #32]\n"                            \
      "  ldp x4, x5, [sp, #48]\n  ldp x6, x7, [sp, #64]\n"                            \
      "  ldp x29, x30, [sp], #80\n"                                                   \
      "  .cfi_def_cfa_offset 0\n  .cfi_restore 29\n  .cfi_restore 30\n"               \
      "  adrp x16, rr_next_" name "\n"                                                \
      "  ldr x16, [x16, #:lo12:rr_next_" name "]\n"                                   \
      "  br x16\n  .cfi_endproc\n"                                                    \
      ".size rr_first_" name ", . - rr_first_" name "\n")
#else
#error "vfork and clone have to be noticed without a frame: write that for this processor"
#endif
// clang-format on

RR_LENDS("vfork");
RR_LENDS("__vfork");
RR_LENDS("clone");
RR_LENDS("__clone");
