// poll and ppoll.
//
// A set without streams is libc's call, untouched. A set with streams becomes the kernel's ppoll()
// over: the program's other descriptors; each stream's TCP socket (for the directions that the
// kernel carries) and channel descriptor (for the rest); and the calling thread's own.
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <utility>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/fd_table.h"
#include "preload/polling.h"
#include "preload/real.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/signal_masks.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/thread_edges.h"
#include "rsocket-core/stream/waiter.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

constexpr std::int64_t kDeafSliceNs = 5'000'000;

[[gnu::always_inline]] inline bool any_managed(const pollfd* fds, nfds_t count) noexcept {
  if (fd_table::none_managed()) return false;
  for (nfds_t i = 0; i < count; ++i) {
    int fd;
    if (!faults::load(fd, &fds[i].fd)) return false;  // the kernel says so
    if (fd_table::managed(fd)) return true;
  }
  return false;
}

// One entry of the program's set. Its waiter leaves with it, also when the thread is cancelled.
struct Entry {
  ~Entry() { leave(); }
  void enter(int wake_fd) noexcept {
    if (wake_fd < 0 || waiting) return;
    waiter.wake_fd = wake_fd;
    waiter.events = POLLIN | POLLOUT;
    stream->waiters().add(waiter);
    stream->note_awaited();
    waiting = true;
  }
  void leave() noexcept {
    if (waiting) stream->waiters().remove(waiter);
    waiting = false;
  }

  SocketRef socket;
  Stream* stream = nullptr;  // one that is, or may come to be, on a channel
  ThreadWaiter waiter;
  bool waiting = false;
  short ready = 0;
  bool held = false;       // no room, as the stream changes its carrier
  std::uint64_t frames = 0;  // PollPlan::frames, before the kernel was asked
  int kernel_index = -1;   // in the kernel's set: the program's descriptor itself
  int channel_index = -1;  // and the channel's own
  bool by_edge = false;    // it has none: it tells the thread's own
};

// One stream is waited for, by a thread that polls before it sleeps.
void poll_stream(Stream& stream, short events, std::int64_t deadline, const sigset_t* mask) noexcept {
  const Stream::PollPlan plan = stream.plan_poll(events, Stream::Arm::kNever);
  // What the kernel may have to tell it is asked for at once.
  if (plan.ready != 0 || !plan.on_channel || plan.use_kernel) return;
  if (mask == nullptr) {
    stream.spin_until_ready(events, deadline, plan.shutdowns);
  } else if (signals::blocks_no_more(*mask)) {
    stream.spin_before_mask(events, deadline, plan.shutdowns, *mask);
  }
}

// What the kernel has told of may be news of the library's own.
short ask_instance(EpollSet& set, pollfd entry) noexcept {
  timespec at_once{};
  set.watch();
  return sys::ppoll(&entry, 1, &at_once, nullptr) > 0 ? entry.revents : 0;
}

}  // namespace

bool ringroad::preload::deadline_from(const timespec* timeout, std::int64_t& deadline) noexcept {
  deadline = kForever;
  if (timeout == nullptr) return true;
  if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
    return false;
  }
  if (timeout->tv_sec >= kForever / 2'000'000'000) return true;
  const std::int64_t length = timeout->tv_sec * 1'000'000'000 + timeout->tv_nsec;
  deadline = length == 0 ? 0 : sys::now_ns() + length;
  return true;
}

int ringroad::preload::poll_streams(pollfd* fds, nfds_t count, std::int64_t deadline,
                                    const sigset_t* mask, bool bounded) {
  constexpr nfds_t kFew = 4;
  Scratch<Entry, kFew> entry_memory(count);
  Scratch<pollfd, 2 * kFew + 1> kernel_memory(2 * count + 1);
  Entry* entries = entry_memory.data();
  pollfd* kernel = kernel_memory.data();
  if (entries == nullptr || kernel == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  const nfds_t asked = bounded ? count : 0;
  const int saved_errno = errno;
  for (nfds_t i = 0; i < count; ++i) {
    entries[i].socket = socket_lifecycle::find(fds[i].fd);
    Stream* stream = entries[i].socket.stream();
    if (stream != nullptr && !stream->on_kernel_for_good()) entries[i].stream = stream;
    if (EpollSet* epoll = entries[i].socket.epoll()) epoll->watch();
  }
  // One stream, as a thread waits that has one client.
  const bool one = count == 1 && deadline != 0 && entries[0].stream != nullptr;
  bool polls = one && entries[0].stream->may_spin(fds[0].events);
  const int wake_fd = thread_wake_fd();
  bool outlasted = false;
  signals::begin_wait();
  for (;;) {
    if (one) {
      Entry& e = entries[0];
      e.enter(wake_fd);
      if (std::exchange(polls, false)) poll_stream(*e.stream, fds[0].events, deadline, mask);
      // futex(2) puts no mask in force.
      const bool on_word = e.waiting && mask == nullptr;
      const int slept = on_word ? e.stream->sleep_on_word(e.waiter, fds[0].events, deadline,
                                                          Stream::Sleep::kCancellable, true)
                                : Stream::kNoWord;
      if (slept != Stream::kNoWord) {
        e.leave();
        e.waiter.on = {};  // it may be a channel's that is gone
      }
      if (slept == -1) return -1;
      if (slept == 1) continue;
    }
    nfds_t used = 0;
    kernel[used++] = {wake_fd, POLLIN, 0};
    int ready_now = 0;
    bool deaf = wake_fd < 0;
    for (nfds_t i = 0; i < count; ++i) {
      Entry& e = entries[i];
      e.ready = 0;
      e.kernel_index = e.channel_index = -1;
      e.by_edge = false;
      if (e.stream == nullptr) {
        e.kernel_index = static_cast<int>(used);
        kernel[used++] = {fds[i].fd, fds[i].events, 0};
        continue;
      }
      e.enter(wake_fd);
      const Stream::PollPlan plan = e.stream->plan_poll(fds[i].events, Stream::Arm::kIfIdle);
      e.ready = plan.ready;
      // The peer may be about to wake an epoll instance that the program asks next.
      if ((plan.ready & POLLIN) != 0 && e.waiting) e.stream->waiters().wake_others(POLLIN, e.waiter);
      e.held = plan.frozen;
      e.frames = plan.frames;
      if (e.ready != 0) ++ready_now;
      if (plan.use_kernel) {
        e.kernel_index = static_cast<int>(used);
        kernel[used++] = {e.stream->fd(), plan.kernel_events, 0};
      }
      e.by_edge = Stream::sleeps_by_edge(plan);
      if (e.by_edge) {
        const bool sleeps = ready_now == 0 && deadline != 0;
        if (sleeps && !e.stream->watch_by_edge(plan, wake_fd)) deaf = true;
      } else if (plan.channel_fd >= 0) {
        e.channel_index = static_cast<int>(used);
        kernel[used++] = {plan.channel_fd, POLLIN, 0};
      }
    }
    std::int64_t until = ready_now > 0 ? 0 : deadline;
    if (deaf && ready_now == 0) until = std::min(until, sys::now_ns() + kDeafSliceNs);
    timespec timeout{0, 0};
    if (until != kForever && until != 0) {
      const std::int64_t left = std::max<std::int64_t>(0, until - sys::now_ns());
      timeout = {left / 1'000'000'000, left % 1'000'000'000};
    }
    // It would have ended the sleep: the one before, which the library has woken at the same moment, or the
    // one that the polling was in place of. One that only the mask holds back, and that comes between the
    // sleeps, would have come behind the call.
    const bool interrupted = deadline != 0 && ready_now == 0 && signals::came_since_begin() &&
                             (mask == nullptr || signals::blocks_no_more(*mask));
    if (interrupted) {
      until = 0;
      timeout = {0, 0};
    }
    int n = 0;
    if (until != 0) {
      n = cancellation::ppoll_for(asked, kernel, used, until == kForever ? nullptr : &timeout, mask);
    } else if (ready_now == 0 || used > 1) {  // else the kernel has nothing to add
      n = sys::ppoll(kernel, used, &timeout, mask, asked);
    }
    const int sleep_errno = errno;
    for (nfds_t i = 0; i < count; ++i) {
      entries[i].leave();
    }
    if (n < 0 && (ready_now == 0 || sleep_errno == EINVAL)) {
      errno = sleep_errno;
      return -1;
    }
    thread_edges::Told told;
    if (n > 0 && kernel[0].revents != 0) {
      told = thread_edges::take(wake_fd, [entries, count](std::uint64_t stream) {
        return std::any_of(entries, entries + count, [stream](const Entry& e) {
          return e.stream != nullptr && e.stream->id() == stream;
        });
      });
    }
    int found = 0;
    bool look_again = false;
    for (nfds_t i = 0; i < count; ++i) {
      Entry& e = entries[i];
      short revents = e.ready;
      if (e.by_edge) {
        if (told.has(e.stream->id()) && e.stream->take_in_by_edge()) {
          revents |= e.stream->plan_poll(fds[i].events, Stream::Arm::kNever).ready;
        }
      } else if (e.channel_index >= 0 && n > 0 && kernel[e.channel_index].revents != 0) {
        e.stream->after_sleep();
        revents |= e.stream->plan_poll(fds[i].events, Stream::Arm::kNever).ready;
      }
      if (e.kernel_index >= 0 && n > 0) {
        short from_kernel = kernel[e.kernel_index].revents;
        EpollSet* const epoll = e.socket.epoll();
        if (from_kernel != 0 && epoll != nullptr) from_kernel = ask_instance(*epoll, fds[i]);
        if (e.stream != nullptr && from_kernel != 0) {
          if ((from_kernel & POLLERR) != 0) e.stream->service();  // a reset is both directions' affair
          // Did the carrier change while the kernel looked? Then its answer is not the stream's.
          const Stream::PollPlan plan = e.stream->plan_poll(fds[i].events, Stream::Arm::kNever);
          revents |= plan.ready;
          e.held |= plan.frozen;
          if (plan.use_kernel) {
            from_kernel &= static_cast<short>(plan.kernel_events | POLLERR | POLLHUP | POLLNVAL);
            // Nor if a frame of the peer's library was what it saw.
            if (plan.frames != e.frames) {
              from_kernel &= e.stream->ask_kernel(e.stream->fd(), plan.kernel_events);
            }
          } else {
            from_kernel = 0;
          }
        }
        revents |= from_kernel;
        if ((from_kernel & POLLOUT) != 0 && (from_kernel & (POLLERR | POLLHUP)) == 0 &&
            e.socket.is(FdEntry::Kind::kConnecting)) {
          socket_lifecycle::establish(fds[i].fd, e.socket);
        }
      }
      if (!faults::store(&fds[i].revents, revents)) {
        errno = EFAULT;
        return -1;
      }
      if (revents != 0) ++found;
    }
    if (found == 0 && interrupted) {
      errno = EINTR;
      return -1;
    }
    if (found == 0 && (n > 0 || until != deadline)) look_again = true;
    const bool late = deadline != kForever && found == 0 && sys::now_ns() >= deadline;
    if (late && !std::exchange(outlasted, true)) {
      bool changed = false;
      const std::int64_t asked_ns = sys::now_ns();
      for (nfds_t i = 0; i < count; ++i) {
        const bool asks = (fds[i].events & (POLLOUT | POLLWRNORM)) != 0;
        if (entries[i].stream == nullptr || !asks) continue;
        // A change may have come or gone since the looks.
        changed = changed || entries[i].stream->outlast_switch(asked_ns) || entries[i].held;
      }
      if (changed) continue;
    }
    if (!look_again || late) {
      errno = saved_errno;
      return found;
    }
  }
}

// Here and below: what there is to do about what the library manages is in functions of their own, so that
// a call which is none of its business saves no register before libc's.
namespace {

// Of one that is not there to its end the kernel says so.
bool is_there(const pollfd* fds, nfds_t count) noexcept {
  constexpr nfds_t kMost = nfds_t{1} << 20;  // no limit of descriptors is higher
  return count <= kMost && faults::can_read(fds, count * sizeof *fds);
}

RR_NOINLINE int poll_some_streams(pollfd* fds, nfds_t count, int timeout_ms) {
  if (!is_there(fds, count)) return real().poll(fds, count, timeout_ms);
  return cancellation::point<poll_streams>(fds, count, deadline_of(timeout_ms), nullptr, true);
}

RR_NOINLINE int ppoll_some_streams(pollfd* fds, nfds_t count, const timespec* timeout,
                                   const sigset_t* mask) {
  std::int64_t deadline;
  if (arguments::is_wrong(mask) || !deadline_from(timeout, deadline) || !is_there(fds, count)) {
    return real().ppoll(fds, count, timeout, mask);
  }
  return cancellation::point<poll_streams>(fds, count, deadline, mask, true);
}

}  // namespace

int rr_poll(pollfd* fds, nfds_t count, int timeout_ms) {
  if (!any_managed(fds, count)) return real().poll(fds, count, timeout_ms);
  return poll_some_streams(fds, count, timeout_ms);
}

int rr_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (!any_managed(fds, count)) return real().ppoll(fds, count, timeout, mask);
  return ppoll_some_streams(fds, count, timeout, mask);
}

int rr___poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t size) {
  if (size / sizeof(pollfd) < count) return real().__poll_chk(fds, count, timeout_ms, size);
  return rr_poll(fds, count, timeout_ms);
}

int rr___ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                   size_t size) {
  if (size / sizeof(pollfd) < count) {
    return real().__ppoll_chk(fds, count, timeout, mask, size);
  }
  return rr_ppoll(fds, count, timeout, mask);
}
