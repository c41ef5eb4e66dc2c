#include "integration/bench/net_load/bytes.h"

#include <sys/socket.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace net_load {
namespace {

constexpr std::size_t kLineBytes = 128;

}  // namespace

void fail(int error, const char* call) {
  throw std::system_error(error, std::generic_category(), call);
}

void send_all(int fd, const char* data, std::size_t n) {
  for (std::size_t sent = 0; sent < n;) {
    const ssize_t now = send(fd, data + sent, n - sent, MSG_NOSIGNAL);
    if (now < 0) fail(errno, "send");
    sent += static_cast<std::size_t>(now);
  }
}

bool receive_all(int fd, char* data, std::size_t n) {
  for (std::size_t received = 0; received < n;) {
    const ssize_t now = recv(fd, data + received, n - received, 0);
    if (now < 0) fail(errno, "recv");
    if (now == 0 && received == 0) return false;
    if (now == 0) fail(ECONNRESET, "recv");
    received += static_cast<std::size_t>(now);
  }
  return true;
}

void send_line(int fd, const std::string& text) {
  if (text.size() > kLineBytes) throw std::length_error("too long a line: " + text);
  std::string padded = text;
  padded.resize(kLineBytes, ' ');
  send_all(fd, padded.data(), padded.size());
}

std::string receive_line(int fd) {
  std::string line(kLineBytes, ' ');
  if (!receive_all(fd, line.data(), line.size())) return "";
  line.resize(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace net_load
