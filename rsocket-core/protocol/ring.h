// A byte ring whose memory is mapped twice in a row, so that any span of up to size() bytes is
// contiguous in the address space wherever it starts.
//
//        base                 base + size            base + 2 * size
//          |  the ring's pages   |  the same pages again  |
//
// Offsets into the stream run freely (64 bits, never wrap in practice), are compared by
// subtraction and are masked only here, at access.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/hints.h"

namespace ringroad {

inline constexpr std::size_t kMinRingBytes = 4096;
inline constexpr std::size_t kMaxRingBytes = std::size_t{1} << 30;

// A size a ring may have: a power of two between the limits, so a whole number of pages.
constexpr bool valid_ring_bytes(std::uint64_t bytes) noexcept {
  return bytes >= kMinRingBytes && bytes <= kMaxRingBytes && (bytes & (bytes - 1)) == 0;
}

// Owns a mapping, not the file. Movable. No thread rule: it only names memory.
class MirroredRing {
 public:
  MirroredRing() noexcept = default;
  ~MirroredRing();
  MirroredRing(MirroredRing&& other) noexcept;
  MirroredRing& operator=(MirroredRing&& other) noexcept;
  MirroredRing(const MirroredRing&) = delete;
  MirroredRing& operator=(const MirroredRing&) = delete;

  // Maps `bytes` of `fd` from `file_offset` (a whole number of pages) twice, shared, readable and
  // writable. The file must be that long. Returns false and leaves errno when the kernel refuses.
  // REQUIRES: valid_ring_bytes(bytes).
  bool map(int fd, std::uint64_t file_offset, std::size_t bytes) noexcept;

  // The same over memory of its own (a memfd that is closed again at once).
  bool create(std::size_t bytes) noexcept;

  void reset() noexcept;
  explicit operator bool() const noexcept { return base_ != nullptr; }
  std::byte* base() const noexcept { return base_; }
  std::size_t size() const noexcept { return base_ != nullptr ? mask_ + 1 : 0; }
  std::byte* at(std::uint64_t offset) const noexcept { return base_ + (offset & mask_); }

 private:
  std::byte* base_ = nullptr;
  std::size_t mask_ = 0;  // size() - 1
};

// An anonymous file of `bytes` that can never change its size (F_SEAL_SHRINK | F_SEAL_GROW, sealed
// against other seals), so that a peer that shares it cannot make an access fault. Returns a
// descriptor that the caller owns, close-on-exec, or -1 with errno.
int create_sealed_memfd(const char* name, std::uint64_t bytes) noexcept;

// True when `fd` is a memfd of exactly `bytes` with those seals.
bool is_sealed_memfd(int fd, std::uint64_t bytes) noexcept;

}  // namespace ringroad
