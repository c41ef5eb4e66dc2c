#include "preload/policy_file.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "preload/process_facts.h"
#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::policy_file {
namespace {

// What tells one version of a file, or of a directory's entries, from another.
struct Version {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t size = -1;  // -1: not there
  std::int64_t changed_s = 0;
  std::int64_t changed_ns = 0;

  bool operator==(const Version&) const = default;
};
using Versions = std::vector<Version>;

const char* named_by_environment = nullptr;
const std::string* absolute = nullptr;  // the same, where it was not
Version* root = nullptr;  // what "/" was when the policy was read first
std::atomic<const policy::Policy*> in_use{nullptr};
// Never destroyed: a thread may be looking at any of them, and edits are few.
struct Held {
  std::shared_ptr<const policy::Policy> policy;
  Held* before;
};
Held* former = nullptr;
// Nor are these, and they are replaced as a whole: the agent thread may run on at exit, and a child
// may be forked meanwhile.
struct Read {
  Versions versions;
  const Read* before;
};
std::atomic<const Read*> last_read{nullptr};

Version version_of(const std::string& path) noexcept {
  struct stat status {};
  if (sys::call(SYS_newfstatat, AT_FDCWD, path.c_str(), &status, 0) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size, status.st_ctim.tv_sec,
          status.st_ctim.tv_nsec};
}

// The paths that were asked for, and the files that were found there.
std::vector<std::string> all_paths(const policy::Policy* policy) {
  std::vector<std::string> paths = policy::Policy::default_paths(named_by_environment);
  if (policy != nullptr) {
    paths.insert(paths.end(), policy->sources().begin(), policy->sources().end());
  }
  return paths;
}

Versions versions_of(const std::vector<std::string>& paths) {
  Versions versions;
  for (const std::string& path : paths) versions.push_back(version_of(path));
  return versions;
}

// Watches the file or directory itself: a directory of many files, /tmp say, would wake us for each
// of them. A file that is replaced tells, because the old one loses its name.
void watch_path(int fd, const std::string& path) noexcept {
  constexpr std::uint32_t kFile = IN_CLOSE_WRITE | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF;
  constexpr std::uint32_t kEntries = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE;
  constexpr std::uint32_t kArrivals = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR;
  if (sys::call(SYS_inotify_add_watch, fd, path.c_str(), kFile | kEntries) >= 0) {
    // Where it is a symbolic link, that may be replaced, too.
    sys::call(SYS_inotify_add_watch, fd, path.c_str(), kFile | IN_DONT_FOLLOW | IN_MASK_ADD);
    return;
  }
  // Not there: it will come into a directory that is.
  for (std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    if (sys::call(SYS_inotify_add_watch, fd, path.substr(0, slash).c_str(), kArrivals) >= 0) return;
  }
}

void watch_all(int fd) {
  if (fd < 0) return;
  for (const std::string& path : all_paths(current())) watch_path(fd, path);
}

Outcome read_policy() {
  const Versions before = versions_of(all_paths(nullptr));
  policy::LoadResult loaded;
  {
    const sys::DescriptorTurn turn;  // opens files, under low numbers
    loaded = policy::Policy::load_default(named_by_environment);
    if (loaded && loaded.policy->asks_for_facts()) process_facts::read_once();
  }
  Versions versions = versions_of(all_paths(loaded ? loaded.policy.get() : current()));
  if (!std::equal(before.begin(), before.end(), versions.begin())) {
    versions = before;  // edited meanwhile, and not the same the next time
  }
  last_read.store(new Read{std::move(versions), last_read.load(std::memory_order_relaxed)},
                  std::memory_order_release);
  Outcome outcome;
  if (!loaded) {
    outcome.what = Outcome::What::kRefused;
    outcome.detail = loaded.errors.empty() ? "out of memory" : to_string(loaded.errors[0]);
    return outcome;
  }
  outcome.what = Outcome::What::kAnother;
  for (const std::string& source : loaded.policy->sources()) {
    outcome.detail += (outcome.detail.empty() ? "" : " ") + source;
  }
  former = new Held{std::move(loaded.policy), former};
  in_use.store(former->policy.get(), std::memory_order_release);
  return outcome;
}

// Apart, as what reads the policy then needs a good part of a small stack, too.
[[gnu::noinline]] void name_from_the_root(const char* named) {
  char directory[4096];
  const long n = sys::call(SYS_getcwd, directory, sizeof directory);
  if (n > 0 && directory[0] == '/') {
    absolute = new std::string(std::string(directory) + "/" + named);
    named_by_environment = absolute->c_str();
  }
}

}  // namespace

Outcome load(const char* named) {
  named_by_environment = named;
  // A daemon leaves the directory that it was started in.
  if (named != nullptr && named[0] != '\0' && named[0] != '/') name_from_the_root(named);
  root = new Version(version_of("/"));
  return read_policy();
}

const policy::Policy* current() noexcept { return in_use.load(std::memory_order_acquire); }

int watch() noexcept {
  const int saved = errno;
  const int fd =
      above_limit(sys::open_high([] { return sys::call(SYS_inotify_init1, IN_NONBLOCK | IN_CLOEXEC); }));
  try {
    watch_all(fd);
  } catch (const std::bad_alloc&) {
  }
  errno = saved;
  return fd;
}

void take_events(int watch_fd) noexcept {
  const int saved = errno;
  alignas(inotify_event) char events[4096];
  while (sys::read(watch_fd, events, sizeof events) > 0) {
  }
  errno = saved;
}

Outcome reload(int watch_fd) {
  // After chroot(2) the names are other files', or nobody's.
  const Version now = version_of("/");
  if (now.device != root->device || now.inode != root->inode) return {};
  watch_all(watch_fd);  // before anything is read: what is edited later is another event
  if (versions_of(all_paths(current())) == last_read.load(std::memory_order_acquire)->versions) {
    return {};
  }
  Outcome outcome = read_policy();
  watch_all(watch_fd);  // other files may have come in
  return outcome;
}

}  // namespace ringroad::preload::policy_file
