#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/process/control_socket.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

// The socket of a process, and one that asks.
struct Ends {
  control::ControlSocket process;
  int asker = -1;
  std::string directory = "/tmp/ringroad-fuzz-XXXXXX";

  Ends() {
    if (mkdtemp(directory.data()) == nullptr) std::abort();
    if (!process.open((directory + "/1").c_str())) std::abort();
    asker = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    socklen_t length = sizeof to;
    if (getsockname(process.fd(), reinterpret_cast<sockaddr*>(&to), &length) != 0 ||
        connect(asker, reinterpret_cast<sockaddr*>(&to), length) != 0) {
      std::abort();
    }
    // They stay connected without their name.
    unlink(to.sun_path);
    rmdir(directory.c_str());
  }
};

bool send(int socket, Bytes bytes, int gifts) {
  iovec piece{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (gifts > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(static_cast<std::size_t>(gifts) * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(static_cast<std::size_t>(gifts) * sizeof(int));
    const int fds[4] = {socket, socket, socket, socket};
    std::memcpy(CMSG_DATA(part), fds, static_cast<std::size_t>(gifts) * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

// Up to four datagrams, each a length, a number of descriptors and its bytes; then one that is right.
std::string try_control(Bytes input) {
  static Ends ends;
  const DescriptorWatch descriptors;
  Reader reader(input);
  std::vector<control::Request> asked;
  for (int i = 0; i < 4 && !reader.empty(); ++i) {
    const unsigned head = reader.byte();
    const Bytes bytes = reader.take_bytes(head % 32);
    if (!send(ends.asker, bytes, static_cast<int>(head / 32) % 5)) return "not sent";
    control::Request request;
    if (bytes.size() < sizeof request) continue;
    std::memcpy(&request, bytes.data(), sizeof request);
    if (request.magic == control::kMagic && request.version == control::kVersion &&
        request.mode <= 2 && request.serial != 0) {
      asked.push_back(request);
    }
  }
  control::Request last;
  last.serial = 99;
  if (!send(ends.asker, {reinterpret_cast<const std::uint8_t*>(&last), sizeof last}, 0)) {
    return "not sent";
  }
  asked.push_back(last);
  for (const control::Request& request : asked) {
    const auto heard = ends.process.receive();
    if (!heard) return "a request is not heard";
    if (std::memcmp(&*heard, &request, sizeof request) != 0) return "another request is heard";
  }
  if (ends.process.receive()) return "what is no request is heard";
  return descriptors.complaint();
}

}  // namespace ringroad::fuzz
