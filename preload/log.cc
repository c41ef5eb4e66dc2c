#include "preload/log.h"

#include <spdlog/common.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "preload/log_sinks.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::log {
namespace {

// Never destroyed, also when another takes its place: a thread may be writing, and edits are few.
std::atomic<spdlog::logger*> logger{nullptr};
std::string* in_use = nullptr;  // the destination; null: none yet
char own_destination[1024];     // the environment's; empty: the policy's counts
char own_level[16];
char program_name[64];

// The moment at which the next line would be due if all were evenly spread (the leaky bucket as a
// meter, ITU-T I.371, annex A).
std::atomic<std::int64_t> due_ns{0};
std::atomic<std::uint64_t> left_out{0};

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

spdlog::level::level_enum threshold_of(const char* level) noexcept {
  if (std::strcmp(level, "debug") == 0) return spdlog::level::debug;
  if (std::strcmp(level, "info") == 0) return spdlog::level::info;
  if (std::strcmp(level, "error") == 0) return spdlog::level::err;
  return spdlog::level::warn;
}

void use(const char* destination, const char* level) {
  if (in_use == nullptr || *in_use != destination) {
    spdlog::sink_ptr sink = make_sink(destination);
    spdlog::logger* made = nullptr;
    if (sink != nullptr) {
      auto fresh = std::make_unique<spdlog::logger>(program_name, std::move(sink));
      fresh->set_error_handler([](const std::string&) {});
      fresh->set_level(threshold_of(level));
      made = fresh.release();
    }
    logger.store(made, std::memory_order_release);
    in_use = new std::string(destination);
  } else if (spdlog::logger* same = logger.load(std::memory_order_relaxed)) {
    same->set_level(threshold_of(level));
  }
}

bool may_write() noexcept {
  const std::int64_t now = sys::now_ns();
  std::int64_t due = due_ns.load(std::memory_order_relaxed);
  for (;;) {
    if (due - now > (kBurst - 1) * kPauseNs) return false;
    const std::int64_t next = std::max(due, now) + kPauseNs;
    if (due_ns.compare_exchange_weak(due, next, std::memory_order_relaxed)) return true;
  }
}

}  // namespace

void start(const char* destination, const char* level, const char* program,
           IsTaken* is_taken) noexcept {
  const auto copy = [](char* to, std::size_t size, const char* from) noexcept {
    std::snprintf(to, size, "%s", from == nullptr ? "" : from);
  };
  copy(own_destination, sizeof own_destination, destination);
  copy(own_level, sizeof own_level, level);
  copy(program_name, sizeof program_name, program);
  remember_stderr(is_taken);
  follow_policy("", "");
}

void follow_policy(const char* destination, const char* level) noexcept {
  const int saved = errno;
  try {
    use(own_destination[0] != '\0' ? own_destination : destination,
        own_level[0] != '\0' ? own_level : level);
  } catch (...) {
    // Nowhere to say so: the destination is what failed. `ringroad ss` still tells everything.
  }
  errno = saved;
}

void write(Level level, const char* line) noexcept {
  spdlog::logger* const to = logger.load(std::memory_order_acquire);
  if (to == nullptr || !to->should_log(to_spdlog(level))) return;
  const int saved = errno;
  if (!may_write()) {
    left_out.fetch_add(1, std::memory_order_relaxed);
  } else {
    const signals::DeferHandlers not_now;
    try {
      if (const std::uint64_t count = left_out.exchange(0, std::memory_order_relaxed); count > 0) {
        to->log(to_spdlog(level), "{} {} left out here: there were too many at once", count,
                count == 1 ? "line was" : "lines were");
      }
      to->log(to_spdlog(level), "{}", line);
    } catch (...) {
    }
  }
  errno = saved;
}

bool wants(Level level) noexcept {
  const spdlog::logger* const to = logger.load(std::memory_order_acquire);
  return to != nullptr && to->should_log(to_spdlog(level));
}

}  // namespace ringroad::preload::log
