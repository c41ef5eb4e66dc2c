#include "preload/fork_exec.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <utility>

#include "preload/epolls.h"
#include "preload/fd_room.h"
#include "preload/fd_table.h"
#include "preload/jumps.h"
#include "preload/process_state.h"
#include "preload/process_stats.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::fork_exec {
namespace {

using Kind = FdEntry::Kind;
using InChild = FdEntry::InChild;
using process_state::existing_agent;

constexpr std::int64_t kLeaveTimeoutNs = 2'000'000'000;
constexpr std::int64_t kForkTimeoutNs = 1'000'000'000;

ProcessGroup::Member child = 0;  // that is being forked; guarded by the table of descriptors
thread_local Agent* forked_agent = nullptr;  // this thread is between before_fork() and after it
thread_local bool fork_holds = false;  // this thread forks, and no stream is promoted meanwhile
std::atomic<int> execs_under_way{0};   // threads inside of exec

// Of an entry that `member`, unless that is 0, may have: what it will have. The Stream's own locks and the
// process group's table come after the lock of the table, which is held.
InChild share(FdEntry& socket, Agent& agent, ProcessGroup::Member member) noexcept {
  ProcessGroup& group = agent.process_group();
  // Another thread may make a stream of it meanwhile, so the kind is asked for each time.
  const auto is = [&socket](Kind kind) noexcept {
    return socket.kind.load(std::memory_order_relaxed) == kind;
  };
  InChild inherited = InChild::kNothing;
  if (is(Kind::kInherited) && member != 0 && group.add(socket.share, member)) {
    inherited = InChild::kInherited;
  }
  if (is(Kind::kConnecting) || is(Kind::kDeferred)) {
    socket.forked.store(true, std::memory_order_relaxed);
  }
  if (is(Kind::kEpoll)) epolls::share_with_child(*socket.epoll, group, member);
  if (!is(Kind::kStream)) return inherited;
  Stream& stream = *socket.stream;
  if (stream.on_kernel_for_good()) {
    // The child knows of none, and has it for as long as it lives.
    if (stream.share() != 0 && (member == 0 || !group.add(stream.share(), member))) {
      group.keep(stream.share());
    }
    return inherited;
  }
  if (member != 0 && stream.share() == 0) stream.set_share(group.enter(stream.tuple()));
  if (member != 0 && stream.share() != 0 && stream.become_shared()) {
    return group.add(stream.share(), member) ? InChild::kInherited : InChild::kNothing;
  }
  stream.demote_for_good(Reason::kFork, 0);
  if (inherited == InChild::kInherited || stream.kernel_can_serve()) return inherited;
  return InChild::kLost;
}

// A socket that is not connected: an error for everybody, also for a program that the child becomes, and no
// hold on the connection of the parent.
void put_nothing_at(int fd) noexcept {
  const int flags = sys::fcntl(fd, F_GETFD);
  if (flags < 0) return;
  const int nothing =
      sys::open_high([] { return sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  if (nothing < 0) {
    sys::close(fd);
    return;
  }
  sys::call(SYS_dup3, nothing, fd, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  sys::close_quietly(nothing);
}

void take_up_deferred(int fd, FdEntry& socket) noexcept {
  socket.use.forget_guests();
  // Threads that are not here held it, and slept.
  socket.refs.store(socket.numbers, std::memory_order_relaxed);
  new (&socket.waiters) WaitList;
  socket.forked.store(true, std::memory_order_relaxed);
  // A thread of the parent's was about to make a stream of it, or to close it.
  if (socket.use.settled()) fd_table::drop_number(fd);
}

// The Stream itself is the parent's: it is left alone, reference and all.
void take_up_stream(FdEntry& socket) noexcept {
  Stream& stream = *socket.stream;
  socket.tuple = stream.tuple();
  socket.role = stream.role();
  socket.config = stream.config();
  socket.share = stream.share();
  socket.lent = stream.lent().load(std::memory_order_relaxed) != 0;
  // Threads that are not here held the others.
  socket.refs.store(socket.numbers, std::memory_order_relaxed);
  new (&socket.stream) StreamPtr;
}

// In a forked child: shared streams become kInherited; those on a channel are kLost, and so are those
// that the others took for theirs meanwhile; the rest is gone from the table.
void take_up(int fd, FdEntry& socket, ProcessGroup::Joined joined) noexcept {
  Kind kind = socket.kind.load(std::memory_order_relaxed);
  if (kind == Kind::kEpoll) socket.epoll->after_fork_child();
  if (kind == Kind::kDeferred) return take_up_deferred(fd, socket);
  if (kind == Kind::kStream) {
    if (socket.in_child == InChild::kNothing) return fd_table::drop_number(fd);
    kind = socket.in_child == InChild::kInherited ? Kind::kInherited : Kind::kLost;
    if (kind == Kind::kInherited) take_up_stream(socket);
  }
  if (kind == Kind::kInherited) {
    if (socket.in_child != InChild::kInherited || joined == ProcessGroup::Joined::kNo) {
      return fd_table::drop_number(fd);
    }
    if (joined == ProcessGroup::Joined::kTooLate) kind = Kind::kLost;
  }
  if (kind == Kind::kLost) put_nothing_at(fd);
  socket.kind.store(kind, std::memory_order_relaxed);
}

// What the process group calls it; 0: nothing.
std::uint64_t share_of(const FdEntry& socket) noexcept {
  switch (socket.kind.load(std::memory_order_relaxed)) {
    case Kind::kStream:
      return socket.stream->share();
    case Kind::kInherited:
      return socket.share;
    case Kind::kEpoll:
      return socket.epoll->share();
    default:
      return 0;
  }
}

// The process becomes another program: what stays open is held by a program that does not know it. Where that
// one could read frames, or an end that is none, the connection is cut.
void keep_over_exec(Agent& agent) noexcept {
  const fd_table::TableLock lock;
  fd_table::for_each([&agent](int fd, FdEntry& socket) noexcept {
    const std::uint64_t share = share_of(socket);
    const int flags = sys::fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) return;
    if (share != 0 && agent.process_group().keep(share)) socket.kept_for_exec = true;
    if (socket.kind.load(std::memory_order_relaxed) == Kind::kStream) {
      socket.stream->cut_unless_served();
    }
  });
}

// It has not become one.
void go_on_after_exec(Agent& agent) noexcept {
  const fd_table::TableLock lock;
  fd_table::for_each([&agent](int /*fd*/, FdEntry& socket) noexcept {
    if (std::exchange(socket.kept_for_exec, false)) agent.process_group().keep_no_longer(share_of(socket));
  });
}

// What an operator has said holds for the program that the child becomes, too (stats.h).
void take_up_mode(stats::Segment* parents) noexcept {
  const std::uint32_t mode =
      parents == nullptr ? 0 : parents->header().operator_mode.load(std::memory_order_relaxed);
  if (mode == static_cast<std::uint32_t>(control::Mode::kAuto)) return;
  if (stats::Segment* own = process_stats::own_segment()) own->header().operator_mode.store(mode);
}

}  // namespace

bool is_prepared() noexcept { return forked_agent != nullptr; }

void before_fork() noexcept {
  if (is_prepared()) return;
  Agent* agent = forked_agent = existing_agent();
  if (agent == nullptr) return;
  // The child shares every descriptor and may use any of them: every stream returns to the kernel, and
  // stays there until one process is left that has it.
  socket_lifecycle::materialise_all();
  fork_holds = process_state::owns_memory();
  if (fork_holds) agent->leave_all(Reason::kFork, kForkTimeoutNs);
  agent->pin_unshareable();
  epolls::lend_all();
  fd_table::lock_for_fork();
  child = agent->expect_child();
  fd_table::for_each([agent](int /*fd*/, FdEntry& socket) noexcept {
    socket.in_child = share(socket, *agent, child);
  });
  agent->before_fork();
}

void after_fork_parent() noexcept {
  Agent* agent = std::exchange(forked_agent, nullptr);
  if (agent == nullptr) return;
  agent->after_fork_parent();
  if (std::exchange(fork_holds, false)) agent->stay();
  // With the table locked: a thread that has taken a descriptor from the kernel and waits to enter it sees
  // that the child has it too.
  process_state::count_fork();
  fd_table::unlock_after_fork();
}

void after_fork_child() noexcept {
  sys::DescriptorTurn::forget();
  signals::forget_after_fork();
  jumps::after_fork_child();
  Agent* agent = std::exchange(forked_agent, nullptr);
  if (agent == nullptr) return;
  process_state::claim_memory();
  stats::Segment* const parents = process_stats::after_fork_child();
  execs_under_way.store(0);
  fork_holds = false;
  agent->after_fork_child();
  take_up_mode(parents);
  socket_lifecycle::after_fork_child();
  fd_room::after_fork_child();
  epolls::after_fork_child();
  const ProcessGroup::Joined joined = agent->process_group().join(child);
  fd_table::reset_locks_after_fork();
  fd_table::for_each(
      [joined](int fd, FdEntry& socket) noexcept { take_up(fd, socket, joined); });
  forget_wake_fds_after_fork();
  reserved_fds::leave_to_parent([](int fd) noexcept { sys::close_quietly(fd); });
}

void give_away_stdio() noexcept {
  for (int fd = 0; fd <= 2; ++fd) socket_lifecycle::give_away(fd, Reason::kExec);
}

bool leave(Reason reason) noexcept {
  Agent* agent = existing_agent();
  if (agent == nullptr) return false;
  if (!process_state::owns_memory()) {
    if (reason == Reason::kExec) give_away_stdio();
    return false;
  }
  const int saved = errno;
  if (reason == Reason::kExec) execs_under_way.fetch_add(1);
  agent->leave_all(reason, kLeaveTimeoutNs);
  if (reason == Reason::kExec) keep_over_exec(*agent);
  if (reason == Reason::kExit) {
    agent->process_group().resign();
    if (stats::Segment* own = process_stats::existing_segment()) own->remove_file();
  }
  errno = saved;
  return true;
}

void exec_failed() noexcept {
  Agent* agent = existing_agent();
  const int saved = errno;
  if (execs_under_way.fetch_sub(1) == 1) go_on_after_exec(*agent);
  agent->stay();
  errno = saved;
}

}  // namespace ringroad::preload::fork_exec
