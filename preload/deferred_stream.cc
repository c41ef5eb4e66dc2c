#include "preload/deferred_stream.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "preload/cancellation.h"
#include "preload/epolls.h"
#include "preload/policy_lookup.h"
#include "preload/process_state.h"
#include "preload/process_stats.h"
#include "preload/real.h"
#include "preload/seen_options.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::deferred_stream {
namespace {

using Kind = FdEntry::Kind;

// At the latest, whatever the rule says.
constexpr std::uint64_t kMostUses = DeferredUse::kMostCalls + 1;
constexpr std::uint64_t kNotGiven = std::numeric_limits<std::uint64_t>::max();

Mutex becoming RR_RANK(becoming);
// Whether any has begun since materialise() has looked last, or has been left then. Set behind the entry,
// taken back before the look, so that none is missed.
std::atomic<bool> some{false};

// Not one whose connections are not expected to be short.
bool lets_begin(const policy::Settings& rule) noexcept {
  return rule.wait == policy::kNoWait && rule.promote_after.messages.value_or(kNotGiven) > 1 &&
         rule.promote_after.bytes.value_or(kNotGiven) > kMostUses * DeferredSelector::kMostBytes;
}

// Null: it is none, or cannot be one.
StreamPtr stream_of(int fd, const FdEntry& socket, const DeferredUse& early) noexcept {
  Agent* agent = process_state::existing_agent();
  FourTuple tuple;
  if (agent == nullptr || process_state::on_kernel_only() || seen_options::reads_unusually(fd) ||
      !seen_options::is_tcp(fd) || !Endpoint::peer_of(fd, tuple.remote) ||
      !Endpoint::local_of(fd, tuple.local)) {
    return nullptr;
  }
  const int flags = sys::fcntl(fd, F_GETFL);
  if ((flags & O_ASYNC) != 0) return nullptr;  // the kernel sends the signals
  StreamConfig config;
  policy_lookup::configure(*socket.rule, config);
  StreamPtr stream =
      agent->open_stream(fd, socket.role, tuple, config, (flags & O_NONBLOCK) != 0, early);
  if (stream != nullptr) epolls::take_over(fd, stream);
  return stream;
}

}  // namespace

bool begin(int fd, Role role, const Endpoint& remote, const policy::Settings& rule,
           bool nonblocking, unsigned forks) noexcept {
  Agent* agent = process_state::existing_agent();
  if (agent == nullptr || !agent->may_defer() || !lets_begin(rule)) return false;
  const auto limit =
      static_cast<unsigned>(std::min(rule.promote_after.messages.value_or(kNotGiven), kMostUses));
  const signals::DeferHandlers no_handler_leaves_between;
  const SocketRef socket =
      fd_table::insert_deferred(fd, role, remote, rule, limit, nonblocking, forks);
  if (!socket) return false;
  some.store(true, std::memory_order_release);  // when it is in the table
  if (!agent->note_deferred(role) || process_state::on_kernel_only()) become_stream(fd, socket);
  return true;
}

bool become_stream(int fd, const SocketRef& socket) noexcept {
  const signals::DeferHandlers whole;
  const int saved = errno;
  Stream* made = nullptr;
  epolls::end_stale_instance_of(fd);  // which may come here
  {
    MutexLock lock(becoming);
    DeferredUse early;
    if (socket->use.settle(early)) {
      socket->stream = stream_of(fd, *socket.get(), early);
      made = socket->stream.get();
      if (made != nullptr) {
        if (!socket->waiters.empty()) made->note_awaited();  // receives_later()
        socket->kind.store(Kind::kStream, std::memory_order_release);
      } else {
        if (seen_options::is_tcp(fd)) process_stats::count_deferred(*socket->rule, early);
        fd_table::forget(fd, socket);
      }
    }
  }
  socket->waiters.wake(POLLIN);
  if (made != nullptr) {
    // A child has it too, and neither knows of the other.
    if (socket->forked) made->demote_for_good(Reason::kFork, 0);
    made->note_use(0, 0);
  }
  errno = saved;
  return socket.is(Kind::kStream);
}

bool materialise(AgentHost::Deferred which, const Endpoint& remote) noexcept {
  using Deferred = AgentHost::Deferred;
  bool others = false;
  // A caller that wants all of them relies on it, also beside another look.
  if (!some.exchange(false, std::memory_order_acq_rel) && which != Deferred::kAll) return false;
  const int end = fd_table::highest.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= end; ++fd) {
    if (!is(fd)) continue;
    const SocketRef socket = fd_table::find(fd);
    if (!socket.is(Kind::kDeferred)) continue;
    const bool asked_for = which == Deferred::kAll ||
                           (which == Deferred::kOld && socket->old.exchange(true)) ||
                           (which == Deferred::kAccepted && socket->role == Role::kAccept &&
                            socket->endpoint.addr == remote.addr &&
                            socket->endpoint.port == remote.port);
    if (asked_for) {
      become_stream(fd, socket);
    } else {
      others = true;
    }
  }
  if (others) some.exchange(true, std::memory_order_acq_rel);
  return others;
}

void closed(FdEntry& socket) noexcept {
  DeferredUse early;
  if (socket.use.settle(early)) {
    process_stats::count_deferred(*socket.rule, early);
  } else {
    const MutexLock until_it_is_a_stream(becoming);
  }
}

// A thread that sleeps goes on with the file, which a stream keeps open.
void before_number_goes(int fd) noexcept {
  const SocketRef socket = fd_table::find(fd);
  if (socket.is(Kind::kDeferred) && !socket->waiters.empty()) become_stream(fd, socket);
}

bool close(int fd, int& result) noexcept {
  if (!is(fd) || !process_state::owns_numbers()) return false;
  SocketRef socket = fd_table::find(fd);
  DeferredUse early;
  if (!socket.is(Kind::kDeferred) || !socket->waiters.empty() || !socket->use.settle(early)) {
    return false;
  }
  const policy::Settings& rule = *socket->rule;
  socket = fd_table::forget_deferred(fd, std::move(socket));
  if (socket) socket->waiters.wake(POLLIN);  // somebody came just now
  process_stats::count_deferred(rule, early);
  result = static_cast<int>(sys::call(SYS_close, fd));
  return true;
}

void after_fork_child() noexcept {
  becoming.reset_after_fork();
  some.store(true, std::memory_order_relaxed);  // a thread that is not here may have been about to
}

namespace {

enum class Call : std::uint8_t { kSends, kReceives, kWaitsToReceive };

// A thread in the kernel's receive cannot be woken, and while it is there nothing can be promoted. So
// it waits there only for what a client says first, and as a client for the answer to what it has
// sent.
bool may_enter(const FdEntry& socket, Call call) noexcept {
  if (call != Call::kWaitsToReceive) return true;
  return socket.role == Role::kAccept
             ? socket.use.made() == 0
             : socket.last_sender.load(std::memory_order_relaxed) == &signals::thread_state;
}

void leave(int fd, const SocketRef& socket, Call call, ssize_t result) noexcept {
  using Left = DeferredSelector::Left;
  const bool sent = call == Call::kSends;
  const std::size_t bytes = result > 0 ? static_cast<std::size_t>(result) : 0;
  const Left left = socket->use.leave(sent, bytes, socket->limit);
  if (left == Left::kNoted) return;
  const int saved = errno;
  if (left == Left::kFull) become_stream(fd, socket);
  if (!socket.is(Kind::kStream)) {
    const MutexLock until_it_is(becoming);  // or is closed, or the kernel's for good
  }
  if (Stream* stream = socket.stream()) stream->on_deferred_call_returned(sent, bytes);
  errno = saved;
}

// A call that is inside of the kernel: no destructor ends it, as an unwinder would have to call that.
struct Guest {
  int fd;
  Call call;
  FdEntry* socket;

  // False: it is not.
  bool begin() noexcept {
    SocketRef held = fd_table::find(fd);
    if (!held.is(Kind::kDeferred)) return false;
    if (call == Call::kWaitsToReceive && held->nonblocking) call = Call::kReceives;
    if (!may_enter(*held.get(), call) || !held->use.enter()) return false;
    socket = held.release();
    return true;
  }
  void end(ssize_t result) noexcept { leave(fd, SocketRef(socket), call, result); }
};

// -EAGAIN: it would have to wait.
long send_now(int fd, const void* buf, std::size_t n, int flags) noexcept {
  Guest guest{fd, Call::kSends, nullptr};
  if (n > DeferredSelector::kMostBytes || !guest.begin()) return -EAGAIN;
  guest.socket->last_sender.store(&signals::thread_state, std::memory_order_relaxed);
  const long sent = sys::raw(SYS_sendto, fd, sys::word(buf), static_cast<long>(n),
                             flags | MSG_DONTWAIT, 0, 0);
  guest.end(sent);
  return sent;
}

}  // namespace

bool sends(int fd, const void* buf, std::size_t n, int flags, ssize_t& result) {
  // No handler runs in it, which could end the thread or jump away: SIGPIPE's runs behind it.
  const long sent = cancellation::brief<send_now>(fd, buf, n, flags);
  if (sent == -EAGAIN || sent == -EINPROGRESS) return false;
  result = sent;
  if (sent >= 0) return true;
  errno = static_cast<int>(-sent);
  result = -1;
  return true;
}

bool receives(int fd, void* buf, std::size_t n, int flags, ssize_t& result) {
  if (n == 0 || n > DeferredSelector::kMostBytes) return false;
  const bool waits = (flags & MSG_DONTWAIT) == 0;
  Guest guest{fd, waits ? Call::kWaitsToReceive : Call::kReceives, nullptr};
  _pthread_cleanup_buffer buffer;
  // A handler that ends the thread, or jumps away, runs where libc knows what is to be done then: both of its
  // jumps and its unwinding do that.
  signals::begin();
  const bool begun = guest.begin();
  if (begun) {
    cancellation::push_cleanup(
        &buffer, [](void* ended) { static_cast<Guest*>(ended)->end(0); }, &guest);
  }
  if (hardly_ever(signals::end_without_delivery())) cancellation::deliver_signals();
  if (!begun) return false;
  result = guest.call == Call::kWaitsToReceive ? real().recv(fd, buf, n, flags)
                                               : sys::recv(fd, buf, n, flags | MSG_DONTWAIT);
  signals::begin();
  cancellation::pop_cleanup(&buffer, 0);
  guest.end(result);
  if (hardly_ever(signals::end_without_delivery())) cancellation::deliver_signals();
  return true;
}

bool receives_later(int fd, void* buf, std::size_t n, int flags, ssize_t& result) {
  if (n == 0 || n > DeferredSelector::kMostBytes ||
      seen_options::some_time_out.load(std::memory_order_relaxed)) {
    return false;
  }
  const SocketRef socket = fd_table::find(fd);
  if (!socket.is(Kind::kDeferred) || socket->role != Role::kAccept || socket->nonblocking) {
    return false;
  }
  const int saved = errno;
  Waiter stays;  // so that a close sees that somebody is here, also while that one looks
  const Listed here(&socket->waiters, stays);
  bool done = false;
  signals::begin_wait();
  while (!done && thread_wake_fd() >= 0) {
    result = -1;
    if (!Stream::sleep_early(fd, socket->waiters, socket->use)) return errno != ERESTART;
    if (!socket->use.enter()) break;
    result = sys::recv(fd, buf, n, flags | MSG_DONTWAIT);
    leave(fd, socket, Call::kReceives, result);
    if (result < 0 && errno != EAGAIN) return true;
    done = result >= 0;  // else another thread has taken it
  }
  errno = saved;
  if (done) return true;
  // It is a stream by now, whatever has become of the number; or the kernel's for good.
  {
    const MutexLock until_it_is(becoming);
  }
  Stream* const stream = socket.stream();
  if (stream == nullptr || stream->on_kernel_for_good()) return false;
  const iovec all{buf, n};
  result = stream->recv(&all, 1, flags);
  return result >= 0 || errno != ERESTART;
}

}  // namespace ringroad::preload::deferred_stream
