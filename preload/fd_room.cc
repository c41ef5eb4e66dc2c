#include "preload/fd_room.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <utility>

#include "preload/epolls.h"
#include "preload/process_state.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::fd_room {
namespace {

constexpr std::int64_t kLeaveTimeoutNs = 2'000'000'000;
constexpr int kNoLimit = std::numeric_limits<int>::max();
// For calls that the library does not see, and for as many as one message can bring.
constexpr rlim_t kMostReserved = 1024;

Mutex giving_mutex RR_RANK(room);
bool given_back RR_GUARDED_BY(giving_mutex) = false;

bool own_limit(rlimit& most) noexcept {
  return sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &most) == 0;
}

// Where the hard limit is higher the library's own are above the soft one (above_limit.h).
int nearness(const rlimit& most) noexcept {
  if (most.rlim_cur < most.rlim_max || most.rlim_cur >= static_cast<rlim_t>(kNoLimit)) return kNoLimit;
  return static_cast<int>(most.rlim_cur - std::min(most.rlim_cur / 4, kMostReserved));
}

// The process is the kernel's from now on, and its descriptors are the program's, as far as that can be.
bool give_back_descriptors() noexcept {
  Agent* agent = process_state::existing_agent();
  // A handler may have interrupted the thread that has a lock. The agent thread would wait for itself.
  if (agent == nullptr || agent->runs_here() || signals::thread_state.in_handler ||
      !process_state::owns_memory()) {
    return false;
  }
  MutexLock lock(giving_mutex);  // a thread that comes while another does it has that room, too
  if (std::exchange(given_back, true)) return true;
  socket_lifecycle::use_the_kernel_only(Reason::kNoDescriptors);
  agent->step_aside(kLeaveTimeoutNs);  // which also settles that streams are the kernel's
  epolls::retire();
  close_thread_wake_fd();
  return true;
}

}  // namespace

std::atomic<int> near_limit{kNoLimit};

bool make_room() noexcept {
  const int saved = errno;
  // A file system may have said EMFILE for itself, and another thread may have closed some. No call needs
  // more than two.
  int both[2];
  if (sys::call(SYS_pipe2, both, O_CLOEXEC) == 0) {
    for (const int end : both) sys::close_quietly(end);
    errno = saved;
    return true;
  }
  rlimit most{};
  const bool holds_some =
      own_limit(most) && reserved_fds::any_below(static_cast<int>(std::min<rlim_t>(
                             most.rlim_cur, static_cast<rlim_t>(reserved_fds::kLimit))));
  const bool made = holds_some && give_back_descriptors();
  errno = saved;
  return made;
}

bool give_way(int number) noexcept {
  const int saved = errno;
  rlimit most{};
  const bool may_have_it = own_limit(most) && static_cast<rlim_t>(number) < most.rlim_cur;
  const bool gives =
      may_have_it && give_back_descriptors() && !reserved_fds::is_marked(number);
  errno = saved;
  return gives;
}

void come_near(int number) noexcept {
  const int saved = errno;
  rlimit most{};
  if (own_limit(most) && process_state::owns_memory()) {
    // The program may have another limit by now.
    near_limit.store(nearness(most), std::memory_order_relaxed);
    if (number >= near_limit.load(std::memory_order_relaxed) && give_back_descriptors()) {
      near_limit.store(kNoLimit, std::memory_order_relaxed);
    }
  }
  errno = saved;
}

void after_fork_child() noexcept {
  giving_mutex.reset_after_fork();
  ask_again();  // it may be given another limit
}

}  // namespace ringroad::preload::fd_room
