// Reads policies from files, directories and memory.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "policy/policy.h"
#include "policy/policy_reader.h"
#include "policy/units.h"

namespace ringroad::policy {
namespace {

constexpr std::string_view kSuffix = ".toml";

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { closedir(directory); }
};

Error failure(const std::string& path, std::string_view what, int error_number) {
  const char* reason = strerrordesc_np(error_number);
  std::string message = std::string(what) + ": " + (reason != nullptr ? reason : "unknown error");
  const char* remedy = "";
  if (error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP) {
    remedy = "check the path";
  } else if (error_number == EACCES) {
    remedy = "let the user that runs the program read it";
  }
  return {path, 0, 0, std::move(message), remedy};
}

bool is_directory(const std::string& path) noexcept {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// A file that is there but cannot be looked at counts, so that reading it says why.
bool exists(const std::string& path) noexcept {
  struct stat status;
  return stat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

}  // namespace

class Loader {
 public:
  void add_path(const std::string& path) {
    if (is_directory(path)) {
      add_directory(path);
    } else {
      add_file(path);
    }
  }

  void add_text(std::string_view text, const std::string& name) {
    sources_.push_back(name);
    if (text.size() > Policy::kLargestFileBytes) {
      refuse_size(name);
      return;
    }
    Error error;
    if (const auto root = parse_document(text, name, error)) {
      Report report(name, errors_, warnings_);
      read_policy(*root, report, rules_, limits_);
    } else {
      add_error(std::move(error));
    }
  }

  LoadResult finish() {
    LoadResult result;
    sort_by_position(errors_);
    if (errors_.empty()) {
      result.policy.reset(new Policy(std::move(rules_), std::move(limits_), std::move(warnings_),
                                     std::move(sources_)));
    }
    result.errors = std::move(errors_);
    return result;
  }

  // Runs `fill(loader)` where no exception gets out and errno is kept.
  template <typename Fill>
  static LoadResult run(Fill fill) {
    const int saved_errno = errno;
    LoadResult result;
    try {
      Loader loader;
      fill(loader);
      result = loader.finish();
    } catch (const std::exception&) {
      // Not catch (...): glibc cancels a thread by an exception that must go on.
      result = LoadResult{};
    }
    errno = saved_errno;
    return result;
  }

 private:
  void add_directory(const std::string& path) {
    const std::unique_ptr<DIR, CloseDirectory> directory(opendir(path.c_str()));
    if (!directory) {
      add_error(failure(path, "cannot list the directory", errno));
      return;
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(directory.get())) {
      const std::string_view name = entry->d_name;
      if (name.front() != '.' && name.size() > kSuffix.size() && name.ends_with(kSuffix)) {
        names.emplace_back(name);
      }
      errno = 0;
    }
    if (errno != 0) {
      add_error(failure(path, "cannot list the directory", errno));
      return;
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      add_file(path + (path.ends_with('/') ? "" : "/") + name);
    }
  }

  void add_file(const std::string& path) {
    // Not blocking: a FIFO in the place of a policy must not stop the host's start.
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat status;
    if (file.get() < 0 || fstat(file.get(), &status) != 0) {
      add_error(failure(path, "cannot open the policy", errno));
      return;
    }
    if (!S_ISREG(status.st_mode)) {
      add_error({path, 0, 0, "not a regular file",
                 "name a file, or a directory that holds *.toml files"});
      return;
    }
    std::string text(Policy::kLargestFileBytes + 1, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
      const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0) {
        add_error(failure(path, "cannot read the policy", errno));
        return;
      }
      if (got == 0) {
        break;
      }
      size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    add_text(text, path);
  }

  void refuse_size(const std::string& name) {
    add_error({name, 0, 0, "larger than " + format_size(Policy::kLargestFileBytes),
               "split it, or merge subnets"});
  }

  void add_error(Error error) {
    if (errors_.size() < kMostErrors) {
      errors_.push_back(std::move(error));
    }
  }

  std::vector<Rule> rules_;
  Limits limits_;
  std::vector<Error> errors_;
  std::vector<Error> warnings_;
  std::vector<std::string> sources_;
};

LoadResult Policy::load(const std::vector<std::string>& paths) {
  return Loader::run([&](Loader& loader) {
    for (const std::string& path : paths) {
      loader.add_path(path);
    }
  });
}

LoadResult Policy::load_file(const std::string& path) {
  return Loader::run([&](Loader& loader) { loader.add_path(path); });
}

LoadResult Policy::load_text(std::string_view text, std::string_view name) {
  return Loader::run([&](Loader& loader) { loader.add_text(text, std::string(name)); });
}

std::vector<std::string> Policy::default_paths(const char* named, const char* directory) {
  if (named != nullptr && named[0] != '\0') {
    return {named};
  }
  const std::string parent = directory;
  return {parent + "/policy.d", parent + "/policy.toml"};
}

LoadResult Policy::load_default(const char* named, const char* directory) {
  const bool is_named = named != nullptr && named[0] != '\0';
  return Loader::run([&](Loader& loader) {
    for (const std::string& path : default_paths(named, directory)) {
      if (is_named || exists(path)) {
        loader.add_path(path);
      }
    }
  });
}

}  // namespace ringroad::policy
