// What a fuzzer tries, and what a test tries again with the inputs that are kept in tests/data/fuzz: for each
// thing that a peer, another user or an operator writes, a function that takes any bytes and says
// what is wrong with what the library made of them.
//
// Thread rule: one thread. Nothing is kept from one input to the next but what is costly to make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace ringroad::fuzz {

using Bytes = std::span<const std::uint8_t>;

// Empty, or the invariant that does not hold. Crashes are the sanitizers' business.
std::string try_wire(Bytes input);         // hellos, refusals, redirects, frames (wire.h)
std::string try_flow(Bytes input);         // immediates and credits of queue pairs (verbs/flow.h)
std::string try_promotion(Bytes input);    // packets and descriptors at the shm rendezvous
std::string try_shm_channel(Bytes input);  // a channel whose shared memory says anything
std::string try_stream(Bytes input);       // a stream whose peer writes anything, anywhere
std::string try_control(Bytes input);      // datagrams of `ringroad set`
std::string try_segment(Bytes input);      // what `ringroad ss` reads
std::string try_policy(Bytes input);
std::string try_filter(Bytes input);       // of `ringroad ss`
std::string try_elf(Bytes input);          // the file of a program that is to be preloaded

struct Target {
  const char* name;  // its folder in tests/data/fuzz
  std::string (*run)(Bytes input);
};
inline constexpr Target kTargets[] = {
    {"wire", try_wire},       {"flow", try_flow},       {"promotion", try_promotion},
    {"shm_channel", try_shm_channel}, {"stream", try_stream}, {"control", try_control},
    {"segment", try_segment}, {"policy", try_policy}, {"filter", try_filter},
    {"elf", try_elf}};

// Takes an input apart from the front. Behind its end everything is zero.
class Reader {
 public:
  explicit Reader(Bytes input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  template <typename T>
  T take() {
    T out{};
    const Bytes bytes = take_bytes(sizeof out);
    if (!bytes.empty()) std::memcpy(static_cast<void*>(&out), bytes.data(), bytes.size());
    return out;
  }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  // `n` bytes, or as many as there are.
  Bytes take_bytes(std::size_t n) {
    const Bytes out = rest_.first(n < rest_.size() ? n : rest_.size());
    rest_ = rest_.subspan(out.size());
    return out;
  }

 private:
  Bytes rest_;
};

// Open descriptors of this process.
int count_descriptors();

// Whether there are as many at the end of an input as at its beginning. Not as at the first input's: the
// fuzzer opens some itself now and then.
class DescriptorWatch {
 public:
  std::string complaint() const {
    const int now = count_descriptors();
    return now == before_ ? ""
                          : "descriptors are kept: " + std::to_string(now) + " are open, " +
                                std::to_string(before_) + " were";
  }

 private:
  int before_ = count_descriptors();
};

}  // namespace ringroad::fuzz
