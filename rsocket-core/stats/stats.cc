#include "rsocket-core/stats/stats.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/process/control_socket.h"
#include "rsocket-core/stats/file_name.h"

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
  if (sys::call(SYS_mkdirat, AT_FDCWD, directory, 01777) == 0) {
    sys::call(SYS_fchmodat, AT_FDCWD, directory, 01777);  // whatever the umask took away
    return true;
  }
  struct stat st {};
  return errno == EEXIST &&
         sys::call(SYS_newfstatat, AT_FDCWD, directory, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISDIR(st.st_mode);
}

void add_to(std::atomic<std::uint64_t>& sum, const std::atomic<std::uint64_t>& part) noexcept {
  Counters::add(sum, part.load(std::memory_order_relaxed));
}

}  // namespace

void StreamCounts::clear() noexcept {
  for (int i = 0; i < 2; ++i) {
    traffic.tx_bytes[i].store(0, std::memory_order_relaxed);
    traffic.rx_bytes[i].store(0, std::memory_order_relaxed);
    traffic.tx_messages[i].store(0, std::memory_order_relaxed);
    traffic.rx_messages[i].store(0, std::memory_order_relaxed);
  }
  stalls.store(0, std::memory_order_relaxed);
  promotions.store(0, std::memory_order_relaxed);
  resumptions.store(0, std::memory_order_relaxed);
  tx_sizes.clear();
  rx_sizes.clear();
  waits.clear();
  waited_ns.store(0, std::memory_order_relaxed);
}

void StreamCounts::add(const StreamCounts& other) noexcept {
  for (int i = 0; i < 2; ++i) {
    add_to(traffic.tx_bytes[i], other.traffic.tx_bytes[i]);
    add_to(traffic.rx_bytes[i], other.traffic.rx_bytes[i]);
    add_to(traffic.tx_messages[i], other.traffic.tx_messages[i]);
    add_to(traffic.rx_messages[i], other.traffic.rx_messages[i]);
  }
  add_to(stalls, other.stalls);
  add_to(promotions, other.promotions);
  add_to(resumptions, other.resumptions);
  tx_sizes.add(other.tx_sizes);
  rx_sizes.add(other.rx_sizes);
  waits.add(other.waits);
  add_to(waited_ns, other.waited_ns);
}

void Times::clear() noexcept {
  counts.clear();
  sum_ns.store(0, std::memory_order_relaxed);
}

void Times::add(const Times& other) noexcept {
  counts.add(other.counts);
  add_to(sum_ns, other.sum_ns);
}

void Latencies::clear() noexcept {
  for (Times& times : answers) times.clear();
  reads.clear();
}

void Latencies::add(const Latencies& other) noexcept {
  for (std::size_t i = 0; i < std::size(answers); ++i) answers[i].add(other.answers[i]);
  reads.add(other.reads);
}

Segment* Segment::create(const char* directory, const char* program) noexcept {
  if (!ensure_directory(directory)) return nullptr;
  auto* segment = new (std::nothrow) Segment;
  if (segment == nullptr) return nullptr;
  const auto own_pid = static_cast<std::uint32_t>(sys::getpid());
  const std::uint64_t own_namespace = own_pid_namespace();
  char name[FileName::kBytes];
  FileName::of(own_pid, own_namespace).write(name);
  const int length = std::snprintf(segment->path_, sizeof segment->path_, "%s/%s", directory, name);
  segment->free_ = new (std::nothrow) std::uint32_t[kSlots];
  int fd = -1;
  if (static_cast<std::size_t>(length) >= sizeof segment->path_) {
    errno = ENAMETOOLONG;
  } else if (segment->free_ != nullptr) {
    // What stands under our name is from a dead process, or from the program that this one was before.
    segment->mode_before_exec_ = mode_of_file(segment->path_, own_pid, own_start_ticks());
    constexpr std::uint32_t kSeldom = 8;  // a program that forks often does not look at all files
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
    const auto reserves = [&] {
      return (sys::call(SYS_fallocate, fd, 0, 0, kHeaderBytes + sizeof(RuleSlot)) == 0 &&
              sys::call(SYS_fallocate, fd, 0, kLatenciesOffset, sizeof(Latencies)) == 0) ||
             errno == EOPNOTSUPP;
    };
    if (sys::make_long(fd, kSegmentBytes) && reserves()) {
      memory = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    sys::close(fd);
  }
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (fd >= 0) segment->remove_file();
    delete segment;
    errno = error;
    return nullptr;
  }
  segment->header_ = new (memory) SegmentHeader;
  auto* const begin = static_cast<std::byte*>(memory);
  segment->rules_ = reinterpret_cast<RuleSlot*>(begin + kHeaderBytes);
  segment->slots_ = reinterpret_cast<StreamSlot*>(begin + kSlotsOffset);
  segment->latencies_ = reinterpret_cast<Latencies*>(begin + kLatenciesOffset);
  SegmentHeader& h = *segment->header_;
  h.version = kSegmentVersion;
  h.header_bytes = kHeaderBytes;
  h.slot_bytes = sizeof(StreamSlot);
  h.slots = kSlots;
  h.rule_bytes = sizeof(RuleSlot);
  h.rules = kRules;
  h.latencies_bytes = sizeof(Latencies);
  h.pid = own_pid;
  h.start_ticks = own_start_ticks();
  h.pid_namespace = own_namespace;
  std::snprintf(h.program, sizeof h.program, "%s", program);
  std::snprintf(h.library_version, sizeof h.library_version, "%s", RINGROAD_VERSION);
  std::atomic_thread_fence(std::memory_order_release);  // a reader of the magic finds the rest
  h.magic = kSegmentMagic;
  return segment;
}

Segment::~Segment() {
  if (header_ != nullptr) munmap(header_, kSegmentBytes);
  delete[] free_;
}

void Segment::lock() noexcept {
  constexpr unsigned kSpins = 64;
  for (unsigned spins = 0; !busy_.try_lock();) {
    // The thread that has it may need this processor.
    if (++spins % kSpins == 0) {
      const timespec nap{0, 20'000};
      sys::call(SYS_nanosleep, &nap, nullptr);
    }
  }
}

// Writing to a hole of the file where no memory is left for it would end the program with SIGBUS.
template <typename Part>
bool Segment::has_memory(const Part& part) noexcept {
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(&part) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(&part + 1);
  const int saved = errno;
  // Kernels before 5.14 do not know it.
  const bool lacks = sys::call(SYS_madvise, begin, (end - begin + kPage - 1) / kPage * kPage,
                               MADV_POPULATE_WRITE) != 0 &&
                     errno != EINVAL;
  errno = saved;
  return !lacks;
}

StreamSlot* Segment::acquire() noexcept {
  const signals::DeferHandlers not_now;
  lock();
  std::uint32_t index = kSlots;
  if (free_count_ > 0) {
    index = free_[--free_count_];
  } else if (header_->slots_used.load(std::memory_order_relaxed) < kSlots) {
    index = header_->slots_used.load(std::memory_order_relaxed);
    if (has_memory(slots_[index]) && has_memory(latencies(slots_[index]))) {
      header_->slots_used.store(index + 1, std::memory_order_relaxed);
    } else {
      index = kSlots;
    }
  }
  unlock();
  if (index == kSlots) return nullptr;
  StreamSlot& slot = slots_[index];
  begin(slot);
  slot.counts.clear();
  latencies(slot).clear();
  slot.stalled_since_ns.store(0, std::memory_order_relaxed);
  slot.reason.store(0, std::memory_order_relaxed);
  slot.peer_reason.store(0, std::memory_order_relaxed);
  slot.state.store(0, std::memory_order_relaxed);
  slot.channel = ChannelInfo{};
  slot.protocol = slot.features = 0;
  slot.rule_index = 0;
  slot.in_use.store(1, std::memory_order_relaxed);
  end(slot);
  return &slot;
}

std::uint64_t Segment::begin_closing(const StreamSlot& slot, const Latencies& latencies) noexcept {
  std::atomic<std::uint64_t>& closings = header_->closings;
  const std::uint64_t before = closings.load(std::memory_order_relaxed);
  closings.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  header_->closed.add(slot.counts);
  rules_[slot.rule_index].closed.add(slot.counts);
  rule_latencies(slot.rule_index).add(latencies);
  return before + 2;
}

void Segment::release(StreamSlot* slot) noexcept {
  const signals::DeferHandlers not_now;
  lock();
  const std::uint64_t closing = begin_closing(*slot, latencies(*slot));
  begin(*slot);
  slot->in_use.store(0, std::memory_order_relaxed);
  slot->closed_at.store(closing, std::memory_order_relaxed);
  end(*slot);
  header_->closings.store(closing, std::memory_order_release);
  free_[free_count_++] = static_cast<std::uint32_t>(slot - slots_);
  unlock();
}

void Segment::count_closed(const StreamSlot& slot, const Latencies& latencies) noexcept {
  const signals::DeferHandlers not_now;
  lock();
  const std::uint64_t closing = begin_closing(slot, latencies);
  header_->closings.store(closing, std::memory_order_release);
  unlock();
}

void Segment::one_more_opened(RuleSlot& rule) noexcept {
  add_alone(header_->streams_opened, 1);
  add_alone(rule.opened, 1);
}

void Segment::note_opened(std::uint8_t rule_index) noexcept {
  const signals::DeferHandlers not_now;
  lock();
  one_more_opened(rules_[rule_index]);
  unlock();
}

void Segment::count_early(std::uint8_t rule_index, const DeferredUse& early) noexcept {
  RuleSlot& rule = rules_[rule_index];
  const signals::DeferHandlers not_now;
  lock();
  one_more_opened(rule);
  if (early.count == 0) {
    unlock();
    return;
  }
  std::atomic<std::uint64_t>& closings = header_->closings;
  const std::uint64_t before = closings.load(std::memory_order_relaxed);
  closings.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const auto count = [](StreamCounts& counts, const DeferredUse::Call& call,
                        std::size_t bucket) noexcept {
    Counters& traffic = counts.traffic;
    Counters::add(call.sent ? traffic.tx_bytes[0] : traffic.rx_bytes[0], call.bytes);
    Counters::add(call.sent ? traffic.tx_messages[0] : traffic.rx_messages[0], 1);
    add_alone((call.sent ? counts.tx_sizes : counts.rx_sizes).counts[bucket], 1);
  };
  for (unsigned i = 0; i < early.count; ++i) {
    const DeferredUse::Call& call = early.calls[i];
    const std::size_t bucket = Log2Histogram::bucket(call.bytes);
    count(header_->closed, call, bucket);
    count(rule.closed, call, bucket);
  }
  closings.store(before + 2, std::memory_order_release);
  unlock();
}

std::uint8_t Segment::rule_index(const char* name) noexcept {
  static_assert(kRules <= 256);
  constexpr std::uint32_t kLast = kRules - 1;
  std::uint32_t index = 0;
  // Names that are written never change.
  const auto find = [&](std::uint32_t used) noexcept {
    while (index < used &&
           std::strncmp(rules_[index].name, name, sizeof rules_[index].name - 1) != 0) {
      ++index;
    }
    return index < used;
  };
  if (find(header_->rules_used.load(std::memory_order_acquire))) {
    return static_cast<std::uint8_t>(std::min(index, kLast));
  }
  const signals::DeferHandlers not_now;
  lock();
  const std::uint32_t used = header_->rules_used.load(std::memory_order_relaxed);
  if (!find(used) && used < kRules) {
    if (used > 0 && !(has_memory(rules_[used]) && has_memory(latencies_[used]))) {
      unlock();
      return 0;
    }
    std::snprintf(rules_[index].name, sizeof rules_[index].name, "%s",
                  index < kLast ? name : "(others)");
    header_->rules_used.store(used + 1, std::memory_order_release);
  }
  unlock();
  return static_cast<std::uint8_t>(std::min(index, kLast));
}

void Segment::remove_file() noexcept {
  const int saved = errno;
  removed_.store(true);
  // Some microseconds. Not for ever: the process is ending, perhaps because its disk does not
  // answer.
  constexpr int kNaps = 5000;
  const timespec nap{0, 20'000};
  for (int i = 0; i < kNaps && making_.load(); ++i) sys::call(SYS_nanosleep, &nap, nullptr);
  sys::call(SYS_unlinkat, AT_FDCWD, path_, 0);
  char socket[sizeof path_ + control::kSuffixBytes];
  std::snprintf(socket, sizeof socket, "%s%.*s", path_, static_cast<int>(sizeof header_->control_suffix),
                header_ != nullptr && header_->control_suffix[0] != '\0' ? header_->control_suffix
                                                                         : control::kSuffix);
  sys::call(SYS_unlinkat, AT_FDCWD, socket, 0);
  errno = saved;
}

}  // namespace ringroad::stats
