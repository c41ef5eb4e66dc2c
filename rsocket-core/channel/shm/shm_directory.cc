#include "rsocket-core/channel/shm/shm_directory.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "rsocket-core/base/sys.h"

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

// A socket stands there, no process listens on it, and none is about to: it is older than a second.
bool is_dead(const sockaddr_un& path) noexcept {
  const int there = open_path(path.sun_path);
  if (there < 0) return false;
  struct stat facts{};
  timespec now{};
  sys::call(SYS_fstat, there, &facts);
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

int digit(char c) noexcept {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void add_ipv4(std::uint16_t port, std::vector<Endpoint>& out) {
  const int fd =
      sys::open_high([] { return sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  if (fd < 0) return;
  ifreq interfaces[64];
  ifconf all{};
  all.ifc_len = sizeof interfaces;
  all.ifc_req = interfaces;
  const bool told = sys::ioctl(fd, SIOCGIFCONF, &all) == 0;
  sys::close_quietly(fd);
  for (int i = 0; told && i < all.ifc_len / static_cast<int>(sizeof(ifreq)); ++i) {
    Endpoint found;
    if (!Endpoint::from_sockaddr(&interfaces[i].ifr_addr, sizeof(sockaddr_in), found)) continue;
    found.port = port;
    if (!found.is_loopback()) out.push_back(found);
  }
}

// "fd000000000000000000000000000002 02 40 00 80 eth0": address, interface, prefix, scope, flags, name.
void add_ipv6(std::uint16_t port, std::vector<Endpoint>& out) {
  const int fd = sys::open_high(
      [] { return sys::call(SYS_openat, AT_FDCWD, "/proc/self/net/if_inet6", O_RDONLY | O_CLOEXEC, 0); });
  if (fd < 0) return;
  char text[8192];
  const ssize_t n = sys::read(fd, text, sizeof text - 1);
  sys::close_quietly(fd);
  text[n > 0 ? n : 0] = '\0';
  constexpr std::size_t kDigits = 32;
  for (const char* line = text; *line != '\0';) {
    const char* const end = std::strchr(line, '\n');
    if (end == nullptr) break;
    unsigned scope = 1;
    std::uint8_t bytes[kDigits / 2] = {};
    bool good = std::sscanf(line, "%*32s %*x %*x %x", &scope) == 1 && scope == 0;
    for (std::size_t i = 0; good && i < kDigits; ++i) {
      const int value = digit(line[i]);
      good = value >= 0;
      bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | (value & 15));
    }
    if (good) out.emplace_back(Address::from_ipv6(bytes), port);
    line = end + 1;
  }
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

Reason bind(int fd, const sockaddr_un& path, std::uint64_t& file) noexcept {
  bool bound = bind_once(fd, path);
  if (!bound && errno == EADDRINUSE) {
    if (!is_dead(path)) return Reason::kBusy;
    sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
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
  file = facts.st_ino;
  if (open_to_all) return Reason::kNone;
  sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);  // or the next try finds a socket there
  return there < 0 ? Reason::kNoDescriptors : Reason::kOtherNamespace;
}

void remove(const sockaddr_un& path, std::uint64_t file) noexcept {
  const int there = open_path(path.sun_path);
  if (there < 0) return;
  struct stat facts{};
  if (sys::call(SYS_fstat, there, &facts) == 0 && facts.st_ino == file) {
    sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
  }
  sys::close_quietly(there);
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
    if (is_dead(path)) sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
  }
}

std::vector<Endpoint> reached_at(const Endpoint& local) {
  std::vector<Endpoint> out;
  if (!local.is_any()) {
    if (!local.is_loopback() && local.scope == 0) out.push_back(local);
    return out;
  }
  add_ipv4(local.port, out);  // a dual-stack listener's, too
  if (!local.is_v4()) add_ipv6(local.port, out);
  return out;
}

}  // namespace ringroad::shm_directory
