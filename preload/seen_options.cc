#include "preload/seen_options.h"

#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "rsocket-core/base/sys.h"

namespace ringroad::preload::seen_options {
namespace {

std::atomic<bool> some_read_unusually{false};

bool lingers(int fd) noexcept {
  const int saved = errno;
  linger option{};
  socklen_t length = sizeof option;
  const bool told = sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &option, &length) == 0;
  errno = saved;
  return told && option.l_onoff != 0 && option.l_linger > 0;
}

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

std::atomic<bool> made_for_tcp[fd_table::kLimit];
std::atomic<bool> some_linger{false};
std::atomic<bool> some_time_out{false};

bool is_tcp(int fd) noexcept {
  int value = 0;
  socklen_t length = sizeof value;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &length) != 0) return false;
  return value == IPPROTO_TCP;
}

void note_if_lingers(int fd) noexcept {
  if (!some_linger.load(std::memory_order_relaxed) && lingers(fd)) {
    some_linger.store(true, std::memory_order_relaxed);
  }
}

void note_if_reads_unusually(int fd) noexcept {
  if (!some_read_unusually.load(std::memory_order_relaxed) && has_unusual_options(fd)) {
    some_read_unusually.store(true, std::memory_order_relaxed);
  }
}

bool reads_unusually(int fd) noexcept {
  return some_read_unusually.load(std::memory_order_relaxed) && has_unusual_options(fd);
}

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

void note_all(int fd) noexcept {
  note_if_lingers(fd);
  note_if_reads_unusually(fd);
  note_if_times_out(fd);
}

LingerHold::LingerHold(int fd) noexcept {
  if (fd_table::managed(fd) && !some_linger.load(std::memory_order_relaxed)) return;
  if (!lingers(fd)) return;
  const int saved = errno;
  copy_ = sys::open_high([&] { return sys::duplicate(fd); });
  errno = saved;
}
LingerHold::~LingerHold() {
  if (copy_ >= 0) sys::close_quietly(copy_);
}

}  // namespace ringroad::preload::seen_options
