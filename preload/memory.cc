// The library's own memory: operator new and delete of libringroad.so.
//
// A handler of a signal may call send(2) and connect(2), signal-safety(7), and may have interrupted malloc(3)
// with its lock taken. So nothing that such calls come to may ask libc, or an allocator of the program's, for
// memory. Here there is no lock, so a handler, and the child of a fork, find it whole at any moment.
//
//   chunks   of 256 KiB, from mmap(2), never given back
//   blocks   of some 40 sizes, cut from the last chunk in turn; freed ones stand in one list a size
//   large    ones are a mapping each
//
// A list's head is the number of its first block and a count of its changes, in one word: so a thread that
// was away while the list changed cannot take what it had seen. Not for the sanitizers' builds, which want to
// see each allocation, nor for the verbs object, which has libc's.
//
// Thread rule: any thread at any time, in handlers too.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::memory {
namespace {

constexpr std::size_t kUnit = 16;  // everything is a multiple of it, and aligned to it
constexpr std::size_t kChunkUnits = 256 * 1024 / kUnit;
constexpr unsigned kUnitBits = std::bit_width(kChunkUnits - 1);
constexpr std::size_t kMostChunks = std::size_t{1} << 16;
constexpr unsigned kIndexBits = kUnitBits + 16;
constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << kIndexBits) - 1;
constexpr std::size_t kLargestUnits = 2048;
constexpr std::size_t kSizes = 40;
constexpr std::uint32_t kLarge = ~std::uint32_t{0};

// Before what the caller gets. Of aligned memory there is a copy, right before that.
struct Header {
  std::uint32_t kind;   // which size, or kLarge
  std::uint32_t index;  // of the block; of a large one, bytes from the mapping's begin to here
  std::uint64_t next;   // of a free block, the next one's index; of a large one, the mapping's length
};
static_assert(sizeof(Header) == kUnit);

std::atomic<std::byte*> chunks[kMostChunks];
// The chunk in use, and how many of its units are. No block has index 0.
std::atomic<std::uint64_t> cut{kChunkUnits};
struct alignas(kLineBytes) List {
  std::atomic<std::uint64_t> head{0};
};
List lists[kSizes];

Header* at(std::uint64_t index) noexcept {
  std::byte* const chunk = chunks[index >> kUnitBits].load(std::memory_order_acquire);
  return reinterpret_cast<Header*>(chunk + (index % kChunkUnits) * kUnit);
}

// Eight sizes of one unit to eight, then four to each doubling. `units` becomes the size's.
std::size_t size_for(std::size_t& units) noexcept {
  if (units <= 8) return units - 1;
  const auto shift = static_cast<unsigned>(std::bit_width(units - 1)) - 3;
  const std::size_t steps = ((units - 1) >> shift) + 1;
  units = steps << shift;
  return 8 + (shift - 1) * 4 + steps - 5;
}

void* map(std::size_t bytes) noexcept {
  const int saved = errno;
  const long pages = sys::raw(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  errno = saved;
  return pages < 0 && pages > -4096 ? nullptr : reinterpret_cast<void*>(pages);
}

// Null: there is none.
Header* cut_block(std::size_t units) noexcept {
  std::uint64_t now = cut.load(std::memory_order_acquire);
  for (;;) {
    const std::uint64_t number = now >> 32;
    const std::uint64_t used = now & 0xffffffff;
    if (used + units <= kChunkUnits) {
      if (!cut.compare_exchange_weak(now, now + units, std::memory_order_acq_rel)) continue;
      const std::uint64_t index = number * kChunkUnits + used;
      Header* const block = at(index);
      block->index = static_cast<std::uint32_t>(index);
      return block;
    }
    // Nobody uses number 0.
    if (number + 1 >= kMostChunks) return nullptr;
    std::byte* expected = nullptr;
    if (chunks[number + 1].load(std::memory_order_acquire) == nullptr) {
      void* const chunk = map(kChunkUnits * kUnit);
      if (chunk == nullptr) return nullptr;
      if (!chunks[number + 1].compare_exchange_strong(expected, static_cast<std::byte*>(chunk),
                                                      std::memory_order_acq_rel)) {
        sys::raw(SYS_munmap, sys::word(chunk), kChunkUnits * kUnit);
      }
    }
    if (cut.compare_exchange_strong(now, (number + 1) << 32, std::memory_order_acq_rel)) {
      now = (number + 1) << 32;
    }
  }
}

constexpr std::uint64_t kChange = kIndexMask + 1;

// A block that another thread takes meanwhile may be read, as memory is never given back; what is read is
// not used then.
Header* take(List& list) noexcept {
  std::uint64_t now = list.head.load(std::memory_order_acquire);
  for (;;) {
    if ((now & kIndexMask) == 0) return nullptr;
    Header* const block = at(now & kIndexMask);
    const std::uint64_t next = __atomic_load_n(&block->next, __ATOMIC_RELAXED) & kIndexMask;
    const std::uint64_t then = ((now & ~kIndexMask) + kChange) | next;
    if (list.head.compare_exchange_weak(now, then, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
      return block;
    }
  }
}

void put(List& list, Header* block) noexcept {
  std::uint64_t now = list.head.load(std::memory_order_relaxed);
  std::uint64_t then;
  do {
    __atomic_store_n(&block->next, now & kIndexMask, __ATOMIC_RELAXED);
    then = ((now & ~kIndexMask) + kChange) | block->index;
  } while (!list.head.compare_exchange_weak(now, then, std::memory_order_release,
                                            std::memory_order_relaxed));
}

Header* allocate_large(std::size_t bytes) noexcept {
  auto* const block = static_cast<Header*>(map(bytes));
  if (block != nullptr) *block = {kLarge, 0, bytes};
  return block;
}

Header* allocate_block(std::size_t bytes) noexcept {
  std::size_t units = (bytes + kUnit - 1) / kUnit;
  if (units > kLargestUnits) return allocate_large(bytes);
  const std::size_t size = size_for(units);
  Header* block = take(lists[size]);
  if (block == nullptr) block = cut_block(units);
  if (block != nullptr) block->kind = static_cast<std::uint32_t>(size);
  return block;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  constexpr std::size_t kMost = std::size_t{1} << 47;
  if (bytes > kMost || alignment > kMost) return nullptr;
  const std::size_t slack = alignment > kUnit ? alignment : 0;
  Header* const block = allocate_block(sizeof(Header) + bytes + slack);
  if (block == nullptr || slack == 0) return block == nullptr ? nullptr : block + 1;
  const auto begin = reinterpret_cast<std::uintptr_t>(block + 1);
  const std::size_t up = (alignment - begin % alignment) % alignment;
  if (up == 0) return block + 1;
  Header* const copy = block + up / kUnit;
  *copy = *block;
  if (block->kind == kLarge) copy->index = static_cast<std::uint32_t>(up);
  return copy + 1;
}

void free(void* memory) noexcept {
  if (memory == nullptr) return;
  Header* const header = static_cast<Header*>(memory) - 1;
  if (header->kind == kLarge) {
    const int saved = errno;
    sys::raw(SYS_munmap, sys::word(reinterpret_cast<std::byte*>(header) - header->index),
             static_cast<long>(header->next));
    errno = saved;
    return;
  }
  put(lists[header->kind], at(header->index));
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace ringroad::preload::memory

namespace memory = ringroad::preload::memory;
using Alignment = std::align_val_t;

void* operator new(std::size_t n) { return memory::allocate_or_throw(n, 0); }
void* operator new[](std::size_t n) { return memory::allocate_or_throw(n, 0); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return memory::allocate(n, 0); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return memory::allocate(n, 0);
}
void* operator new(std::size_t n, Alignment a) {
  return memory::allocate_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, Alignment a) {
  return memory::allocate_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, Alignment a, const std::nothrow_t&) noexcept {
  return memory::allocate(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, Alignment a, const std::nothrow_t&) noexcept {
  return memory::allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { memory::free(p); }
void operator delete[](void* p) noexcept { memory::free(p); }
void operator delete(void* p, std::size_t) noexcept { memory::free(p); }
void operator delete[](void* p, std::size_t) noexcept { memory::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { memory::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { memory::free(p); }
void operator delete(void* p, Alignment) noexcept { memory::free(p); }
void operator delete[](void* p, Alignment) noexcept { memory::free(p); }
void operator delete(void* p, std::size_t, Alignment) noexcept { memory::free(p); }
void operator delete[](void* p, std::size_t, Alignment) noexcept { memory::free(p); }
void operator delete(void* p, Alignment, const std::nothrow_t&) noexcept { memory::free(p); }
void operator delete[](void* p, Alignment, const std::nothrow_t&) noexcept { memory::free(p); }
