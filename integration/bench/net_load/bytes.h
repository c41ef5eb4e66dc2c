// Whole messages over a blocking socket. All throw std::system_error; an end of the stream within a
// message is ECONNRESET.
#pragma once

#include <cstddef>
#include <string>

namespace net_load {

void send_all(int fd, const char* data, std::size_t n);
// False at an end of the stream before the first byte.
bool receive_all(int fd, char* data, std::size_t n);

// What the ends tell each other besides the load: a line of words in a message of fixed size.
void send_line(int fd, const std::string& text);
// Empty at the end of the stream.
std::string receive_line(int fd);

[[noreturn]] void fail(int error, const char* call);

}  // namespace net_load
