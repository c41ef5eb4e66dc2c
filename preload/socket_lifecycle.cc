#include "preload/socket_lifecycle.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "preload/deferred_stream.h"
#include "preload/epoll_marks.h"
#include "preload/epolls.h"
#include "preload/process_state.h"
#include "preload/seen_options.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::socket_lifecycle {
namespace {

using Kind = FdEntry::Kind;
using fd_table::FdMutation;
using process_state::existing_agent;

constexpr std::int64_t kLeaveTimeoutNs = 2'000'000'000;

Mutex establish_mutex RR_RANK(establish);
Mutex inherit_mutex RR_RANK(inherit);

// The child of a fork makes a call on a stream that it has inherited: it gets one of its own.
// Not inline: find_slow() would save the registers that it needs.
[[gnu::noinline]] void inherit(int fd, const SocketRef& socket) noexcept {
  Agent* agent = existing_agent();
  if (agent == nullptr || !process_state::owns_memory()) return;
  const int saved = errno;
  epolls::end_stale_instance_of(fd);
  // Before any call of this process has reached the kernel, or the library could not know what is
  // going on there.
  {
    MutexLock lock(inherit_mutex);
    if (socket.is(Kind::kInherited)) {
      StreamPtr stream =
          agent->inherit_stream(fd, socket->role, socket->tuple, socket->config, socket->share);
      if (stream != nullptr) {
        if (socket->lent) {
          // The instance that it is in is the parent's, too, and not this process' to change.
          stream->demote_for_good(Reason::kFork, 0);
        } else {
          epolls::take_over(fd, stream);
        }
        socket->stream = std::move(stream);
        socket->kind.store(Kind::kStream, std::memory_order_release);
      } else {
        leave_inherited();  // no thread, or no memory, and so no next time
      }
    }
  }
  errno = saved;
}

// `closed`: the kernel has closed it. `own`: not in a vfork child, where the table is its parent's.
SocketRef end_entry_of(int fd, bool closed, bool own) noexcept {
  if (!own) return {};
  epoll_marks::note_end(fd);
  if (!closed && deferred_stream::is(fd)) deferred_stream::before_number_goes(fd);
  bool last = false;
  int other = -1;
  SocketRef socket = fd_table::take(fd, last, other);
  if (!socket) return socket;
  if (socket.is(Kind::kDeferred)) deferred_stream::closed(*socket.get());
  if (Stream* stream = socket.stream()) {
    if (!last) {
      if (stream->fd() == fd && other >= 0) stream->renumber(other);
      epolls::number_goes(*stream, fd, closed);
    } else {
      epolls::forget(*stream);
      if (closed) stream->descriptor_is_gone();
      const bool busy = socket->refs.load(std::memory_order_seq_cst) > 1;  // see SocketRef::try_hold()
      const bool over = stream->close_by_program(busy);
      if (Agent* agent = existing_agent()) agent->stream_closed(*stream, over);
    }
  } else if (EpollSet* epoll = socket.epoll()) {
    if (other >= 0) epoll->renumber(other);
    const std::uint64_t share = last ? epoll->take_share() : 0;
    if (Agent* agent = existing_agent(); share != 0) agent->release_share(share);
  } else if (last && socket.is(Kind::kListener)) {
    // It is answered for while the agent knows of connections that it has accepted.
    deferred_stream::materialise(AgentHost::Deferred::kAll, {});
    if (Agent* agent = existing_agent()) agent->unlisten(socket->endpoint);
  } else if (last && socket.is(Kind::kInherited)) {
    if (Agent* agent = existing_agent()) agent->release_share(socket->share);
  }
  return socket;
}

}  // namespace

SocketRef find_slow(int fd) noexcept {
  SocketRef ref = fd_table::find(fd);
  if (ref.is(Kind::kInherited)) inherit(fd, ref);
  if (ref.is(Kind::kDeferred) && !deferred_stream::become_stream(fd, ref)) return {};
  return ref;
}

SocketRef adopt(int fd, Role role, const FourTuple& tuple, const StreamConfig& config,
                bool nonblocking, bool fresh) noexcept {
  const signals::DeferHandlers whole;
  if (seen_options::reads_unusually(fd)) return {};
  const int saved = errno;
  SocketRef socket;
  if (Agent* agent = existing_agent()) {
    StreamPtr stream = agent->open_stream(fd, role, tuple, config, nonblocking);
    if (stream != nullptr) {
      if (!fresh) epolls::take_over(fd, stream);
      socket = find(fd);
      if (!socket.is(Kind::kConnecting)) socket = fd_table::insert(fd, Kind::kConnecting);
      if (socket) {
        socket->stream = std::move(stream);
        socket->kind.store(Kind::kStream, std::memory_order_release);
      }
    }
  }
  errno = saved;
  return socket;
}

bool establish(int fd, const SocketRef& socket) noexcept {
  const int saved = errno;
  const unsigned forks_before = process_state::forks();
  FourTuple tuple;
  epolls::end_stale_instance_of(fd);
  // Two threads may find it connected at once; one of them makes the stream.
  bool connected = false;
  {
    MutexLock lock(establish_mutex);
    if (socket.is(Kind::kStream)) return true;
    if (socket.is(Kind::kConnecting) && Endpoint::peer_of(fd, tuple.remote) &&
        Endpoint::local_of(fd, tuple.local)) {
      const int flags = sys::fcntl(fd, F_GETFL);
      // With O_ASYNC the kernel sends signals.
      connected = (flags & O_ASYNC) == 0 &&
                  static_cast<bool>(adopt(fd, Role::kConnect, tuple, socket->config,
                                          (flags & O_NONBLOCK) != 0, false));
    }
  }
  Stream* stream = connected ? socket.stream() : nullptr;
  if (stream != nullptr) {
    // A child has it too, and neither knows of the other.
    if (socket->forked || process_state::forks() != forks_before) {
      stream->demote_for_good(Reason::kFork, 0);
    }
    stream->note_use(0, 0);
    if (stream->config().wait_ns > 0 && stream->config().promote_messages == 0) {
      stream->wait_promoted(stream->config().wait_ns);
    }
  }
  errno = saved;
  return stream != nullptr;
}

bool materialise(AgentHost::Deferred which, const Endpoint& remote) noexcept {
  const FdMutation none_is_closed;
  return deferred_stream::materialise(which, remote);
}

void give_away(int fd, Reason reason) noexcept {
  if (!fd_table::managed(fd)) return;
  const bool own = process_state::owns_memory();
  if (!own && !process_state::shares_memory()) return;
  const SocketRef socket = find(fd);
  Stream* stream = socket.stream();
  if (stream == nullptr || stream->on_kernel_for_good()) return;
  if (stream->demote_for_good(reason, kLeaveTimeoutNs, own)) return;
  if (reason == Reason::kExec || reason == Reason::kFdPassed) stream->cut_unless_served();
}

void use_the_kernel_only(Reason reason) noexcept {
  Agent* agent = existing_agent();
  if (process_state::on_kernel_only() || (agent != nullptr && !process_state::owns_memory())) return;
  const int saved = errno;
  materialise_all();  // for them to be seen
  process_state::set_on_kernel_only();
  materialise_all();  // and those that came just now
  leave_inherited();
  if (agent != nullptr) {
    agent->leave_all(reason, kLeaveTimeoutNs);
    agent->pin_all(reason);
  }
  errno = saved;
}

// What the process group knows stays: this process has them until it ends.
void leave_inherited() noexcept {
  const fd_table::TableLock lock;
  fd_table::for_each([](int fd, const FdEntry& socket) noexcept {
    if (socket.kind.load(std::memory_order_relaxed) == Kind::kInherited) fd_table::drop_number(fd);
  });
}

SocketRef take_out(int fd) noexcept { return end_entry_of(fd, false, process_state::owns_numbers()); }
SocketRef take_out(int fd, const FdMutation& change) noexcept {
  return end_entry_of(fd, false, change.taken());
}
void take_out_closed(int fd) noexcept { end_entry_of(fd, true, process_state::owns_numbers()); }

void after_fork_child() noexcept {
  establish_mutex.reset_after_fork();
  deferred_stream::after_fork_child();
  inherit_mutex.reset_after_fork();
}

}  // namespace ringroad::preload::socket_lifecycle
