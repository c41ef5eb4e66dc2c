#include "policy/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ringroad::policy {
namespace {

constexpr const char* kHowToMakeOne =
    "make one: head -c 32 /dev/urandom | base64 >FILE, the same for every host";

std::string command(const std::string& what, const std::string& path) {
  return what + " " + printable(path);
}

// Whether the file is kept as a secret should be.
bool is_kept_well(const struct stat& status, const std::string& path, Complaint& complaint) {
  const std::string file = "the key file " + in_quotes(path);
  char mode[16];
  std::snprintf(mode, sizeof mode, "%04o", status.st_mode & 07777U);
  if (!S_ISREG(status.st_mode)) {
    complaint = {file + " is not a regular file", kHowToMakeOne};
  } else if ((status.st_mode & (S_IROTH | S_IWOTH | S_IXOTH)) != 0) {
    complaint = {file + " can be read or changed by others: its mode is " + mode,
                 command("chmod o=", path)};
  } else if ((status.st_mode & S_IWGRP) != 0) {
    complaint = {file + " can be changed by its group: its mode is " + mode,
                 command("chmod g-w", path)};
  } else if (status.st_uid != 0 && status.st_uid != geteuid()) {
    complaint = {file + " belongs to another user, number " + std::to_string(status.st_uid),
                 command("chown root", path)};
  } else {
    return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> read_key(const std::string& path, Complaint& complaint) {
  const std::string file = "the key file " + in_quotes(path);
  if (path.empty() || path.front() != '/' || path.find('\0') != std::string::npos) {
    complaint = {file + " is not named by its whole path", R"(write "/etc/ringroad/key")"};
    return std::nullopt;
  }
  // Not blocking: it may be a FIFO.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    const char* why = strerrordesc_np(errno);
    complaint = {file + " cannot be read: " + (why != nullptr ? why : "unknown error"),
                 errno == ENOENT ? kHowToMakeOne
                                 : "let the user that runs the program read it, and nobody else"};
    return std::nullopt;
  }
  struct stat status;
  std::string key(kLongestKeyBytes + 3, '\0');
  ssize_t n = -1;
  const bool fit = fstat(fd, &status) == 0 && is_kept_well(status, path, complaint);
  if (fit) n = read(fd, key.data(), key.size());
  const int error = errno;
  close(fd);
  if (!fit) {
    return std::nullopt;
  }
  if (n < 0) {
    complaint = {file + " cannot be read: " + strerrordesc_np(error), "check the file system"};
    return std::nullopt;
  }
  key.resize(static_cast<std::size_t>(n));
  if (key.ends_with('\n')) key.pop_back();
  if (key.ends_with('\r')) key.pop_back();
  if (key.size() < kShortestKeyBytes || key.size() > kLongestKeyBytes) {
    complaint = {file + " holds a key of " +
                     (key.size() > kLongestKeyBytes ? "more than 4096" : std::to_string(key.size())) +
                     " bytes",
                 std::string("it has 16 to 4096; ") + kHowToMakeOne};
    return std::nullopt;
  }
  return key;
}

}  // namespace ringroad::policy
