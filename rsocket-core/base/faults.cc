#include "rsocket-core/base/faults.h"

#include <ucontext.h>

#include <atomic>
#include <cstring>

#include "rsocket-core/base/signals.h"

namespace ringroad::faults {
namespace {

using Address = std::uintptr_t;

// A copy that is under way. The first three words are what __builtin_setjmp() keeps: the frame pointer, where
// to go on, the stack pointer.
struct Guard {
  void* words[5];
  Address to;
  Address from;
  std::size_t n;
  const Guard* outer;  // that of a copy that a handler has interrupted

  bool has(Address address) const noexcept { return address - to < n || address - from < n; }
};
constinit thread_local const Guard* guard __attribute__((tls_model("initial-exec"))) = nullptr;

// memcpy(3) needs no more stack below its caller's, whatever stands in its place. A guard that is further
// away is what a jump out of a handler has left.
constexpr Address kMostStack = 4096;

#if defined(__x86_64__)
Address program_counter(const ucontext_t& context) noexcept {
  return static_cast<Address>(context.uc_mcontext.gregs[REG_RIP]);
}
Address stack_pointer(const ucontext_t& context) noexcept {
  return static_cast<Address>(context.uc_mcontext.gregs[REG_RSP]);
}
void go_on_at(ucontext_t& context, Address at) noexcept {
  context.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(at);
}
void go_on_in(ucontext_t& context, const Guard& target) noexcept {
  context.uc_mcontext.gregs[REG_RBP] = reinterpret_cast<greg_t>(target.words[0]);
  context.uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(target.words[2]);
}
#elif defined(__aarch64__)
Address program_counter(const ucontext_t& context) noexcept { return context.uc_mcontext.pc; }
Address stack_pointer(const ucontext_t& context) noexcept { return context.uc_mcontext.sp; }
void go_on_at(ucontext_t& context, Address at) noexcept { context.uc_mcontext.pc = at; }
void go_on_in(ucontext_t& context, const Guard& target) noexcept {
  context.uc_mcontext.regs[29] = reinterpret_cast<Address>(target.words[0]);
  context.uc_mcontext.sp = reinterpret_cast<Address>(target.words[2]);
}
#else
#error "where a context has its registers is not known"
#endif

struct Row {
  std::int32_t faults;   // from here to the instruction
  std::int32_t goes_on;  // from here to where it goes on

  static Address at(const std::int32_t& distance) noexcept {
    return reinterpret_cast<Address>(&distance) + static_cast<Address>(static_cast<std::intptr_t>(distance));
  }
};
// The linker's names for both ends of the section.
extern "C" {
extern const Row rr_table_begin[] asm("__start_rr_faults") RR_HIDDEN;
extern const Row rr_table_end[] asm("__stop_rr_faults") RR_HIDDEN;
}

std::atomic<Recover> other_object{nullptr};

bool recover_by_table(ucontext_t& context) noexcept {
  for (const Row* row = rr_table_begin; row != rr_table_end; ++row) {
    if (Row::at(row->faults) != program_counter(context)) continue;
    go_on_at(context, Row::at(row->goes_on));
    return true;
  }
  return false;
}

bool recover_by_guard(const siginfo_t& info, ucontext_t& context) noexcept {
  const Guard* const own = guard;
  if (reinterpret_cast<Address>(own) - stack_pointer(context) >= kMostStack) return false;
  // Addresses beyond a program's come without a number.
  if (!own->has(reinterpret_cast<Address>(info.si_addr)) && info.si_code != SI_KERNEL) return false;
  guard = own->outer;
  go_on_in(context, *own);
  go_on_at(context, reinterpret_cast<Address>(own->words[1]));
  return true;
}

// Of less than 16 bytes.
bool copy_few(char* to, const char* from, std::size_t n) noexcept {
  if (n >= 8) {
    std::uint64_t first;
    std::uint64_t last;
    return load(first, from) && load(last, from + n - 8) && store(to, first) && store(to + n - 8, last);
  }
  for (; n > 0; --n) {
    char byte;
    if (!load(byte, from++) || !store(to++, byte)) return false;
  }
  return true;
}

// Not inlined: all that a caller keeps in registers is saved once, where it calls this. The address sanitizer
// would have the guard elsewhere than on the stack.
[[gnu::noinline, gnu::no_sanitize_address]]
bool copy_many(void* to, const void* from, std::size_t n) noexcept {
  Guard own;
  own.to = reinterpret_cast<Address>(to);
  own.from = reinterpret_cast<Address>(from);
  own.n = n;
  own.outer = guard;
  if (__builtin_setjmp(own.words) != 0) return false;
  guard = &own;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, n);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guard = own.outer;
  return true;
}

}  // namespace

bool copy(void* to, const void* from, std::size_t n) noexcept {
  constexpr std::size_t kFew = 16;
  if (n < kFew) return copy_few(static_cast<char*>(to), static_cast<const char*>(from), n);
  return copy_many(to, from, n);
}

bool copy_apart(void* to, const void* from, std::size_t n) noexcept {
  const signals::DeferHandlers whole;
  return copy(to, from, n);
}

bool recover(const siginfo_t* info, void* context) noexcept {
  auto& interrupted = *static_cast<ucontext_t*>(context);
  if (recover_by_table(interrupted) || recover_by_guard(*info, interrupted)) return true;
  const Recover other = other_object.load(std::memory_order_acquire);
  return other != nullptr && other(info, context);
}

void recover_also_by(Recover other) noexcept { other_object.store(other, std::memory_order_release); }

}  // namespace ringroad::faults
