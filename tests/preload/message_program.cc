// message_program [MESSAGES [BYTES]]: what a message costs a program, for callgrind. It sends to itself over
// one stream, by send(2) and recv(2), both in this one thread, so that every instruction is counted and none
// waits. tests/cost counts what is collected from one to the other.
#include <unistd.h>

#include <string>

#include "tests/preload/loopback.h"

int main(int argc, char** argv) {
  using ringroad::test::fail;
  const long messages = argc > 1 ? std::atol(argv[1]) : 1000;
  const std::size_t bytes = argc > 2 ? static_cast<std::size_t>(std::atol(argv[2])) : 64;
  ringroad::test::Listener listener;
  const ringroad::test::Loopback stream = listener.connect_to();
  std::string buffer(bytes, 'x');
  for (long i = 0; i < messages; ++i) {
    if (send(stream.client, buffer.data(), bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
      fail("send");
    }
    if (recv(stream.server, buffer.data(), bytes, 0) != static_cast<ssize_t>(bytes)) fail("recv");
  }
  std::printf("%ld messages of %zu bytes\n", messages, bytes);
  return 0;
}
