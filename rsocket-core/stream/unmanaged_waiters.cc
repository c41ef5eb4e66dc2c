#include "rsocket-core/stream/unmanaged_waiters.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/base/threads.h"

namespace ringroad::unmanaged_waiters {
namespace {

// More threads than these count each of their waits.
constexpr int kSeats = 256;
WaiterSlot seats[kSeats];
std::atomic<int> seats_left{kSeats};

Mutex counting_mutex RR_RANK(unmanaged_waiters);
bool counted_all = false;  // guarded by it

// Of a seat, or for good.
void count_one() noexcept { count.fetch_add(1, std::memory_order_seq_cst); }
void count_one_less() noexcept { count.fetch_sub(1, std::memory_order_relaxed); }

void give_back(WaiterSlot& seat_of_mine) noexcept {
  seat_of_mine.taken.store(false, std::memory_order_release);
  seats_left.fetch_add(1, std::memory_order_relaxed);
}

// Also of a thread that was cancelled in a wait.
void on_thread_exit(void*) noexcept {
  WaiterSlot* const mine = seat;
  if (mine == nullptr) return;
  mine->waits.store(0, std::memory_order_relaxed);
  leave_seat();
  seat = nullptr;
  give_back(*mine);
}

pthread_key_t exit_key;
pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
bool have_exit_key = false;
bool no_exit_key = false;  // there was none to be had
void make_exit_key() noexcept {
  have_exit_key = pthread_key_create(&exit_key, on_thread_exit) == 0;
  no_exit_key = !have_exit_key;
  if (no_exit_key) seats_left.store(0, std::memory_order_relaxed);
  // Also of a process that has no agent yet.
  pthread_atfork(nullptr, nullptr, forget_after_fork);
}

// Each thread that runs is between two of its instructions here, with all before them done and none behind.
// False: the kernel does not know how.
bool barrier_everywhere() noexcept {
  return sys::raw(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         sys::raw(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

}  // namespace

void prepare() noexcept {
  if (thread_count() != 1) return;
  sys::raw(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

void take_seat() noexcept {
  if (seat != nullptr || seats_left.load(std::memory_order_relaxed) <= 0) return;
  const signals::DeferHandlers no_handler_waits;
  const int saved = errno;
  pthread_once(&exit_key_once, make_exit_key);
  if (!have_exit_key) return;
  WaiterSlot* const found = std::find_if(std::begin(seats), std::end(seats), [](WaiterSlot& each) noexcept {
    return !each.taken.load(std::memory_order_relaxed) &&
           !each.taken.exchange(true, std::memory_order_seq_cst);
  });
  if (found != std::end(seats)) {
    seats_left.fetch_sub(1, std::memory_order_relaxed);
    // A thread that has not seen it taken has made a set that is seen from here on.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (pthread_setspecific(exit_key, found) == 0) {
      seat = found;
    } else {
      give_back(*found);
    }
  }
  errno = saved;
}

void leave_seat() noexcept {
  WaiterSlot* const mine = seat;
  if (mine == nullptr) return;
  // One of the two sees the other: count_seated() that it sits no more, or this that it was counted.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (mine->waits.load(std::memory_order_seq_cst) == 0 &&
      mine->counted.exchange(false, std::memory_order_seq_cst)) {
    count_one_less();
  }
}

Waits waits_of_thread() noexcept {
  return {own_waits, seat != nullptr ? seat->waits.load(std::memory_order_relaxed) : 0};
}

void go_back_to(const Waits& before) noexcept {
  count.fetch_sub(own_waits - before.counted, std::memory_order_relaxed);
  own_waits = before.counted;
  if (seat == nullptr) return;
  seat->waits.store(before.seated, std::memory_order_relaxed);
  leave_seat();
}

void count_seated() noexcept {
  MutexLock lock(counting_mutex);
  if (counted_all) return;
  counted_all = true;
  const bool others = std::any_of(std::begin(seats), std::end(seats), [](const WaiterSlot& each) noexcept {
    return each.taken.load(std::memory_order_seq_cst) && &each != seat;
  });
  if (others && !barrier_everywhere()) {
    count_one();  // nobody can tell: as if there were one for good
    return;
  }
  for (WaiterSlot& each : seats) {
    if (each.waits.load(std::memory_order_seq_cst) == 0) continue;
    count_one();
    each.counted.store(true, std::memory_order_seq_cst);
    if (each.waits.load(std::memory_order_seq_cst) == 0 &&
        each.counted.exchange(false, std::memory_order_seq_cst)) {
      count_one_less();
    }
  }
}

void forget_after_fork() noexcept {
  counting_mutex.reset_after_fork();
  count.store(own_waits, std::memory_order_relaxed);
  for (WaiterSlot& each : seats) {
    each.counted.store(false, std::memory_order_relaxed);
    if (&each == seat) continue;  // a handler may have forked, inside a wait
    each.waits.store(0, std::memory_order_relaxed);
    each.taken.store(false, std::memory_order_relaxed);
  }
  const int free = no_exit_key ? 0 : kSeats;
  seats_left.store(seat != nullptr ? free - 1 : free, std::memory_order_relaxed);
}

}  // namespace ringroad::unmanaged_waiters
