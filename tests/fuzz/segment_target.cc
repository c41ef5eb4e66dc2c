#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cli/segment_reader.h"
#include "cli/ss_report.h"
#include "cli/text.h"
#include "rsocket-core/stats/stats.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

// A file on a file system that is memory.
struct File {
  std::string path = "/dev/shm/ringroad-fuzz-XXXXXX";
  int fd;
  File() : fd(mkstemp(path.data())) {
    if (fd < 0) std::abort();
  }
  ~File() {
    close(fd);
    unlink(path.c_str());
  }
};

// What printable() would replace, but for what ends a line.
bool steers(const std::string& text) {
  std::string lines = text;
  std::replace(lines.begin(), lines.end(), '\n', ' ');
  return cli::printable(lines) != lines;
}

}  // namespace

// The file is the input behind its first byte, laid over a header that is right where that byte says so.
std::string try_segment(Bytes input) {
  static const File file;
  const DescriptorWatch descriptors;
  Reader reader(input);
  const unsigned head = reader.byte();
  const Bytes given = reader.take_bytes(input.size());
  std::vector<std::uint8_t> bytes(given.begin(), given.end());
  if ((head & 1) != 0) {
    // Slots, and a header that allows them.
    stats::SegmentHeader header;
    header.magic = stats::kSegmentMagic;
    header.version = stats::kSegmentVersion;
    header.header_bytes = stats::kHeaderBytes;
    header.slot_bytes = sizeof(stats::StreamSlot);
    header.rule_bytes = sizeof(stats::RuleSlot);
    header.rules = stats::kRules;
    header.rules_used = head >> 4;
    header.slots = static_cast<std::uint32_t>(
        std::min<std::size_t>(given.size() / sizeof(stats::StreamSlot), 8));
    header.slots_used = head >> 4;
    header.pid = static_cast<std::uint32_t>(getpid());
    if ((head & 4) != 0) header.latencies_bytes = sizeof(stats::Latencies);
    // The first bytes are the rules' as well, and what is behind the slots the latencies'.
    bytes.insert(bytes.begin(), stats::kSlotsOffset, 0);
    bytes.resize((bytes.size() + 4095) / 4096 * 4096 +
                 sizeof(stats::Latencies) * (stats::kRules + header.slots));
    std::memcpy(bytes.data() + stats::kHeaderBytes, given.data(),
                std::min(given.size(), stats::kSlotsOffset - stats::kHeaderBytes));
    std::memcpy(bytes.data(), static_cast<const void*>(&header), sizeof header);
  } else if ((head & 2) != 0 && bytes.size() >= 4) {
    const std::uint32_t fixed[] = {stats::kSegmentMagic, stats::kSegmentVersion,
                                   stats::kHeaderBytes, sizeof(stats::StreamSlot)};
    std::memcpy(bytes.data(), fixed, std::min(sizeof fixed, bytes.size()));
  }
  // A slot in the middle of a change is waited for, which tests/cli/segment_reader_test.cc tries.
  for (std::size_t at = stats::kSlotsOffset; at < bytes.size(); at += sizeof(stats::StreamSlot)) {
    bytes[at] = static_cast<std::uint8_t>(bytes[at] & 0xfe);
  }
  if (ftruncate(file.fd, 0) != 0 ||
      pwrite(file.fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return "no room for the file";
  }
  cli::Snapshot snapshot;
  cli::ProcessReport report;
  std::string why;
  if (cli::read_segment(file.path, report, why)) {
    if (bytes.size() < stats::kHeaderBytes) return "a segment that is too short is read";
    if (report.streams.size() + report.unreadable > stats::kSlots) return "more streams than slots";
    snapshot.processes.push_back(report);
  } else if (why.empty()) {
    return "refused without a reason";
  } else {
    snapshot.skipped.push_back({file.path, why});
  }
  // A process may call itself what it likes, but not steer the operator's terminal.
  const cli::SsView all;
  const std::string text = cli::ss_text(snapshot, all) + cli::ss_summary(snapshot, all) +
                           cli::ss_rules(snapshot, all) + cli::ss_histograms(snapshot, all);
  if (steers(text)) return "control characters are shown";
  cli::ss_json(snapshot, all);
  return descriptors.complaint();
}

}  // namespace ringroad::fuzz
