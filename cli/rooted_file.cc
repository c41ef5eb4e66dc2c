#include "cli/rooted_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <vector>

namespace ringroad::cli {
namespace {

constexpr int kMostLinks = 40;             // as the kernel
constexpr std::size_t kMostFolders = 128;  // each is held open on the way
// Neither waits for a pipe's other end nor makes a terminal this process' own.
constexpr int kOpenFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
constexpr int kFolderFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// The folders that lead to a place below a root, the root first.
class Way {
 public:
  ~Way() {
    while (!steps_.empty()) leave();
  }
  int here() const noexcept { return steps_.back().fd; }
  bool enter(int fd, std::string name) {
    if (fd < 0) return false;
    steps_.push_back({fd, std::move(name)});
    if (steps_.size() <= kMostFolders) return true;
    errno = ENAMETOOLONG;
    return false;
  }
  void up() {
    if (steps_.size() > 1) leave();
  }
  void to_root() {
    while (steps_.size() > 1) leave();
  }
  std::string path(const std::string& name) const {
    std::string result;
    for (const Step& step : steps_) {
      if (!step.name.empty()) result += "/" + step.name;
    }
    return result + "/" + name;
  }

 private:
  struct Step {
    int fd;
    std::string name;
  };
  void leave() {
    close(steps_.back().fd);
    steps_.pop_back();
  }
  std::vector<Step> steps_;
};

// Takes the first name off `path`; empty: there is none.
std::string take_name(std::string& path) {
  const std::size_t begin = path.find_first_not_of('/');
  if (begin == std::string::npos) {
    path.clear();
    return {};
  }
  const std::size_t end = path.find('/', begin);
  std::string name = path.substr(begin, end - begin);
  path = end == std::string::npos ? std::string() : path.substr(end);
  return name;
}

// Follows `path` up to its last name, which is no symbolic link. False with errno.
bool walk(Way& way, std::string path, std::string& last) {
  int links = 0;
  for (;;) {
    const std::string name = take_name(path);
    if (name.empty()) {
      errno = EACCES;  // a folder
      return false;
    }
    if (name == ".") continue;
    if (name == "..") {
      way.up();
      continue;
    }
    struct stat status;
    if (fstatat(way.here(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return false;
    if (S_ISLNK(status.st_mode)) {
      char target[PATH_MAX];
      const ssize_t n = readlinkat(way.here(), name.c_str(), target, sizeof target);
      if (n < 0) return false;
      const auto size = static_cast<std::size_t>(n);
      if (++links > kMostLinks || size == sizeof target || size + path.size() > 2 * PATH_MAX) {
        errno = ELOOP;
        return false;
      }
      if (size > 0 && target[0] == '/') way.to_root();
      path.insert(0, target, size);
    } else if (path.empty()) {
      last = name;
      return true;
    } else if (!way.enter(openat(way.here(), name.c_str(), kFolderFlags), name)) {
      return false;
    }
  }
}

RootedFile failed(int error) {
  RootedFile file;
  file.error = error;
  return file;
}

// `name` in the folder `at`, whose path is known as `path`.
RootedFile open_at(int at, const std::string& name, int flags, std::string path) {
  RootedFile file;
  const int follow = (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
  if (fstatat(at, name.c_str(), &file.status, follow) != 0) return failed(errno);
  if (!S_ISREG(file.status.st_mode)) return failed(EACCES);
  file.path = std::move(path);
  file.fd = openat(at, name.c_str(), flags);
  if (file.fd < 0) {
    if (errno != EACCES && errno != EPERM) return failed(errno);
    return file;
  }
  // It may have been replaced meanwhile.
  if (fstat(file.fd, &file.status) != 0 || !S_ISREG(file.status.st_mode)) return failed(EACCES);
  return file;
}

}  // namespace

RootedFile::~RootedFile() {
  if (fd >= 0) close(fd);
}

RootedFile Root::open(const std::string& path) const {
  if (own()) {
    char real[PATH_MAX];
    return open_at(AT_FDCWD, path, kOpenFlags,
                   realpath(path.c_str(), real) != nullptr ? real : path);
  }
  if (path.size() >= PATH_MAX) return failed(ENAMETOOLONG);
  Way way;
  std::string last;
  if (!way.enter(::open(folder_.c_str(), kFolderFlags & ~O_NOFOLLOW), "") ||
      !walk(way, path, last)) {
    return failed(errno);
  }
  return open_at(way.here(), last, kOpenFlags | O_NOFOLLOW, way.path(last));
}

int Root::open_folder(const std::string& path) const {
  if (path.size() >= PATH_MAX) {
    errno = ENAMETOOLONG;
    return -1;
  }
  Way way;
  std::string last;
  if (!way.enter(::open(folder_.c_str(), kFolderFlags & ~O_NOFOLLOW), "")) return -1;
  if (!walk(way, path, last)) return -1;
  return openat(way.here(), last.c_str(), kFolderFlags);
}

}  // namespace ringroad::cli
