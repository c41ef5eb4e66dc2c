#include "rsocket-core/channel/shm/shm_directory.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/own_addresses.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad::shm_directory {
namespace {

constexpr const char* kProcess = "process-";

int open_socket() noexcept {
  return sys::open_high(
      [] { return sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

// The socket itself, to do something with that and nothing else; -1: there is none.
int open_path(const char* path) noexcept {
  const int fd = sys::open_high([&] {
    return sys::call(SYS_openat, AT_FDCWD, path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
  });
  struct stat facts{};
  if (fd >= 0 && sys::call(SYS_fstat, fd, &facts) == 0 && S_ISSOCK(facts.st_mode)) return fd;
  if (fd >= 0) sys::close_quietly(fd);
  return -1;
}

struct ProcPath {
  explicit ProcPath(int fd) noexcept { std::snprintf(text, sizeof text, "/proc/self/fd/%d", fd); }
  char text[32];
};

// As connect(2), to what was opened there.
int connect_to_opened(int fd, int there) noexcept {
  sockaddr_un same{};
  same.sun_family = AF_UNIX;
  std::snprintf(same.sun_path, sizeof same.sun_path, "%s", ProcPath(there).text);
  return sys::connect(fd, reinterpret_cast<const sockaddr*>(&same), sizeof same) == 0 ? 0 : errno;
}

File file_of(const struct stat& facts) noexcept { return {facts.st_dev, facts.st_ino}; }

// A socket stands there, no process listens on it, and none is about to: it is older than a second. `file`
// gets which one.
bool is_dead(const sockaddr_un& path, File& file) noexcept {
  const int there = open_path(path.sun_path);
  if (there < 0) return false;
  struct stat facts{};
  timespec now{};
  sys::call(SYS_fstat, there, &facts);
  file = file_of(facts);
  sys::call(SYS_clock_gettime, CLOCK_REALTIME, &now);
  bool dead = false;
  // One that is newer than now is from before the clock was set, or says what it likes.
  const auto age = now.tv_sec - facts.st_mtim.tv_sec;
  if (age >= 2 || age < 0) {
    const int fd = open_socket();
    dead = fd >= 0 && connect_to_opened(fd, there) == ECONNREFUSED;
    if (fd >= 0) sys::close_quietly(fd);
  }
  sys::close_quietly(there);
  return dead;
}

bool bind_once(int fd, const sockaddr_un& path) noexcept {
  return sys::bind(fd, reinterpret_cast<const sockaddr*>(&path), sizeof path) == 0;
}

}  // namespace

bool path_of(const char* directory, const sockaddr_un& abstract_name, sockaddr_un& out) noexcept {
  if (directory[0] != '/') return false;  // the program may change its working directory
  const char* name = abstract_name.sun_path + 1;
  for (int slashes = 0; slashes < 2;) {  // "ringroad/1/"
    if (*name == '\0') return false;
    if (*name++ == '/') ++slashes;
  }
  out = sockaddr_un{};
  out.sun_family = AF_UNIX;
  const int length = std::snprintf(out.sun_path, sizeof out.sun_path, "%s/%s", directory, name);
  if (length <= 0 || static_cast<std::size_t>(length) >= sizeof out.sun_path) return false;
  for (char* c = out.sun_path + std::strlen(directory) + 1; *c != '\0'; ++c) {
    if (*c == '/') *c = '-';
  }
  return true;
}

Reason bind(int fd, const sockaddr_un& path, File& file) noexcept {
  bool bound = bind_once(fd, path);
  if (!bound && errno == EADDRINUSE) {
    if (!is_dead(path, file) || !take_away(path, file)) return Reason::kBusy;
    bound = bind_once(fd, path);
    if (!bound && errno == EADDRINUSE) return Reason::kBusy;
  }
  if (!bound) return errno == ENOMEM ? Reason::kNoMemory : Reason::kOtherNamespace;
  // The program's umask may have kept others out. Only what was opened: another may stand there by now.
  const int there = open_path(path.sun_path);
  struct stat facts{};
  const bool is_own = there >= 0 && sys::call(SYS_fstat, there, &facts) == 0 &&
                      facts.st_uid == static_cast<uid_t>(sys::call(SYS_geteuid));
  const bool open_to_all = is_own && sys::call(SYS_fchmodat, AT_FDCWD, ProcPath(there).text, 0666) == 0;
  if (there >= 0) sys::close_quietly(there);
  file = file_of(facts);
  if (open_to_all) return Reason::kNone;
  if (is_own) remove(path, file);  // or the next try finds a socket there
  return there < 0 ? Reason::kNoDescriptors : Reason::kOtherNamespace;
}

bool stands_there(const sockaddr_un& path, const File& file) noexcept {
  struct stat facts{};
  return sys::call(SYS_newfstatat, AT_FDCWD, path.sun_path, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
         file_of(facts) == file;
}

void remove(const sockaddr_un& path, const File& file) noexcept {
  if (stands_there(path, file)) take_away(path, file);
}

bool take_away(const sockaddr_un& path, const File& file) noexcept {
  const char* const name = std::strrchr(path.sun_path, '/');
  Nonce random;
  if (name == nullptr || !make_nonce(random)) return false;
  char aside[sizeof path.sun_path + 64];
  int length = std::snprintf(aside, sizeof aside, "%.*s/%s", static_cast<int>(name - path.sun_path),
                             path.sun_path, kProcess);
  for (const std::uint8_t byte : random) {
    length += std::snprintf(aside + length, sizeof aside - static_cast<std::size_t>(length), "%02x", byte);
  }
  if (sys::call(SYS_renameat, AT_FDCWD, path.sun_path, AT_FDCWD, aside) != 0) return false;
  struct stat facts{};
  const bool is_it = sys::call(SYS_newfstatat, AT_FDCWD, aside, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
                     file_of(facts) == file;
  if (!is_it && sys::call(SYS_renameat2, AT_FDCWD, aside, AT_FDCWD, path.sun_path, RENAME_NOREPLACE) == 0) {
    return false;
  }
  sys::call(SYS_unlinkat, AT_FDCWD, aside, 0);
  return is_it;
}

int connect(int fd, const sockaddr_un& path) noexcept {
  const int there = open_path(path.sun_path);
  if (there < 0) return errno == EMFILE || errno == ENFILE ? errno : ECONNREFUSED;
  const int error = connect_to_opened(fd, there);
  sys::close_quietly(there);
  return error == EACCES || error == EPERM || error == ENOENT || error == EPROTOTYPE ? ECONNREFUSED : error;
}

void remove_dead(const char* directory, unsigned most) noexcept {
  const int folder = sys::open_high([&] {
    return sys::call(SYS_openat, AT_FDCWD, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  });
  if (folder < 0) return;
  struct Entry {  // linux_dirent64
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t size;
    std::uint8_t type;
    char name[1];
  };
  alignas(Entry) char entries[16384];
  const long n = sys::call(SYS_getdents64, folder, entries, sizeof entries);
  sys::close_quietly(folder);
  for (long at = 0; at < n && most > 0;) {
    const auto* const entry = reinterpret_cast<const Entry*>(entries + at);
    at += entry->size;
    if (std::strncmp(entry->name, kProcess, std::strlen(kProcess)) != 0) continue;
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    const int length = std::snprintf(path.sun_path, sizeof path.sun_path, "%s/%s", directory, entry->name);
    if (length <= 0 || static_cast<std::size_t>(length) >= sizeof path.sun_path) continue;
    --most;
    File dead;
    if (is_dead(path, dead)) take_away(path, dead);
  }
}

bool reached_at(const Endpoint& local, const ListenerFacts& facts, std::vector<Endpoint>& out) {
  const int here = open_socket();
  const bool elsewhere = here >= 0 && facts.network != 0 && network_of(here) != facts.network;
  if (here >= 0) sys::close_quietly(here);
  if (!local.is_any()) {
    // Of another namespace's addresses this thread knows nothing.
    const bool is_one = !local.is_loopback() && local.scope == 0;
    if (is_one && (elsewhere || is_own_address(local))) out.push_back(local);
    return here >= 0;
  }
  if (elsewhere) return true;
  std::vector<Address> addresses;
  bool told = here >= 0 && (facts.v6_only || add_ipv4_addresses(addresses));
  if (told && !local.is_v4()) told = add_ipv6_addresses(addresses);
  for (const Address& address : addresses) out.emplace_back(address, local.port);
  return told;
}

}  // namespace ringroad::shm_directory
