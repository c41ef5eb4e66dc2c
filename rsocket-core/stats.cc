#include "rsocket-core/stats.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "rsocket-core/control.h"
#include "rsocket-core/signals.h"
#include "rsocket-core/sys.h"

namespace ringroad::stats {
namespace {

// Field 22 of /proc/self/stat; the program's name (field 2) may contain anything, so count from
// the last parenthesis.
std::uint64_t own_start_ticks() noexcept {
  char text[1024];
  const int fd = sys::open_high(
      [&] { return sys::call(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC, 0); });
  if (fd < 0) return 0;
  const ssize_t n = sys::read(fd, text, sizeof text - 1);
  sys::close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  const char* p = std::strrchr(text, ')');
  for (int field = 2; p != nullptr && field < 22; ++field) {
    p = std::strchr(p + 1, ' ');
  }
  return p == nullptr ? 0 : std::strtoull(p + 1, nullptr, 10);
}

// The directory is shared by all users, like /tmp: sticky, so that nobody removes another's file.
bool ensure_directory(const char* directory) noexcept {
  if (sys::call(SYS_mkdir, directory, 01777) == 0) {
    sys::call(SYS_chmod, directory, 01777);  // whatever the umask took away
    return true;
  }
  struct stat st {};
  return errno == EEXIST &&
         sys::call(SYS_newfstatat, AT_FDCWD, directory, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISDIR(st.st_mode);
}

}  // namespace

Segment* Segment::create(const char* directory, const char* program) noexcept {
  if (!ensure_directory(directory)) return nullptr;
  auto* segment = new (std::nothrow) Segment;
  if (segment == nullptr) return nullptr;
  const int length = std::snprintf(segment->path_, sizeof segment->path_, "%s/%d", directory,
                                   static_cast<int>(sys::getpid()));
  segment->bytes_ = kHeaderBytes + sizeof(StreamSlot) * kSlots;
  segment->free_ = static_cast<std::uint32_t*>(std::malloc(sizeof(std::uint32_t) * kSlots));
  int fd = -1;
  if (segment->free_ != nullptr && length > 0 &&
      static_cast<std::size_t>(length) < sizeof segment->path_) {
    // What stands under our pid is from a dead process, or from the program that this one was before.
    const auto own_pid = static_cast<std::uint32_t>(sys::getpid());
    segment->mode_before_exec_ = mode_of_file(segment->path_, own_pid, own_start_ticks());
    constexpr std::uint32_t kSeldom = 8;  // who forks often shall not look at all files each time
    if (own_pid % kSeldom == 0) remove_files_of_the_dead(directory, kKeepDeadS);
    sys::call(SYS_unlinkat, AT_FDCWD, segment->path_, 0);
    fd = sys::open_high([&] {
      return sys::call(SYS_openat, AT_FDCWD, segment->path_,
                       O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    });
  }
  void* memory = MAP_FAILED;
  if (fd >= 0) {
    sys::call(SYS_fchmod, fd, 0644);  // whatever the umask took away
    if (sys::call(SYS_ftruncate, fd, segment->bytes_) == 0) {
      memory = mmap(nullptr, segment->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    sys::close(fd);
  }
  if (memory == MAP_FAILED) {
    if (fd >= 0) segment->remove_file();
    delete segment;
    return nullptr;
  }
  segment->header_ = new (memory) SegmentHeader;
  segment->slots_ = reinterpret_cast<StreamSlot*>(static_cast<std::byte*>(memory) + kHeaderBytes);
  SegmentHeader& h = *segment->header_;
  h.version = kSegmentVersion;
  h.header_bytes = kHeaderBytes;
  h.slot_bytes = sizeof(StreamSlot);
  h.slots = kSlots;
  h.pid = static_cast<std::uint32_t>(sys::getpid());
  h.start_ticks = own_start_ticks();
  h.pid_namespace = own_pid_namespace();
  std::snprintf(h.program, sizeof h.program, "%s", program);
  std::snprintf(h.library_version, sizeof h.library_version, "%s", RINGROAD_VERSION);
  std::atomic_thread_fence(std::memory_order_release);
  h.magic = kSegmentMagic;
  return segment;
}

Segment::~Segment() {
  if (header_ != nullptr) munmap(header_, bytes_);
  std::free(free_);
}

StreamSlot* Segment::acquire() noexcept {
  const signals::Later not_now;
  while (busy_.test_and_set(std::memory_order_acquire)) {
  }
  std::uint32_t index = kSlots;
  if (free_count_ > 0) {
    index = free_[--free_count_];
  } else if (header_->slots_used.load(std::memory_order_relaxed) < kSlots) {
    index = header_->slots_used.load(std::memory_order_relaxed);
    header_->slots_used.store(index + 1, std::memory_order_relaxed);
  }
  busy_.clear(std::memory_order_release);
  if (index == kSlots) return nullptr;
  StreamSlot& slot = slots_[index];
  begin(slot);
  for (int i = 0; i < 2; ++i) {
    slot.counters.tx_bytes[i].store(0, std::memory_order_relaxed);
    slot.counters.rx_bytes[i].store(0, std::memory_order_relaxed);
    slot.counters.tx_messages[i].store(0, std::memory_order_relaxed);
    slot.counters.rx_messages[i].store(0, std::memory_order_relaxed);
  }
  slot.stalls.store(0, std::memory_order_relaxed);
  slot.promotions.store(0, std::memory_order_relaxed);
  slot.resumptions.store(0, std::memory_order_relaxed);
  slot.reason.store(0, std::memory_order_relaxed);
  slot.peer_reason.store(0, std::memory_order_relaxed);
  slot.state.store(0, std::memory_order_relaxed);
  slot.channel = ChannelInfo{};
  slot.in_use.store(1, std::memory_order_relaxed);
  end(slot);
  return &slot;
}

void Segment::release(StreamSlot* slot) noexcept {
  const signals::Later not_now;
  Counters& closed = header_->closed;
  const Counters& c = slot->counters;
  while (busy_.test_and_set(std::memory_order_acquire)) {
  }
  begin(*slot);
  for (int i = 0; i < 2; ++i) {
    Counters::add(closed.tx_bytes[i], c.tx_bytes[i].load(std::memory_order_relaxed));
    Counters::add(closed.rx_bytes[i], c.rx_bytes[i].load(std::memory_order_relaxed));
    Counters::add(closed.tx_messages[i], c.tx_messages[i].load(std::memory_order_relaxed));
    Counters::add(closed.rx_messages[i], c.rx_messages[i].load(std::memory_order_relaxed));
  }
  slot->in_use.store(0, std::memory_order_relaxed);
  end(*slot);
  free_[free_count_++] = static_cast<std::uint32_t>(slot - slots_);
  busy_.clear(std::memory_order_release);
}

void Segment::remove_file() noexcept {
  const int saved = errno;
  sys::call(SYS_unlinkat, AT_FDCWD, path_, 0);
  char socket[sizeof path_ + control::kSuffixBytes];
  std::snprintf(socket, sizeof socket, "%s%.*s", path_, static_cast<int>(sizeof header_->control_suffix),
                header_ != nullptr && header_->control_suffix[0] != '\0' ? header_->control_suffix
                                                                         : control::kSuffix);
  sys::call(SYS_unlinkat, AT_FDCWD, socket, 0);
  errno = saved;
}

}  // namespace ringroad::stats
