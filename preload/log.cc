#include "preload/log.h"

#include <spdlog/common.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <syslog.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "rsocket-core/signals.h"

namespace ringroad::preload::log {
namespace {

// spdlog's own syslog sink calls openlog(), which would rename the program's messages too.
class SyslogSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const int priority = message.level >= spdlog::level::err    ? LOG_ERR
                         : message.level >= spdlog::level::warn ? LOG_WARNING
                                                                : LOG_INFO;
    ::syslog(LOG_DAEMON | priority, "ringroad: %.*s", static_cast<int>(message.payload.size()),
             message.payload.data());
  }
  void flush_() override {}
};

// Never destroyed: other libraries' destructors may still log.
spdlog::logger* logger = nullptr;

spdlog::level::level_enum to_spdlog(Level level) noexcept {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void start(const char* destination, const char* level, const char* program) noexcept {
  if (destination == nullptr || *destination == '\0' || std::strcmp(destination, "off") == 0) {
    return;
  }
  const int saved = errno;
  try {
    spdlog::sink_ptr sink;
    if (std::strcmp(destination, "stderr") == 0) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else if (std::strcmp(destination, "syslog") == 0) {
      sink = std::make_shared<SyslogSink>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(destination);
    }
    auto made = std::make_unique<spdlog::logger>(program, std::move(sink));
    made->set_error_handler([](const std::string&) {});
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e ringroad %n[%P] %l: %v");
    auto threshold = spdlog::level::warn;
    if (level != nullptr) {
      if (std::strcmp(level, "debug") == 0) threshold = spdlog::level::debug;
      if (std::strcmp(level, "info") == 0) threshold = spdlog::level::info;
      if (std::strcmp(level, "error") == 0) threshold = spdlog::level::err;
    }
    made->set_level(threshold);
    made->flush_on(spdlog::level::debug);
    logger = made.release();
  } catch (...) {
    // Nowhere to say so: the destination is what failed. `ringroad ss` still tells everything.
  }
  errno = saved;
}

void write(Level level, const char* line) noexcept {
  if (logger == nullptr) return;
  const signals::Later not_now;  // the sink has a lock
  const int saved = errno;
  try {
    logger->log(to_spdlog(level), "{}", line);
  } catch (...) {
  }
  errno = saved;
}

bool wants(Level level) noexcept {
  return logger != nullptr && logger->should_log(to_spdlog(level));
}

}  // namespace ringroad::preload::log
