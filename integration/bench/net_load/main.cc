// The load of `ringroad bench net`.
//
//   ringroad-net-load serve ADDRESS            says "listening"; serves clients until SIGTERM
//   ringroad-net-load ask ADDRESS [N]          makes N connections (1), says "connected"; each line
//                                              of its input is a run, its answer a line of JSON:
//       pingpong block|epoll BYTES COUNT         COUNT round trips on every connection
//       stream block BYTES COUNT                 COUNT sends, until the server has the last byte
//       queries block BYTES COUNT                connect, ask, close: COUNT times
//
// ADDRESS is 10.9.1.1:7000, [fd00::1]:7000 or unix:/path.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "integration/bench/net_load/client.h"
#include "integration/bench/net_load/server.h"

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const bool serves = verb == "serve" && argc == 3;
  const bool asks = verb == "ask" && (argc == 3 || argc == 4);
  const long connections = argc == 4 ? std::atol(argv[3]) : 1;
  if ((!serves && !asks) || connections < 1) {
    std::fprintf(stderr, "usage: ringroad-net-load serve ADDRESS | ask ADDRESS [CONNECTIONS]\n");
    return 2;
  }
  try {
    const net_load::Address address = net_load::parse_address(argv[2]);
    if (serves) {
      net_load::serve(address);
    } else {
      net_load::ask(address, static_cast<std::size_t>(connections));
    }
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ringroad-net-load: %s\n", problem.what());
    return 1;
  }
  return 0;
}
