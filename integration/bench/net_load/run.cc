#include "integration/bench/net_load/run.h"

#include <sys/resource.h>

#include <sstream>
#include <stdexcept>

namespace net_load {
namespace {

constexpr std::size_t kLargestMessage = std::size_t{64} << 20;

double microseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
}

}  // namespace

Run parse_run(const std::string& text) {
  std::istringstream words(text);
  std::string kind, wait, more;
  Run run;
  const bool complete = static_cast<bool>(words >> kind >> wait >> run.size >> run.count);
  if (kind == "stream") run.kind = Kind::kStream;
  if (kind == "queries") run.kind = Kind::kQueries;
  if (wait == "epoll") run.wait = Wait::kEpoll;
  if (!complete || words >> more || run.size == 0 || run.size > kLargestMessage || run.count == 0 ||
      (kind != "pingpong" && run.kind == Kind::kPingpong) ||
      (wait != "block" && run.wait == Wait::kBlock) ||
      (run.kind != Kind::kPingpong && run.wait == Wait::kEpoll)) {
    throw std::invalid_argument("no run: \"" + text +
                                "\" (pingpong block|epoll, stream block or queries block, "
                                "and then BYTES COUNT)");
  }
  return run;
}

Usage usage_now() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return {microseconds(used.ru_utime) + microseconds(used.ru_stime),
          static_cast<std::uint64_t>(used.ru_nvcsw + used.ru_nivcsw)};
}

Usage operator-(const Usage& later, const Usage& earlier) {
  return {later.cpu_us - earlier.cpu_us, later.switches - earlier.switches};
}

std::string usage_line(const Usage& usage) {
  return "used " + std::to_string(usage.cpu_us) + " " + std::to_string(usage.switches);
}

Usage parse_usage(const std::string& line) {
  std::istringstream words(line);
  std::string used;
  Usage usage;
  if (!(words >> used >> usage.cpu_us >> usage.switches) || used != "used") {
    throw std::runtime_error("the server said \"" + line + "\" instead of what it has used");
  }
  return usage;
}

}  // namespace net_load
