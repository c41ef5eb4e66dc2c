#include <cstdio>
#include <string_view>
#include <vector>

#include "cli/stream_filter.h"
#include "cli/text.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

using cli::ProcessReport;
using cli::StreamFilter;
using cli::StreamReport;
using Words = std::vector<std::string>;

Endpoint endpoint(bool v4, std::uint8_t last, std::uint16_t port) {
  Endpoint out;
  out.addr.bytes[0] = v4 ? 0 : 0xfd;
  if (v4) out.addr.bytes[10] = out.addr.bytes[11] = 0xff;
  out.addr.bytes[15] = last;
  out.port = port;
  return out;
}

struct Subject {
  ProcessReport process;
  StreamReport stream;
};

// Streams that differ in everything that a condition can look at.
std::vector<Subject> make_subjects() {
  std::vector<Subject> out(3);
  out[0].process.pid = 4711;
  out[0].process.program = "mariadbd";
  out[0].stream.role = Role::kAccept;
  out[0].stream.local = endpoint(true, 1, 3306);
  out[0].stream.remote = endpoint(true, 7, 40000);
  out[0].stream.state = State::kOnChannel;
  out[0].stream.channel.carrier = Carrier::kRdma;
  std::snprintf(out[0].stream.channel.device, sizeof out[0].stream.channel.device, "mlx5_0");
  out[0].stream.rule = "galera";
  out[0].stream.traffic = {{1000, 3 << 20, 10, 20}, {24, 0, 1, 0}};
  out[1].process.program = "ring[road]*";
  out[1].stream.fd = -1;
  out[1].stream.local = endpoint(false, 2, 0);
  out[1].stream.remote = endpoint(false, 3, 65535);
  out[1].stream.reason = Reason::kPeerRefused;
  out[1].stream.peer_reason = Reason::kMemlock;
  out[2].stream.state = State::kCount;  // as a file may say it
  out[2].stream.reason = Reason::kCount;
  return out;
}

// The words of a command line, which end with a NUL.
Words words_of(Bytes input) {
  std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  Words words;
  while (!text.empty()) {
    const std::size_t end = text.find('\0');
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return words;
}

Words with(Words words, const char* before, const char* after) {
  words.insert(words.begin(), before);
  words.emplace_back(after);
  return words;
}

std::string complaint_about(const Words& words, const StreamFilter& filter) {
  static const std::vector<Subject> subjects = make_subjects();
  std::string why;
  const auto again = cli::parse_filter(words, why);
  if (!again) return "refused the second time: " + why;
  // Each may be refused for its depth.
  const auto enclosed = cli::parse_filter(with(words, "(", ")"), why);
  const auto negated = cli::parse_filter(with(with(words, "(", ")"), "not", ""), why);
  Words twice = with(words, "(", ") or (");
  twice.insert(twice.end(), words.begin(), words.end());
  twice.emplace_back(")");
  const auto either = cli::parse_filter(twice, why);
  for (const Subject& one : subjects) {
    const bool chosen = filter(one.process, one.stream);
    if ((*again)(one.process, one.stream) != chosen) return "chooses something else each time";
    if (enclosed && (*enclosed)(one.process, one.stream) != chosen) return "brackets alter it";
    if (negated && (*negated)(one.process, one.stream) == chosen) return "not does not negate it";
    if (either && (*either)(one.process, one.stream) != chosen) return "or with itself alters it";
  }
  return {};
}

}  // namespace

std::string try_filter(Bytes input) {
  const Words words = words_of(input);
  std::string why;
  const auto filter = cli::parse_filter(words, why);
  if (!filter) {
    if (why.empty()) return "refused without a reason";
    return cli::printable(why) == why ? "" : "the reason has control characters: " + why;
  }
  return words.empty() ? "" : complaint_about(words, *filter);
}

}  // namespace ringroad::fuzz
