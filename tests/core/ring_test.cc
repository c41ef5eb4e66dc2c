#include "rsocket-core/protocol/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"

namespace ringroad {
namespace {

TEST(RingSizeTest, IsAPowerOfTwoWithinTheLimits) {
  for (const std::uint64_t good : {4096u, 8192u, 262144u, 1u << 30}) {
    EXPECT_TRUE(valid_ring_bytes(good)) << good;
  }
  for (const std::uint64_t bad : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2048},
                                  std::uint64_t{4095}, std::uint64_t{4097}, std::uint64_t{12288},
                                  std::uint64_t{1} << 31, std::uint64_t{1} << 32,
                                  (std::uint64_t{1} << 32) + 4096, ~std::uint64_t{0}}) {
    EXPECT_FALSE(valid_ring_bytes(bad)) << bad;
  }
}

TEST(MirroredRingTest, ShowsTheSamePagesTwice) {
  MirroredRing ring;
  EXPECT_FALSE(ring);
  ASSERT_TRUE(ring.create(8192));
  EXPECT_TRUE(ring);
  EXPECT_EQ(ring.size(), 8192u);
  for (std::size_t i = 0; i < 8192; ++i) ring.base()[i] = static_cast<std::byte>(i * 7);
  EXPECT_EQ(std::memcmp(ring.base(), ring.base() + 8192, 8192), 0);
  ring.base()[8192 + 5] = std::byte{0xee};
  EXPECT_EQ(ring.base()[5], std::byte{0xee});
}

TEST(MirroredRingTest, TakesAPieceAcrossItsEndAsOneSpan) {
  MirroredRing ring;
  ASSERT_TRUE(ring.create(4096));
  const std::string text = "across the end";
  std::memcpy(ring.at(4090), text.data(), text.size());
  EXPECT_EQ(std::memcmp(ring.at(4090), text.data(), text.size()), 0);
  EXPECT_EQ(std::memcmp(ring.at(4096), text.data() + 6, text.size() - 6), 0);
}

TEST(MirroredRingTest, MasksOffsetsThatRunFreely) {
  MirroredRing ring;
  ASSERT_TRUE(ring.create(4096));
  EXPECT_EQ(ring.at(0), ring.base());
  EXPECT_EQ(ring.at(4095), ring.base() + 4095);
  EXPECT_EQ(ring.at(4096), ring.base());
  EXPECT_EQ(ring.at(~std::uint64_t{0}), ring.base() + 4095);
}

TEST(MirroredRingTest, MapsAPartOfAFileThatAnotherMappingShares) {
  const int fd = create_sealed_memfd("test", 3 * 4096);
  ASSERT_GE(fd, 0);
  MirroredRing first, second, other;
  ASSERT_TRUE(first.map(fd, 4096, 4096));
  ASSERT_TRUE(second.map(fd, 4096, 4096));
  ASSERT_TRUE(other.map(fd, 8192, 4096));
  sys::close_quietly(fd);
  first.base()[1] = std::byte{42};
  EXPECT_EQ(second.base()[4096 + 1], std::byte{42});
  EXPECT_EQ(other.base()[1], std::byte{0});
}

TEST(MirroredRingTest, OwnsItsMappingThroughMoves) {
  const auto mapped = [](const std::byte* address) {
    unsigned char resident;
    return mincore(const_cast<std::byte*>(address), 4096, &resident) == 0;
  };
  const std::byte* address = nullptr;
  const std::byte* replaced = nullptr;
  {
    MirroredRing first;
    ASSERT_TRUE(first.create(4096));
    address = first.base();
    MirroredRing second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_EQ(second.base(), address);
    MirroredRing third;
    ASSERT_TRUE(third.create(4096));
    replaced = third.base();
    third = std::move(second);
    EXPECT_EQ(third.base(), address);
    EXPECT_FALSE(mapped(replaced));
    EXPECT_TRUE(mapped(address + 4096));
  }
  EXPECT_FALSE(mapped(address));
  EXPECT_FALSE(mapped(address + 4096));
}

TEST(MirroredRingTest, ReportsWhatTheKernelRefuses) {
  MirroredRing ring;
  errno = 0;
  EXPECT_FALSE(ring.map(-1, 0, 4096));
  EXPECT_EQ(errno, EBADF);
  EXPECT_FALSE(ring);
  EXPECT_EQ(ring.base(), nullptr);
}

TEST(MirroredRingTest, KeepsNoDescriptor) {
  const int before = open_descriptors();
  MirroredRing ring;
  ASSERT_TRUE(ring.create(4096));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(SealedMemfdTest, CanNeverChangeItsSize) {
  const int fd = create_sealed_memfd("test", 8192);
  ASSERT_GE(fd, 0);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_NE(ftruncate(fd, 12288), 0);
  EXPECT_LT(sys::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0) << "no further seals either";
  EXPECT_EQ(sys::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_TRUE(is_sealed_memfd(fd, 8192));
  EXPECT_FALSE(is_sealed_memfd(fd, 4096));
  EXPECT_FALSE(is_sealed_memfd(fd, 8193));
  sys::close_quietly(fd);
}

TEST(SealedMemfdTest, TellsOtherFilesFromSealedOnes) {
  const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(loose, 4096), 0);
  EXPECT_FALSE(is_sealed_memfd(loose, 4096));
  ASSERT_EQ(sys::fcntl(loose, F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_FALSE(is_sealed_memfd(loose, 4096)) << "could still shrink, and an access fault";
  ASSERT_EQ(sys::fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(is_sealed_memfd(loose, 4096));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(is_sealed_memfd(ends[0], 0));
  EXPECT_FALSE(is_sealed_memfd(-1, 0));
  for (const int fd : {loose, ends[0], ends[1]}) sys::close_quietly(fd);
}

}  // namespace
}  // namespace ringroad
