// Files as a process sees them whose root directory may be another one: a container's below
// /proc/PID/root, an image that is unpacked in a folder.
#pragma once

#include <sys/stat.h>

#include <string>
#include <utility>

namespace ringroad::cli {

// A regular file that is open for reading, or why it is not. Closed at its end.
class RootedFile {
 public:
  RootedFile() = default;
  ~RootedFile();
  RootedFile(RootedFile&& other) noexcept
      : error(other.error),
        status(other.status),
        path(std::move(other.path)),
        fd(std::exchange(other.fd, -1)) {}
  RootedFile& operator=(RootedFile&&) = delete;
  RootedFile(const RootedFile&) = delete;
  RootedFile& operator=(const RootedFile&) = delete;

  explicit operator bool() const noexcept { return error == 0; }

  int error = 0;  // errno; EACCES for what is no regular file. Nothing else is set then
  struct stat status {};
  std::string path;  // below the root, without symbolic links
  int fd = -1;       // -1: there, but this user may not read it
};

class Root {
 public:
  Root() = default;
  explicit Root(std::string folder) : folder_(std::move(folder)) {}

  // This process' own root: relative paths begin at the current folder, elsewhere at the root.
  bool own() const noexcept { return folder_.empty() || folder_ == "/"; }
  const std::string& folder() const noexcept { return folder_; }
  // Symbolic links and ".." lead no further than to this root. Opens neither devices nor pipes.
  RootedFile open(const std::string& path) const;
  // A folder, only as a place (O_PATH), which the caller closes; -1 with errno. REQUIRES: !own().
  int open_folder(const std::string& path) const;

 private:
  const std::string folder_;
};

}  // namespace ringroad::cli
