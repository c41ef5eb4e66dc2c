#include "rsocket-core/protocol/ring.h"

#include <cerrno>
#include <utility>

#include "rsocket-core/base/sys.h"

namespace ringroad {

MirroredRing::~MirroredRing() { reset(); }

MirroredRing::MirroredRing(MirroredRing&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), mask_(std::exchange(other.mask_, 0)) {}

MirroredRing& MirroredRing::operator=(MirroredRing&& other) noexcept {
  if (this != &other) {
    reset();
    base_ = std::exchange(other.base_, nullptr);
    mask_ = std::exchange(other.mask_, 0);
  }
  return *this;
}

bool MirroredRing::map(int fd, std::uint64_t file_offset, std::size_t bytes) noexcept {
  reset();
  void* reserved = mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return false;
  auto* base = static_cast<std::byte*>(reserved);
  for (std::byte* half : {base, base + bytes}) {
    if (mmap(half, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(file_offset)) == MAP_FAILED) {
      const int saved = errno;
      munmap(base, 2 * bytes);
      errno = saved;
      return false;
    }
  }
  base_ = base;
  mask_ = bytes - 1;
  return true;
}

bool MirroredRing::create(std::size_t bytes) noexcept {
  const int fd = sys::open_high([&] { return create_sealed_memfd("ringroad-ring", bytes); });
  if (fd < 0) return false;
  const bool mapped = map(fd, 0, bytes);
  sys::close_quietly(fd);
  return mapped;
}

void MirroredRing::reset() noexcept {
  if (base_ != nullptr) munmap(base_, 2 * size());
  base_ = nullptr;
  mask_ = 0;
}

int create_sealed_memfd(const char* name, std::uint64_t bytes) noexcept {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (!sys::make_long(fd, bytes) ||
      sys::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    sys::close_quietly(fd);
    return -1;
  }
  return fd;
}

bool is_sealed_memfd(int fd, std::uint64_t bytes) noexcept {
  const int seals = sys::fcntl(fd, F_GET_SEALS);
  struct stat st {};
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0 &&
         fstat(fd, &st) == 0 && static_cast<std::uint64_t>(st.st_size) == bytes;
}

}  // namespace ringroad
