// What scenarios of arguments that no call can do with have in common.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

namespace ringroad::test {

// The compiler is not to know them.
template <typename T>
T told(T value) {
  const volatile T hidden = value;
  return hidden;
}

inline char letters[8] = {'b', 'y', 't', 'e', 's', '!', '!', '!'};
inline char taken[8];

inline long with_message(int fd, const msghdr& message, bool sends) {
  msghdr copy = message;
  return sends ? ::sendmsg(fd, &copy, MSG_NOSIGNAL | MSG_DONTWAIT) : ::recvmsg(fd, &copy, MSG_DONTWAIT);
}

inline msghdr message_of(iovec& piece) {
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace ringroad::test
