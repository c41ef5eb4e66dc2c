// One line a decision, where RINGROAD_LOG says, or else the policy's `log`: `stderr`, `syslog` or
// `journal`, a file's path, or `off` (also when neither says anything). RINGROAD_LOG_LEVEL, or else
// the policy's `log_level`: debug, info (every decision), warn (default), error.
//
// Never on the data path, never before start(), nothing escapes it, and no lock is taken, so that a
// child of fork(2) can go on. A line that cannot be written at once is dropped. Of
// many lines a part is left out: kBurst at once, then one each kPauseNs.
#pragma once

#include <cstdint>

namespace ringroad::preload::log {

enum class Level { kDebug, kInfo, kWarn, kError };

inline constexpr std::int64_t kBurst = 100;
inline constexpr std::int64_t kPauseNs = 50'000'000;

// Once. What the environment says; each may be null or empty, and then the policy's word counts.
// `is_taken`: whether the number is a connection of the program's, so that a line there would be taken for
// its bytes.
using IsTaken = bool(int fd) noexcept;
void start(const char* destination, const char* level, const char* program,
           IsTaken* is_taken) noexcept;
// What the policy says; again after an edit. One thread at a time.
void follow_policy(const char* destination, const char* level) noexcept;
// Any thread.
void write(Level level, const char* line) noexcept;
bool wants(Level level) noexcept;

}  // namespace ringroad::preload::log
