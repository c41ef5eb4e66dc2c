// One run of a load, as it is asked for: "pingpong epoll 64 1000".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace net_load {

enum class Kind {
  kPingpong,  // a message each way, one at a time on each connection
  kStream,    // messages from the client, until the server has the last byte
  kQueries,   // connections one after the other, each with a message and its answer
};

enum class Wait {
  kBlock,  // in recv; a thread for each connection
  kEpoll,  // in epoll_wait; one thread for all
};

struct Run {
  Kind kind = Kind::kPingpong;
  Wait wait = Wait::kBlock;
  std::size_t size = 0;     // bytes of a message
  std::uint64_t count = 0;  // messages of each connection, or connections
};

// Throws std::invalid_argument.
Run parse_run(const std::string& text);

// What this process has used until now.
struct Usage {
  double cpu_us = 0;
  std::uint64_t switches = 0;  // of context, voluntary or not
};

Usage usage_now();
Usage operator-(const Usage& later, const Usage& earlier);

// As the server tells the client.
std::string usage_line(const Usage& usage);
Usage parse_usage(const std::string& line);

}  // namespace net_load
