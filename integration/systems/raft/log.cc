#include "integration/systems/raft/log.h"

#include <filesystem>

namespace raft {

Log::Log(const std::string& path) {
  std::uintmax_t whole = 0;
  if (std::ifstream known(path, std::ios::binary); known) {
    uint32_t length = 0;
    while (known.read(reinterpret_cast<char*>(&length), sizeof length)) {
      std::string entry(length, '\0');
      if (!known.read(entry.data(), length)) break;
      whole += sizeof length + length;
      entries_.push_back(std::move(entry));
    }
    known.close();
    std::filesystem::resize_file(path, whole);
  }
  file_.exceptions(std::ios::failbit | std::ios::badbit);
  file_.open(path, std::ios::binary | std::ios::app);
}

void Log::append(std::span<const std::string> entries) {
  for (const std::string& entry : entries) {
    const auto length = static_cast<uint32_t>(entry.size());
    file_.write(reinterpret_cast<const char*>(&length), sizeof length);
    file_.write(entry.data(), length);
    entries_.push_back(entry);
  }
  file_.flush();
}

}  // namespace raft
