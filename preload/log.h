// One line a decision, where RINGROAD_LOG says: `stderr`, `syslog`, a file's path, or `off` (also
// when unset). RINGROAD_LOG_LEVEL: debug, info (every decision), warn (default), error.
//
// Never on the data path, never before start(), and nothing escapes it.
#pragma once

namespace ringroad::preload::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// `destination` and `level` may be null.
void start(const char* destination, const char* level, const char* program) noexcept;
void write(Level level, const char* line) noexcept;
bool wants(Level level) noexcept;

}  // namespace ringroad::preload::log
