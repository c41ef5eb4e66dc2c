#include "preload/fd_table.h"

#include <fcntl.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "preload/fault_handler.h"
#include "preload/process_state.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload {
namespace {

Mutex change_mutex RR_RANK(fd_mutation);
Mutex table_mutex RR_RANK(fd_table);
FdEntry* free_list = nullptr;  // guarded by table_mutex

constexpr std::size_t kSlabSockets = 64;

FdEntry* allocate() noexcept {
  if (free_list == nullptr) {
    auto* slab = static_cast<FdEntry*>(::operator new(kSlabSockets * sizeof(FdEntry), std::nothrow));
    if (slab == nullptr) return nullptr;
    std::memset(static_cast<void*>(slab), 0, kSlabSockets * sizeof(FdEntry));
    for (std::size_t i = 0; i < kSlabSockets; ++i) {
      auto* socket = new (&slab[i]) FdEntry;
      socket->next_free = free_list;
      free_list = socket;
    }
  }
  FdEntry* socket = free_list;
  free_list = socket->next_free;
  return socket;
}

// With the table locked: of one that has neither stream nor instance.
void give_back(FdEntry* socket) noexcept {
  socket->forked.store(false, std::memory_order_relaxed);
  socket->kept_for_exec = socket->lent = false;
  socket->kind.store(FdEntry::Kind::kFree, std::memory_order_relaxed);
  socket->next_free = free_list;
  free_list = socket;
}

}  // namespace

// The table's own reference is gone and so are all others.
void recycle(FdEntry* socket) noexcept {
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

namespace fd_table {

std::atomic<FdEntry*> table[kLimit];
std::atomic<int> lowest{kLimit};
std::atomic<int> highest{-1};

namespace {

constinit EndEntry* end_of_stale_entries = nullptr;

// With the table locked, before the number is in it.
void note_managed(int fd) noexcept {
  fault_handler::install();
  raise_highest(fd);
  if (fd < lowest.load(std::memory_order_relaxed)) lowest.store(fd, std::memory_order_relaxed);
}

}  // namespace

void raise_highest(int fd) noexcept {
  int known = highest.load(std::memory_order_relaxed);
  while (fd > known && !highest.compare_exchange_weak(known, fd, std::memory_order_relaxed)) {
  }
}

std::atomic<bool> FdMutation::under_way_{false};
std::atomic<unsigned> FdMutation::count_{0};

FdMutation::FdMutation() noexcept RR_NO_THREAD_SAFETY_ANALYSIS : taken_(process_state::owns_numbers()) {
  if (!taken_) return;
  change_mutex.lock();
  // Before what the change does, which is a store-release to the table or a system call.
  under_way_.store(true, std::memory_order_relaxed);
  count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
FdMutation::~FdMutation() RR_NO_THREAD_SAFETY_ANALYSIS {
  if (!taken_) return;
  under_way_.store(false, std::memory_order_release);
  change_mutex.unlock();
}

SocketRef find(int fd) noexcept {
  for (;;) {
    FdEntry* const socket = peek(fd);
    if (socket == nullptr) return {};
    if (!SocketRef::try_hold(socket)) continue;  // being closed right now: look again
    SocketRef ref(socket);
    if (table[fd].load(std::memory_order_seq_cst) != socket) continue;
    return ref;
  }
}

void set_end_of_stale_entries(EndEntry* end) noexcept { end_of_stale_entries = end; }

void end_stale_entry(int fd) noexcept {
  if (managed(fd)) end_of_stale_entries(fd);
}

namespace {

// With the table locked. The ref is the caller's.
SocketRef enter(int fd, FdEntry* socket, FdEntry::Kind kind) noexcept {
  socket->numbers = 1;
  socket->kind.store(kind, std::memory_order_relaxed);
  socket->refs.store(2, std::memory_order_release);  // the table's and the caller's
  note_managed(fd);
  table[fd].store(socket, std::memory_order_release);
  return SocketRef(socket);
}

}  // namespace

SocketRef insert(int fd, FdEntry::Kind kind) noexcept {
  if (!in_range(fd)) return {};
  end_stale_entry(fd);
  MutexLock lock(table_mutex);
  FdEntry* socket = allocate();
  return socket != nullptr ? enter(fd, socket, kind) : SocketRef();
}

SocketRef insert_instance(int fd, std::shared_ptr<EpollSet> epoll) noexcept {
  if (!in_range(fd)) return {};
  SocketRef socket;
  {
    MutexLock lock(table_mutex);
    FdEntry* const free = managed(fd) ? nullptr : allocate();
    if (free == nullptr) return {};
    free->epoll = std::move(epoll);
    socket = enter(fd, free, FdEntry::Kind::kEpoll);
  }
  // A thread that has news for it asks, after this, for waits outside; a thread that waits outside is
  // counted, and looks here then (managed_by_now()). One of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return socket;
}

SocketRef insert_deferred(int fd, Role role, const Endpoint& remote,
                          const policy::Settings& rule, unsigned limit, bool nonblocking,
                          unsigned forks) noexcept {
  if (!in_range(fd)) return {};
  end_stale_entry(fd);
  // A thread that forks has this lock: either it sees the entry, or it is over and has been counted.
  MutexLock lock(table_mutex);
  FdEntry* socket = allocate();
  if (socket == nullptr) return {};
  socket->use.begin();
  socket->last_sender.store(nullptr, std::memory_order_relaxed);
  socket->role = role;
  socket->endpoint = remote;
  socket->rule = &rule;
  socket->nonblocking = nonblocking;
  socket->limit = limit;
  socket->old.store(false, std::memory_order_relaxed);
  socket->forked.store(process_state::forks() != forks, std::memory_order_relaxed);
  return enter(fd, socket, FdEntry::Kind::kDeferred);
}

void add_number(int fd, const SocketRef& socket) noexcept {
  if (fd < 0 || fd >= kLimit) return;
  end_stale_entry(fd);
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

SocketRef forget_deferred(int fd, SocketRef socket) noexcept {
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
  FdEntry* socket = table[fd].exchange(nullptr, std::memory_order_seq_cst);
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

TableLock::TableLock() noexcept RR_NO_THREAD_SAFETY_ANALYSIS { table_mutex.lock(); }
TableLock::~TableLock() RR_NO_THREAD_SAFETY_ANALYSIS { table_mutex.unlock(); }

void lock_for_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  change_mutex.lock();
  table_mutex.lock();
}
void unlock_after_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  table_mutex.unlock();
  change_mutex.unlock();
}

void reset_locks_after_fork() noexcept {
  change_mutex.reset_after_fork();
  table_mutex.reset_after_fork();
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

}  // namespace fd_table
}  // namespace ringroad::preload
