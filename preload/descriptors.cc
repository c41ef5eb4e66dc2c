#include "preload/descriptors.h"

#include <fcntl.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

#include "preload/close.h"
#include "preload/epolls.h"
#include "preload/fresh.h"
#include "preload/runtime.h"
#include "rsocket-core/private_descriptors.h"
#include "rsocket-core/sys.h"

namespace ringroad::preload {
namespace {

Mutex change_mutex;  // taken before
Mutex table_mutex;
Socket* free_list = nullptr;  // guarded by table_mutex

constexpr std::size_t kSlabSockets = 64;

Socket* allocate() noexcept {
  if (free_list == nullptr) {
    auto* slab = static_cast<Socket*>(::operator new(kSlabSockets * sizeof(Socket), std::nothrow));
    if (slab == nullptr) return nullptr;
    std::memset(static_cast<void*>(slab), 0, kSlabSockets * sizeof(Socket));
    for (std::size_t i = 0; i < kSlabSockets; ++i) {
      auto* socket = new (&slab[i]) Socket;
      socket->next_free = free_list;
      free_list = socket;
    }
  }
  Socket* socket = free_list;
  free_list = socket->next_free;
  return socket;
}

// With the table locked: of one that has neither stream nor instance.
void give_back(Socket* socket) noexcept {
  socket->forked.store(false, std::memory_order_relaxed);
  socket->kept_for_exec = socket->lent = false;
  socket->kind.store(Socket::Kind::kFree, std::memory_order_relaxed);
  socket->next_free = free_list;
  free_list = socket;
}

}  // namespace

// The table's own reference is gone and so are all others.
void recycle(Socket* socket) noexcept {
  StreamPtr stream = std::move(socket->stream);
  std::shared_ptr<EpollSet> epoll = std::move(socket->epoll);
  socket->stream.reset();
  socket->epoll.reset();
  {
    MutexLock lock(table_mutex);
    give_back(socket);
  }
  // The stream or instance, if this was its last owner, ends here, outside of the lock.
}

namespace descriptors {

std::atomic<Socket*> table[kLimit];
std::atomic<bool> made_for_tcp[kLimit];
std::atomic<int> epoll_marks[kLimit];
std::atomic<int> lowest{kLimit};
std::atomic<int> highest{-1};

namespace {

// With the table locked, before the number is in it.
void note_managed(int fd) noexcept {
  raise_highest(fd);
  if (fd < lowest.load(std::memory_order_relaxed)) lowest.store(fd, std::memory_order_relaxed);
}

}  // namespace

void raise_highest(int fd) noexcept {
  int known = highest.load(std::memory_order_relaxed);
  while (fd > known && !highest.compare_exchange_weak(known, fd, std::memory_order_relaxed)) {
  }
}

std::atomic<bool> Change::under_way_{false};
std::atomic<unsigned> Change::count_{0};

Change::Change() noexcept RR_NO_THREAD_SAFETY_ANALYSIS : taken_(runtime::owns_numbers()) {
  if (!taken_) return;
  change_mutex.lock();
  // Before what the change does, which is a store-release to the table or a system call.
  under_way_.store(true, std::memory_order_relaxed);
  count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
Change::~Change() RR_NO_THREAD_SAFETY_ANALYSIS {
  if (!taken_) return;
  under_way_.store(false, std::memory_order_release);
  change_mutex.unlock();
}

std::atomic<bool> some_linger{false};

namespace {

bool lingers(int fd) noexcept {
  const int saved = errno;
  linger option{};
  socklen_t length = sizeof option;
  const bool told = sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &option, &length) == 0;
  errno = saved;
  return told && option.l_onoff != 0 && option.l_linger > 0;
}

}  // namespace

void note_if_lingers(int fd) noexcept {
  if (!some_linger.load(std::memory_order_relaxed) && lingers(fd)) {
    some_linger.store(true, std::memory_order_relaxed);
  }
}

namespace {

std::atomic<bool> some_read_unusually{false};

bool has_unusual_options(int fd) noexcept {
  constexpr struct {
    int name;
    int usual;
  } kOptions[] = {{SO_RCVLOWAT, 1},  {SO_PEEK_OFF, -1},   {SO_OOBINLINE, 0},
                  {SO_TIMESTAMP, 0}, {SO_TIMESTAMPNS, 0}, {SO_TIMESTAMPING, 0}};
  const int saved = errno;
  const bool unusual = std::any_of(std::begin(kOptions), std::end(kOptions), [fd](const auto& o) {
    int value = o.usual;
    socklen_t length = sizeof value;
    return sys::getsockopt(fd, SOL_SOCKET, o.name, &value, &length) == 0 && value != o.usual;
  });
  errno = saved;
  return unusual;
}

}  // namespace

void note_if_reads_unusually(int fd) noexcept {
  if (!some_read_unusually.load(std::memory_order_relaxed) && has_unusual_options(fd)) {
    some_read_unusually.store(true, std::memory_order_relaxed);
  }
}

bool reads_unusually(int fd) noexcept {
  return some_read_unusually.load(std::memory_order_relaxed) && has_unusual_options(fd);
}

std::atomic<bool> some_time_out{false};

void note_if_times_out(int fd) noexcept {
  const int saved = errno;
  timeval timeout{};
  socklen_t length = sizeof timeout;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, &length) == 0 &&
      (timeout.tv_sec != 0 || timeout.tv_usec != 0)) {
    some_time_out.store(true, std::memory_order_relaxed);
  }
  errno = saved;
}

Farewell::Farewell(int fd) noexcept {
  if (managed(fd) && !some_linger.load(std::memory_order_relaxed)) return;
  if (!lingers(fd)) return;
  const int saved = errno;
  copy_ = sys::open_high([&] { return sys::duplicate(fd); });
  errno = saved;
}
Farewell::~Farewell() {
  if (copy_ >= 0) sys::close_quietly(copy_);
}

SocketRef find_as_it_is(int fd) noexcept {
  for (;;) {
    Socket* const socket = peek(fd);
    if (socket == nullptr) return {};
    if (!SocketRef::try_hold(socket)) continue;  // being closed right now: look again
    SocketRef ref(socket);
    if (table[fd].load(std::memory_order_seq_cst) != socket) continue;
    return ref;
  }
}

SocketRef find_slow(int fd) noexcept {
  SocketRef ref = find_as_it_is(fd);
  if (ref.is(Socket::Kind::kInherited)) runtime::inherit(fd, ref);
  if (ref.is(Socket::Kind::kFresh) && !fresh::become_stream(fd, ref)) return {};
  return ref;
}

SocketRef insert(int fd, std::shared_ptr<EpollSet> epoll) noexcept {
  // Nobody looks at what an entry that is free holds.
  SocketRef socket = insert(fd, Socket::Kind::kFree);
  if (!socket) return {};
  socket->epoll = std::move(epoll);
  socket->kind.store(Socket::Kind::kEpoll, std::memory_order_release);
  // Who has news for it asks for waits outside behind this; who waits outside is counted, and looks here then
  // (managed_by_now()). One of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return socket;
}

namespace {

// With the table locked. The ref is the caller's.
SocketRef enter(int fd, Socket* socket, Socket::Kind kind) noexcept {
  socket->numbers = 1;
  socket->kind.store(kind, std::memory_order_relaxed);
  socket->refs.store(2, std::memory_order_release);  // the table's and the caller's
  note_managed(fd);
  table[fd].store(socket, std::memory_order_release);
  return SocketRef(socket);
}

}  // namespace

SocketRef insert(int fd, Socket::Kind kind) noexcept {
  if (!in_range(fd)) return {};
  if (managed(fd)) number_is_gone(fd);
  MutexLock lock(table_mutex);
  Socket* socket = allocate();
  return socket != nullptr ? enter(fd, socket, kind) : SocketRef();
}

SocketRef insert_fresh(int fd, StreamRole role, const Endpoint& remote, const policy::Settings& rule,
                       unsigned limit, bool nonblocking, unsigned forks) noexcept {
  if (!in_range(fd)) return {};
  if (managed(fd)) number_is_gone(fd);
  // Who forks has this lock: either it sees the entry, or it is over and has been counted.
  MutexLock lock(table_mutex);
  Socket* socket = allocate();
  if (socket == nullptr) return {};
  socket->use.begin();
  socket->last_sender.store(nullptr, std::memory_order_relaxed);
  socket->role = role;
  socket->endpoint = remote;
  socket->rule = &rule;
  socket->nonblocking = nonblocking;
  socket->limit = limit;
  socket->old.store(false, std::memory_order_relaxed);
  socket->forked.store(runtime::forks() != forks, std::memory_order_relaxed);
  return enter(fd, socket, Socket::Kind::kFresh);
}

void add_number(int fd, const SocketRef& socket) noexcept {
  if (fd < 0 || fd >= kLimit) return;
  if (managed(fd)) number_is_gone(fd);
  MutexLock lock(table_mutex);
  ++socket->numbers;
  socket->refs.fetch_add(1, std::memory_order_relaxed);
  note_managed(fd);
  table[fd].store(socket.get(), std::memory_order_release);
}

void forget(int fd, const SocketRef& socket) noexcept {
  MutexLock lock(table_mutex);
  if (table[fd].load(std::memory_order_relaxed) != socket.get()) return;
  table[fd].store(nullptr, std::memory_order_seq_cst);
  --socket->numbers;
  socket->refs.fetch_sub(1, std::memory_order_acq_rel);  // the table's; the caller has another
}

SocketRef forget_fresh(int fd, SocketRef socket) noexcept {
  MutexLock lock(table_mutex);
  if (table[fd].load(std::memory_order_relaxed) != socket.get()) return socket;
  table[fd].store(nullptr, std::memory_order_seq_cst);
  --socket->numbers;
  // Nearly always these are the table's and the caller's, and nobody gets another.
  std::uint32_t both = 2;
  if (!socket->refs.compare_exchange_strong(both, 0, std::memory_order_seq_cst)) {
    socket->refs.fetch_sub(1, std::memory_order_acq_rel);
    return socket;
  }
  give_back(socket.release());
  return {};
}

SocketRef take(int fd, bool& last, int& other) noexcept {
  last = false;
  other = -1;
  if (fd < 0 || fd >= kLimit) return {};
  MutexLock lock(table_mutex);
  Socket* socket = table[fd].exchange(nullptr, std::memory_order_seq_cst);
  if (socket == nullptr) return {};
  last = --socket->numbers == 0;
  for (int i = 0; !last && i <= highest; ++i) {
    if (table[i].load(std::memory_order_relaxed) == socket) {
      other = i;
      break;
    }
  }
  return SocketRef(socket);  // the table's reference becomes the caller's
}

void lock_for_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  change_mutex.lock();
  table_mutex.lock();
}
void unlock_after_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  table_mutex.unlock();
  change_mutex.unlock();
}

// A Stream's own locks and the family's table come after the lock that is held.
void share_with_child(Agent& agent, Family::Member member) noexcept {
  for (int fd = 0; fd <= highest; ++fd) {
    Socket* socket = table[fd].load(std::memory_order_relaxed);
    if (socket == nullptr) continue;
    socket->goes_to_child = socket->is_lost = false;
    if (socket->kind.load(std::memory_order_relaxed) == Socket::Kind::kInherited) {
      socket->goes_to_child = member != 0 && agent.family().add(socket->share, member);
    }
    const Socket::Kind kind = socket->kind.load(std::memory_order_relaxed);
    if (kind == Socket::Kind::kConnecting || kind == Socket::Kind::kFresh) {
      socket->forked.store(true, std::memory_order_relaxed);
    }
    if (kind == Socket::Kind::kEpoll) epolls::share_with_child(*socket->epoll, agent.family(), member);
    if (socket->kind.load(std::memory_order_relaxed) != Socket::Kind::kStream) continue;
    Stream& stream = *socket->stream;
    if (stream.on_kernel_for_good()) {
      // The child knows of none, and has it for as long as it lives.
      if (stream.share() != 0 && (member == 0 || !agent.family().add(stream.share(), member))) {
        agent.family().keep(stream.share());
      }
      continue;
    }
    if (member != 0 && stream.share() == 0) stream.set_share(agent.family().enter(stream.tuple()));
    if (member != 0 && stream.share() != 0 && stream.become_shared()) {
      socket->goes_to_child = agent.family().add(stream.share(), member);
    } else {
      stream.pin(Reason::kFork, 0);
      socket->is_lost = !stream.kernel_can_serve();
    }
  }
}

namespace {

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

}  // namespace

void after_fork_child(Family::Joined joined) noexcept {
  change_mutex.reset_after_fork();
  table_mutex.reset_after_fork();
  for (int fd = 0; fd <= highest; ++fd) {
    Socket* socket = table[fd].load(std::memory_order_relaxed);
    if (socket == nullptr) continue;
    Socket::Kind kind = socket->kind.load(std::memory_order_relaxed);
    if (kind == Socket::Kind::kEpoll) socket->epoll->after_fork_child();
    if (kind == Socket::Kind::kFresh) {
      socket->use.forget_guests();
      // Threads that are not here held it, and slept.
      socket->refs.store(socket->numbers, std::memory_order_relaxed);
      new (&socket->waiters) WaitList;
      socket->forked.store(true, std::memory_order_relaxed);
      // A thread of the parent's was about to make a stream of it, or to close it.
      if (socket->use.settled()) table[fd].store(nullptr, std::memory_order_relaxed);
      continue;
    }
    if (kind == Socket::Kind::kStream) {
      // The Stream itself is the parent's: leave it alone, reference and all.
      Stream& stream = *socket->stream;
      if (socket->goes_to_child) {
        kind = Socket::Kind::kInherited;
        socket->tuple = stream.tuple();
        socket->role = stream.role();
        socket->config = stream.config();
        socket->share = stream.share();
        socket->lent = stream.lent().load(std::memory_order_relaxed) != 0;
        // Threads that are not here held the others.
        socket->refs.store(socket->numbers, std::memory_order_relaxed);
        new (&socket->stream) StreamPtr;
      } else if (socket->is_lost) {
        kind = Socket::Kind::kLost;
      } else {
        table[fd].store(nullptr, std::memory_order_relaxed);
        continue;
      }
    }
    if (kind == Socket::Kind::kInherited) {
      if (!socket->goes_to_child || joined == Family::Joined::kNo) {
        table[fd].store(nullptr, std::memory_order_relaxed);
        continue;
      }
      if (joined == Family::Joined::kTooLate) kind = Socket::Kind::kLost;
    }
    if (kind == Socket::Kind::kLost) put_nothing_at(fd);
    socket->kind.store(kind, std::memory_order_relaxed);
  }
}

// The sockets themselves are not given back: somebody may be looking at one. Nor is what the family knows:
// this process has them until it ends.
void leave_inherited() noexcept {
  MutexLock lock(table_mutex);
  for (int fd = 0; fd <= highest; ++fd) {
    const Socket* socket = table[fd].load(std::memory_order_relaxed);
    if (socket != nullptr && socket->kind.load(std::memory_order_relaxed) == Socket::Kind::kInherited) {
      table[fd].store(nullptr, std::memory_order_relaxed);
    }
  }
}

namespace {

// What the family calls it; 0: nothing.
std::uint64_t share_of(const Socket& socket) noexcept {
  switch (socket.kind.load(std::memory_order_relaxed)) {
    case Socket::Kind::kStream:
      return socket.stream->share();
    case Socket::Kind::kInherited:
      return socket.share;
    case Socket::Kind::kEpoll:
      return socket.epoll->share();
    default:
      return 0;
  }
}

}  // namespace

void keep_over_exec(Agent& agent) noexcept {
  MutexLock lock(table_mutex);
  for (int fd = 0; fd <= highest; ++fd) {
    Socket* socket = table[fd].load(std::memory_order_relaxed);
    if (socket == nullptr) continue;
    const Socket::Kind kind = socket->kind.load(std::memory_order_relaxed);
    const std::uint64_t share = share_of(*socket);
    const int flags = sys::fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    if (share != 0 && agent.family().keep(share)) socket->kept_for_exec = true;
    if (kind == Socket::Kind::kStream) socket->stream->cut_unless_served();
  }
}

void go_on_after_exec(Agent& agent) noexcept {
  MutexLock lock(table_mutex);
  for (int fd = 0; fd <= highest; ++fd) {
    Socket* socket = table[fd].load(std::memory_order_relaxed);
    if (socket == nullptr || !std::exchange(socket->kept_for_exec, false)) continue;
    agent.family().keep_no_longer(share_of(*socket));
  }
}

int highest_known() noexcept {
  return std::max(highest.load(std::memory_order_relaxed),
                  private_descriptors::highest.load(std::memory_order_relaxed));
}

bool exceeds_kernels_table(int count, int& size) noexcept {
  // It never shrinks.
  static std::atomic<int> known{FD_SETSIZE};
  size = known.load(std::memory_order_relaxed);
  if (count <= size) return false;
  const int saved = errno;
  const int file = sys::open_high_or_low(
      [] { return sys::call(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0); });
  if (file >= 0) {
    char text[1024];
    const ssize_t n = sys::read(file, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    const char* line = std::strstr(text, "\nFDSize:");
    if (line != nullptr) std::sscanf(line, " FDSize: %d", &size);
    sys::close_quietly(file);
  }
  size = std::max(size, known.load(std::memory_order_relaxed));
  known.store(size, std::memory_order_relaxed);
  errno = saved;
  return count > size;
}

}  // namespace descriptors
}  // namespace ringroad::preload
