// The files beside each other in the runtime directory: what other processes, and this one before exec(2),
// have left there.
#include <fcntl.h>
#include <sys/stat.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/process/control_socket.h"
#include "rsocket-core/stats/file_name.h"
#include "rsocket-core/stats/stats.h"

namespace ringroad::stats {
namespace {

// As getdents64(2) gives it.
struct DirectoryEntry {
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};

bool read_header(int fd, SegmentHeader& header) noexcept {
  return sys::call(SYS_pread64, fd, &header, sizeof header, 0) ==
             static_cast<long>(sizeof header) &&
         header.magic == kSegmentMagic && header.version == kSegmentVersion;
}

int open_file(int directory, const char* name, int flags) noexcept {
  return sys::open_high([&] {
    return sys::call(SYS_openat, directory, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  });
}

bool is_dead(long pid) noexcept {
  return sys::call(SYS_kill, pid, 0) != 0 && errno == ESRCH;
}

// Whether the process that made the file has been found dead for so long. The first process that finds it so
// writes down when: an operator has that time to see what it did last.
bool has_been_dead(int fd, const FileName& of, std::uint64_t own_namespace, std::int64_t keep_s) noexcept {
  struct stat st {};
  SegmentHeader header;
  if (sys::call(SYS_fstat, fd, &st) != 0 || !S_ISREG(st.st_mode) || !read_header(fd, header) ||
      header.pid != of.pid || header.pid_namespace != own_namespace) {
    return false;
  }
  timespec now{};
  sys::call(SYS_clock_gettime, CLOCK_REALTIME, &now);
  // Not the time of the last access: a reader of the file would change that.
  constexpr mode_t kMark = S_IXUSR;
  if ((st.st_mode & kMark) == 0) {
    if (keep_s <= 0) return true;
    const timespec found[2] = {now, now};
    sys::call(SYS_utimensat, fd, nullptr, found, 0);
    sys::call(SYS_fchmod, fd, (st.st_mode & 07777) | kMark);
    return false;
  }
  return now.tv_sec - st.st_mtim.tv_sec >= keep_s;
}

// A number says nothing of a process of another pid namespace: its files are never looked at.
bool may_judge(const FileName& of, std::uint64_t own_namespace) noexcept {
  return of.pid_namespace == 0 || of.pid_namespace == own_namespace;
}

void remove_if_dead(int directory, const char* name, const FileName& of, std::uint64_t own_namespace,
                    std::int64_t keep_s) noexcept {
  if (!may_judge(of, own_namespace) || !is_dead(of.pid)) return;
  const int fd = open_file(directory, name, O_RDONLY);
  if (fd < 0) return;
  if (has_been_dead(fd, of, own_namespace, keep_s)) {
    // The number may have been given to another process meanwhile, whose file must not go: what is taken
    // away is looked at once more.
    char taken[FileName::kBytes + 24];
    std::snprintf(taken, sizeof taken, ".gone-%s-%d", name, static_cast<int>(sys::getpid()));
    if (sys::call(SYS_renameat2, directory, name, directory, taken, 1 /* RENAME_NOREPLACE */) == 0) {
      struct stat looked_at {};
      struct stat is_taken {};
      sys::call(SYS_fstat, fd, &looked_at);
      const bool same =
          sys::call(SYS_newfstatat, directory, taken, &is_taken, AT_SYMLINK_NOFOLLOW) == 0 &&
          looked_at.st_ino == is_taken.st_ino;
      if (same) {
        sys::call(SYS_unlinkat, directory, taken, 0);
      } else {
        sys::call(SYS_renameat2, directory, taken, directory, name, 1);
      }
    }
  }
  sys::close_quietly(fd);
}

// The name of a control socket has the process' number in front and something random behind.
constexpr std::size_t kNameBytes = std::char_traits<char>::length(control::kSuffix);

void remove_socket_of_the_gone(int directory, const char* name, const FileName& of,
                               std::uint64_t own_namespace) noexcept {
  // Nothing but its name says of which namespace it is. An older library's has none in any.
  if (FileName::of(of.pid, own_namespace).pid_namespace != of.pid_namespace) return;
  char file[FileName::kBytes];
  of.write(file);
  // While its file is there, somebody may want to know what it said.
  if (sys::call(SYS_faccessat, directory, file, F_OK) == 0 || !is_dead(of.pid)) return;
  sys::call(SYS_unlinkat, directory, name, 0);
}

// Each that begins with a process' number.
template <typename Act>
void each_name(int directory, Act act) noexcept {
  alignas(DirectoryEntry) char entries[4096];
  long n;
  while ((n = sys::call(SYS_getdents64, directory, entries, sizeof entries)) > 0) {
    for (long at = 0; at < n;) {
      auto* entry = reinterpret_cast<DirectoryEntry*>(entries + at);
      at += entry->length;
      const char* end;
      if (const FileName of = FileName::at(entry->name, end); of.pid != 0) act(entry->name, end, of);
    }
  }
}

}  // namespace

std::uint64_t own_pid_namespace() noexcept {
  struct stat st {};
  return sys::call(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0 ? st.st_ino : 0;
}

void remove_files_of_the_dead(const char* path, std::int64_t keep_s) noexcept {
  const int saved = errno;
  const std::uint64_t own_namespace = own_pid_namespace();
  const int directory = own_namespace == 0 ? -1 : open_file(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
  if (directory >= 0) {
    each_name(directory, [&](const char* name, const char* behind, const FileName& of) noexcept {
      if (*behind == '\0') remove_if_dead(directory, name, of, own_namespace, keep_s);
    });
    sys::call(SYS_lseek, directory, 0, SEEK_SET);
    each_name(directory, [&](const char* name, const char* behind, const FileName& of) noexcept {
      if (std::strncmp(behind, control::kSuffix, kNameBytes) == 0) {
        remove_socket_of_the_gone(directory, name, of, own_namespace);
      }
    });
    sys::close_quietly(directory);
  }
  errno = saved;
}

std::uint32_t mode_of_file(const char* path, std::uint32_t pid, std::uint64_t start_ticks) noexcept {
  std::uint32_t mode = 0;
  const int fd = open_file(AT_FDCWD, path, O_RDONLY);
  if (fd < 0) return mode;
  struct stat st {};
  SegmentHeader header;
  if (sys::call(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) &&
      st.st_uid == static_cast<uid_t>(sys::call(SYS_geteuid)) && read_header(fd, header) &&
      header.pid == pid && header.start_ticks == start_ticks && start_ticks != 0) {
    const std::uint32_t said = header.operator_mode.load(std::memory_order_relaxed);
    if (said <= static_cast<std::uint32_t>(control::kLastMode)) mode = said;
  }
  sys::close_quietly(fd);
  return mode;
}

}  // namespace ringroad::stats
