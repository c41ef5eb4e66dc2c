// Where the lines of the log go. Each is one system call's write of one whole line, without a lock;
// spdlog's own sinks have one, which a child of fork(2) might find taken.
#pragma once

#include <spdlog/sinks/sink.h>

#include <memory>

namespace ringroad::preload::log {

// `destination` as in log.h; null for `off` and the empty one. May throw std::bad_alloc. A file
// that cannot be opened is tried again with each line.
std::shared_ptr<spdlog::sinks::sink> make_sink(const char* destination);

// What standard error is as the program starts. Nothing is written there while `is_taken` says so of it
// (log.h).
void remember_stderr(bool (*is_taken)(int fd) noexcept) noexcept;

}  // namespace ringroad::preload::log
