#include "preload/process_facts.h"

#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#include "rsocket-core/base/sys.h"

namespace ringroad::preload::process_facts {
namespace {

constinit policy::Process process("unknown");
bool is_read = false;
char comm[64];
// A path is shorter than PATH_MAX; hosts with version 1 have a line for each hierarchy.
char cgroup[16 * 1024];

// What is in the file, as far as there is space. "" where it cannot be read.
std::string_view contents(const char* path, char* buffer, std::size_t size) noexcept {
  const auto fd = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0));
  if (fd < 0) return {};
  std::size_t length = 0;
  for (ssize_t n = 1; n > 0 && length < size; length += n > 0 ? static_cast<std::size_t>(n) : 0) {
    n = sys::read(fd, buffer + length, size - length);
  }
  sys::close_quietly(fd);
  return {buffer, length};
}

}  // namespace

void set_names(const char* program, const char* called) noexcept {
  process.program = policy::Program(program, called);
}

void set_labels(const char* labels) noexcept { process.labels = labels == nullptr ? "" : labels; }

void read_once() noexcept {
  if (is_read) return;
  is_read = true;
  const int saved = errno;
  // That of the first thread, whichever asks. It may have a line's end of its own.
  process.comm = contents("/proc/self/comm", comm, sizeof comm);
  if (process.comm.ends_with('\n')) process.comm.remove_suffix(1);
  process.cgroup = policy::cgroup_of(contents("/proc/self/cgroup", cgroup, sizeof cgroup));
  errno = saved;
}

const policy::Process& current() noexcept { return process; }

}  // namespace ringroad::preload::process_facts
