#include "rsocket-core/channel/shm/shm_memory.h"

#include <cerrno>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

std::shared_ptr<ShmMemory> allocate() noexcept {
  try {
    return std::make_shared<ShmMemory>();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

ShmMemory::~ShmMemory() {
  if (header_ != nullptr) munmap(header_, kShmHeaderBytes);
}

std::shared_ptr<ShmMemory> ShmMemory::create(std::size_t ring_bytes, int& memfd,
                                             Reason& why) noexcept {
  const int fd = sys::open_high(
      [&] { return create_sealed_memfd("ringroad-shm", shm_file_bytes(ring_bytes)); });
  if (fd < 0) {
    why = shm_reason_of(errno);
    return nullptr;
  }
  auto memory = map(fd, ring_bytes, why);
  if (memory == nullptr) {
    sys::close_quietly(fd);
    return nullptr;
  }
  memfd = fd;
  return memory;
}

std::shared_ptr<ShmMemory> ShmMemory::map(int memfd, std::size_t ring_bytes,
                                          Reason& why) noexcept {
  if (!is_sealed_memfd(memfd, shm_file_bytes(ring_bytes))) {
    why = Reason::kBadRequest;
    return nullptr;
  }
  auto memory = allocate();
  if (memory == nullptr) {
    why = Reason::kNoMemory;
    return nullptr;
  }
  if (!memory->map_all(memfd, ring_bytes)) {
    // A file that is sealed against writing, too, is a file that the peer chose badly.
    why = errno == EPERM ? Reason::kBadRequest : shm_reason_of(errno);
    return nullptr;
  }
  return memory;
}

bool ShmMemory::map_all(int memfd, std::size_t ring_bytes) noexcept {
  void* header = mmap(nullptr, kShmHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (header == MAP_FAILED) return false;
  header_ = static_cast<ShmHeader*>(header);
  return rings_[0].map(memfd, kShmHeaderBytes, ring_bytes) &&
         rings_[1].map(memfd, kShmHeaderBytes + ring_bytes, ring_bytes);
}

Reason shm_reason_of(int error) noexcept {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return Reason::kNoDescriptors;
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:  // max_user_watches of epoll
      return Reason::kNoMemory;
    default:
      return Reason::kQpError;
  }
}

}  // namespace ringroad
