#include <algorithm>
#include <cstdint>

#include "tests/fuzz/hostile_memory.h"

namespace ringroad::fuzz {
namespace {

// Whether `size` bytes at `data` lie inside a ring, which is mapped twice in a row.
bool inside(const Channel::View& view, std::byte* ring) {
  return view.size <= kFuzzRing && view.data >= ring &&
         view.data + view.size <= ring + std::ptrdiff_t{2} * kFuzzRing;
}

class Trial {
 public:
  Trial(HostileMemory& hostile, ShmWake wake)
      : hostile_(hostile),
        channel_(hostile.memory, hostile.side, std::move(wake)),
        tx_ring_(hostile.memory->ring(static_cast<unsigned>(hostile.side)).at(0)) {}

  std::string run(Reader reader) {
    while (!reader.empty()) {
      if (std::string complaint = step(reader); !complaint.empty()) return complaint;
    }
    return {};
  }

 private:
  std::string step(Reader& reader) {
    const unsigned what = reader.byte();
    switch (what % 9) {
      case 0:
        hostile_.scribble(reader);
        break;
      case 1: {
        ControlMessage message = reader.take<ControlMessage>();
        message.zero16 = 0;
        message.credits = 0;
        message.consumed = message.proof = 0;
        hostile_.put_control(message);
        break;
      }
      case 2:
        channel_.progress();
        break;
      case 3: {
        const Channel::View view = channel_.tx_view();
        if (!inside(view, tx_ring_)) return "room outside of the ring";
        const std::size_t n = std::min<std::size_t>(reader.take<std::uint16_t>(), view.size);
        std::memset(view.data, 0x11, n);
        channel_.commit(n);
        break;
      }
      case 4: {
        const Channel::View view = channel_.rx_view();
        if (!inside(view, hostile_.my_ring())) return "bytes outside of the ring";
        std::size_t n = std::min<std::size_t>(reader.take<std::uint16_t>(), view.size);
        if (std::any_of(view.data, view.data + n,
                        [](std::byte b) { return b != std::byte{0x22}; })) {
          return "bytes that the peer did not write";
        }
        channel_.consume(n);
        break;
      }
      case 5: {
        ControlMessage message;
        while (channel_.take_control(message)) {
          const bool known = message.type >= static_cast<std::uint8_t>(ControlType::kSwitch) &&
                             message.type <= static_cast<std::uint8_t>(ControlType::kLeft) &&
                             message.reason < static_cast<std::uint8_t>(Reason::kCount) &&
                             message.zero16 == 0 && message.credits == 0 &&
                             (message.consumed == 0 ||
                              message.type == static_cast<std::uint8_t>(ControlType::kLeft));
          if (!known) return "a malformed message is handed out";
        }
        break;
      }
      case 6: {
        ControlMessage message;
        message.type = static_cast<std::uint8_t>(reader.byte() % 2 == 0 ? ControlType::kSwitch
                                                                        : ControlType::kFin);
        channel_.send_control(message);
        break;
      }
      case 7:
        channel_.arm();
        channel_.drain();
        break;
      default: {
        const std::uint64_t at =
            channel_.tx_consumed() + reader.take<std::uint16_t>() % (kFuzzRing + 1);
        if (at > channel_.tx_head()) break;
        const Channel::View view = channel_.tx_replay(at);
        if (!inside(view, tx_ring_)) return "a replay from outside of the ring";
        break;
      }
    }
    return invariants();
  }

  std::string invariants() const {
    if (channel_.tx_head() - channel_.tx_consumed() > kFuzzRing) return "more sent than fits";
    if (channel_.rx_head() - channel_.rx_consumed() > kFuzzRing) return "more arrived than fits";
    if (channel_.tx_consumed() < consumed_) return "what was consumed no longer is";
    consumed_ = channel_.tx_consumed();
    const Reason why = channel_.failure();
    if (why != Reason::kNone && why != Reason::kBadRequest && why != Reason::kPeerGone) {
      return "an odd failure";
    }
    return {};
  }

  HostileMemory& hostile_;
  ShmChannel channel_;
  std::byte* const tx_ring_;
  mutable std::uint64_t consumed_ = 0;
};

}  // namespace

std::string try_shm_channel(Bytes input) {
  static HostileMemory hostile;
  const DescriptorWatch descriptors;
  Reader reader(input);
  const unsigned head = reader.byte();
  hostile.begin((head & 1) != 0 ? ShmSideIndex::kListener : ShmSideIndex::kConnector, 0x22);
  std::string complaint;
  {
    ShmWake wakes[2];
    Reason why = Reason::kNone;
    const ShmWakeKind kind = (head & 2) != 0 ? ShmWakeKind::kSocket : ShmWakeKind::kEvents;
    if (!ShmWake::make_pair(kind, wakes[0], wakes[1], why)) return "no descriptors for a channel";
    complaint = Trial(hostile, std::move(wakes[0])).run(reader);
  }
  return complaint.empty() ? descriptors.complaint() : complaint;
}

}  // namespace ringroad::fuzz
