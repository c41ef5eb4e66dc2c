#include "preload/log_sinks.h"

#include <poll.h>
#include <spdlog/details/log_msg.h>
#include <sys/un.h>
#include <syslog.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iterator>
#include <string>

#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::log {
namespace {

using spdlog::details::log_msg;
using Line = fmt::basic_memory_buffer<char, 1024>;

constexpr const char* kSyslogSocket = "/dev/log";

// What a line must not hold: names and errors come from others.
void append_printable(Line& line, spdlog::string_view_t text) {
  for (const char c : text) {
    line.push_back(static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c);
  }
}

// UTC, because localtime_r(3) takes a lock.
Line with_time(const log_msg& message) {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(message.time);
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  Line line;
  fmt::format_to(std::back_inserter(line), "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z ringroad ",
                 static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                 static_cast<unsigned>(date.day()), time.hours().count(), time.minutes().count(),
                 time.seconds().count(), time.subseconds().count());
  append_printable(line, message.logger_name);
  const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
  fmt::format_to(std::back_inserter(line), "[{}] {}: ", sys::getpid(), level);
  append_printable(line, message.payload);
  line.push_back('\n');
  return line;
}

// A pipe that nobody reads any more must not end the program, nor a file that is as long as its limit allows.
void write_whole(int fd, const Line& line) noexcept {
  constexpr std::uint64_t kPipe = std::uint64_t{1} << (SIGPIPE - 1);
  constexpr std::uint64_t kLong = std::uint64_t{1} << (SIGXFSZ - 1);
  constexpr std::uint64_t kBoth = kPipe | kLong;
  std::uint64_t before = 0;
  std::uint64_t pending = 0;
  sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &kBoth, &before, sizeof before);
  sys::call(SYS_rt_sigpending, &pending, sizeof pending);
  if (sys::write(fd, line.data(), line.size()) < 0) {
    const std::uint64_t raised = errno == EPIPE ? kPipe : errno == EFBIG ? kLong : 0;
    const std::uint64_t own = raised & ~pending;
    const timespec now{};
    if (own != 0) sys::call(SYS_rt_sigtimedwait, &own, nullptr, &now, sizeof own);
  }
  sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
}

// A daemon leaves the folder that it was started in.
std::string whole(const char* path) {
  char folder[4096];
  if (path[0] == '/' || sys::call(SYS_getcwd, folder, sizeof folder) <= 0) return path;
  return std::string(folder) + "/" + path;
}

class Sink : public spdlog::sinks::sink {
 public:
  void flush() final {}
  void set_pattern(const std::string&) final {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) final {}
};

// Which file it is.
struct Identity {
  std::atomic<std::uint64_t> device{0};
  std::atomic<std::uint64_t> inode{0};

  void take(const struct stat& file) noexcept {
    device.store(file.st_dev, std::memory_order_relaxed);
    inode.store(file.st_ino, std::memory_order_relaxed);
  }
  bool is(const struct stat& file) const noexcept {
    return file.st_dev == device.load(std::memory_order_relaxed) &&
           file.st_ino == inode.load(std::memory_order_relaxed);
  }
};

bool look_at(int fd, struct stat& file) noexcept {
  return sys::call(SYS_newfstatat, fd, "", &file, AT_EMPTY_PATH) == 0;
}

Identity first_stderr;
bool (*is_taken)(int fd) noexcept = nullptr;  // the number is a connection

// Whether a line there is nobody's data: a daemon that closes its standard error may have its database
// behind the number next. Where it is a stream, as with inetd, a line would be taken for one of the
// program's bytes.
bool is_stderr() noexcept {
  struct stat file {};
  if (is_taken(STDERR_FILENO) || !look_at(STDERR_FILENO, file)) return false;
  if (first_stderr.is(file) || S_ISFIFO(file.st_mode) || S_ISCHR(file.st_mode)) return true;
  return S_ISREG(file.st_mode) && (sys::fcntl(STDERR_FILENO, F_GETFL) & O_APPEND) != 0;
}

// A reader of the log that is slow holds nobody up.
bool has_room(int fd) noexcept {
  pollfd there{fd, POLLOUT, 0};
  timespec now{};
  return sys::ppoll(&there, 1, &now, nullptr) == 1 && (there.revents & POLLOUT) != 0;
}

class StderrSink final : public Sink {
 public:
  void log(const log_msg& message) override {
    if (!is_stderr() || !has_room(STDERR_FILENO)) return;
    const Line line = with_time(message);
    write_whole(STDERR_FILENO, line);
  }
};

// One descriptor for all files that a policy names one after the other.
std::atomic<int> log_file{-1};
Identity opened_file;

// Somebody may have closed the number where the library does not see it, and have a file of its own there.
bool is_log_file(int fd) noexcept {
  struct stat file {};
  return fd >= 0 && look_at(fd, file) && opened_file.is(file);
}

class FileSink final : public Sink {
 public:
  explicit FileSink(const char* path) : path_(whole(path)) { open(); }

  void log(const log_msg& message) override {
    const Line line = with_time(message);
    // Moved away, and no right to make another: then where it is now.
    if (!is_current() && !open() && !opened_.load(std::memory_order_relaxed)) return;
    const int fd = log_file.load(std::memory_order_acquire);
    if (is_log_file(fd)) write_whole(fd, line);
  }

 private:
  // False where somebody has moved the file away, as logrotate does.
  bool is_current() const noexcept {
    struct stat named {};
    return is_log_file(log_file.load(std::memory_order_acquire)) &&
           sys::call(SYS_newfstatat, AT_FDCWD, path_.c_str(), &named, 0) == 0 &&
           opened_file.is(named);
  }

  // Not blocking: it may be a FIFO that nobody reads.
  bool open() noexcept {
    const int fd = sys::open_high([&] {
      return sys::call(SYS_openat, AT_FDCWD, path_.c_str(),
                       O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    });
    struct stat file {};
    if (fd < 0 || !look_at(fd, file)) return false;
    int known = log_file.load(std::memory_order_acquire);
    if (is_log_file(known)) {
      sys::call(SYS_dup3, fd, known, O_CLOEXEC);
      opened_file.take(file);
      sys::close_quietly(fd);
    } else if (log_file.compare_exchange_strong(known, fd, std::memory_order_acq_rel)) {
      opened_file.take(file);
      reserved_fds::keep_in_children(fd);
    } else {
      sys::close_quietly(fd);
    }
    opened_.store(true, std::memory_order_relaxed);
    return true;
  }

  const std::string path_;
  std::atomic<bool> opened_{false};
};

// Not syslog(3): that has a lock, and the descriptor and the name that the program itself has given
// it with openlog(3). On a host of systemd's the socket is the journal's.
class SyslogSink final : public Sink {
 public:
  void log(const log_msg& message) override {
    const int priority = message.level >= spdlog::level::err    ? LOG_ERR
                         : message.level >= spdlog::level::warn ? LOG_WARNING
                         : message.level >= spdlog::level::info ? LOG_INFO
                                                                : LOG_DEBUG;
    Line line;
    fmt::format_to(std::back_inserter(line), "<{}>", LOG_DAEMON | priority);
    append_printable(line, message.logger_name);
    fmt::format_to(std::back_inserter(line), "[{}]: ringroad: ", sys::getpid());
    append_printable(line, message.payload);
    const int fd = sys::open_high([] {
      return sys::call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    });
    if (fd < 0) return;
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::snprintf(to.sun_path, sizeof to.sun_path, "%s", kSyslogSocket);
    sys::call(SYS_sendto, fd, line.data(), line.size(), MSG_NOSIGNAL, &to, sizeof to);
    sys::close_quietly(fd);
  }
};

}  // namespace

void remember_stderr(bool (*taken)(int fd) noexcept) noexcept {
  is_taken = taken;
  struct stat file {};
  const int saved = errno;
  if (look_at(STDERR_FILENO, file)) first_stderr.take(file);
  errno = saved;
}

std::shared_ptr<spdlog::sinks::sink> make_sink(const char* destination) {
  const auto is = [&](const char* word) { return std::strcmp(destination, word) == 0; };
  if (is("") || is("off")) return nullptr;
  if (is("stderr")) return std::make_shared<StderrSink>();
  if (is("syslog") || is("journal")) return std::make_shared<SyslogSink>();
  return std::make_shared<FileSink>(destination);
}

}  // namespace ringroad::preload::log
