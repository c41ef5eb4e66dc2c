// The other end of a shared-memory channel, in the hands of an input: it writes where and what it
// likes into the memory that both ends map.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>

#include "rsocket-core/channel/shm/shm_channel.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {

inline constexpr std::uint32_t kFuzzRing = 4096;

struct HostileMemory {
  std::shared_ptr<ShmMemory> memory;
  ShmSideIndex side = ShmSideIndex::kConnector;  // the honest end's

  HostileMemory() {
    int fd = -1;
    Reason why = Reason::kNone;
    memory = ShmMemory::create(kFuzzRing, fd, why);
    if (memory == nullptr) std::abort();
    close(fd);
  }

  // The same memory each time, as good as new.
  void begin(ShmSideIndex honest, std::uint8_t fill) {
    side = honest;
    std::memset(static_cast<void*>(&memory->header()), 0, kShmHeaderBytes);
    std::memset(memory->ring(0).at(0), fill, kFuzzRing);
    std::memset(memory->ring(1).at(0), fill, kFuzzRing);
  }

  ShmSide& honest() const { return memory->header().side[static_cast<unsigned>(side)]; }
  ShmSide& mine() const { return memory->header().side[1 - static_cast<unsigned>(side)]; }
  std::byte* my_ring() const { return memory->ring(1 - static_cast<unsigned>(side)).at(0); }

  // As an honest end would, into the next slot.
  void put_control(const ControlMessage& message) const {
    const std::uint32_t tail = mine().control_tail.load();
    std::uint64_t words[sizeof message / 8];
    std::memcpy(words, &message, sizeof message);
    for (std::size_t i = 0; i < std::size(words); ++i) {
      mine().control[tail % kShmControlSlots].words[i].store(words[i]);
    }
    mine().control_tail.store(tail + 1);
  }
  // The last message of the honest end.
  ControlMessage last_control() const {
    const std::uint32_t tail = honest().control_tail.load();
    std::uint64_t words[sizeof(ControlMessage) / 8];
    for (std::size_t i = 0; i < std::size(words); ++i) {
      words[i] = honest().control[(tail - 1) % kShmControlSlots].words[i].load();
    }
    ControlMessage message;
    std::memcpy(&message, words, sizeof message);
    return message;
  }

  // One of the writes that a hostile end is good at; all of them are as the input says.
  void scribble(Reader& reader) const {
    const unsigned what = reader.byte();
    switch (what % 8) {
      case 0:  // a few bytes more, or fewer
        mine().tail.fetch_add(static_cast<std::uint64_t>(reader.take<std::int16_t>()));
        return;
      case 1:
        mine().tail.store(reader.take<std::uint64_t>());
        return;
      case 2:  // what was sent is consumed: all, some, or more
        mine().consumed.store(honest().tail.load() +
                              static_cast<std::uint64_t>(reader.take<std::int8_t>()));
        return;
      case 3:
        mine().control_tail.fetch_add(reader.take<std::uint16_t>());
        return;
      case 4:
        mine().control_head.store(honest().control_tail.load() +
                                  static_cast<std::uint32_t>(reader.take<std::int8_t>()));
        return;
      case 5:
        mine().closed.store(reader.byte());
        return;
      case 6:
        mine().waiting.store(reader.byte());
        return;
      default: {  // any word of the header, the honest end's own included
        const std::size_t word = reader.take<std::uint16_t>() % (kShmHeaderBytes / 8);
        const auto value = reader.take<std::uint64_t>();
        std::memcpy(reinterpret_cast<std::byte*>(&memory->header()) + 8 * word, &value,
                    sizeof value);
        return;
      }
    }
  }
};

}  // namespace ringroad::fuzz
