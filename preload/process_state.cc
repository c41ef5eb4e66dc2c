#include "preload/process_state.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "preload/lent_memory.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::process_state {
namespace {

const char* the_directory = nullptr;
std::atomic<Agent*> the_agent{nullptr};
pid_t owner = 0;
std::atomic<unsigned> fork_count{0};
std::atomic<bool> kernel_only{false};
// 1 in the process whose memory this is and in its vfork children, 0 in a copy of it that no handler
// of fork(2) has seen: the page is wiped there (MADV_WIPEONFORK, madvise(2)).
std::atomic<std::atomic<int>*> same_memory{nullptr};

}  // namespace

Agent* existing_agent() noexcept { return the_agent.load(std::memory_order_acquire); }

void set_agent(Agent* agent) noexcept { the_agent.store(agent, std::memory_order_release); }

const char* rendezvous_directory() noexcept { return the_directory; }

void set_rendezvous_directory(const char* directory) noexcept { the_directory = directory; }

bool owns_memory() noexcept { return sys::getpid() == owner; }

bool owns_numbers() noexcept {
  // Where nobody has borrowed the memory, the process that has it and is no copy is its owner.
  const bool lent = rr_memory_was_lent.load(std::memory_order_relaxed);
  return (!lent && shares_memory()) || owns_memory();
}

bool shares_memory() noexcept {
  const std::atomic<int>* same = same_memory.load(std::memory_order_acquire);
  return same != nullptr && same->load() == 1;
}

void claim_memory() noexcept {
  owner = sys::getpid();
  if (std::atomic<int>* same = same_memory.load()) same->store(1);
}

void watch_for_copies() noexcept {
  constexpr std::size_t kBytes = 4096;
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  // Emulators may take any advice, and follow none.
  constexpr int kNoAdvice = -1;
  if (madvise(page, kBytes, kNoAdvice) == 0 || madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
    munmap(page, kBytes);
    return;
  }
  same_memory.store(new (page) std::atomic<int>(0), std::memory_order_release);
}

unsigned forks() noexcept { return fork_count.load(std::memory_order_relaxed); }
void count_fork() noexcept { fork_count.fetch_add(1, std::memory_order_relaxed); }

bool on_kernel_only() noexcept { return kernel_only.load(std::memory_order_relaxed); }
void set_on_kernel_only() noexcept { kernel_only.store(true); }

}  // namespace ringroad::preload::process_state
