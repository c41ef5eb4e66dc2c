// Copies that meet memory which is not there (base/faults.h), with a handler as preload/ has one.
#include "rsocket-core/base/faults.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csetjmp>
#include <cstring>
#include <string>

namespace ringroad::faults {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMost = 3 * kPage;

sigjmp_buf beyond;

// Three pages, and three that nobody can touch.
class FaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    void* const pages =
        ::mmap(nullptr, 2 * kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    hole_ = static_cast<char*>(pages) + kMost;
    ASSERT_EQ(::mprotect(hole_, kMost, PROT_NONE), 0);
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void* context) {
      if (!recover(info, context)) siglongjmp(beyond, 1);
    };
    ASSERT_EQ(::sigaction(SIGSEGV, &action, &old_), 0);
  }
  void TearDown() override {
    ::sigaction(SIGSEGV, &old_, nullptr);
    ::munmap(hole_ - kMost, 2 * kMost);
  }

  char* hole_ = nullptr;
  struct sigaction old_ {};
};

TEST_F(FaultsTest, CopiesWhatIsThere) {
  std::string from(kMost, '\0');
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7);
  for (std::size_t n = 0; n <= 300; ++n) {
    std::memset(hole_ - n - 1, 0, n + 1);
    ASSERT_TRUE(copy(hole_ - n, from.data(), n)) << n;
    ASSERT_EQ(std::memcmp(hole_ - n, from.data(), n), 0) << n;
    std::memset(hole_ - n - 1, 0, n + 1);
    ASSERT_TRUE(copy_short(hole_ - n, from.data(), n)) << n;
    ASSERT_EQ(std::memcmp(hole_ - n, from.data(), n), 0) << n;
    ASSERT_EQ(hole_[-static_cast<long>(n) - 1], 0) << n;
  }
}

TEST_F(FaultsTest, EndsWhereThereIsNone) {
  static char room[kMost];
  for (std::size_t n = 1; n <= 300; ++n) {
    for (const std::size_t there : {n - 1, n / 2, std::size_t{0}}) {
      ASSERT_FALSE(copy(hole_ - there, room, n)) << n;
      ASSERT_FALSE(copy(room, hole_ - there, n)) << n;
      ASSERT_FALSE(copy_apart(room, hole_ - there, n)) << n;
      ASSERT_FALSE(copy_short(hole_ - there, room, n)) << n;
      ASSERT_FALSE(copy_short(room, hole_ - there, n)) << n;
    }
  }
  EXPECT_FALSE(copy(room, hole_ - kPage, kMost));
  EXPECT_FALSE(copy(reinterpret_cast<void*>(8), room, 100));
  // Such an address comes without a number.
  EXPECT_FALSE(copy(reinterpret_cast<void*>(std::uintptr_t{1} << 62), room, 8));
  EXPECT_FALSE(copy_short(reinterpret_cast<void*>(std::uintptr_t{1} << 62), room, 32));
}

TEST_F(FaultsTest, TellsWhetherMemoryIsThere) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{100}, kPage, kMost}) {
    EXPECT_TRUE(can_read(hole_ - n, n)) << n;
    EXPECT_TRUE(can_write(hole_ - n, n)) << n;
    EXPECT_FALSE(can_read(hole_ - n, n + 1)) << n;
    EXPECT_FALSE(can_write(hole_ - n, n + 1)) << n;
  }
  EXPECT_TRUE(can_read(nullptr, 0));
  ASSERT_EQ(::mprotect(hole_ - kPage, kPage, PROT_READ), 0);
  EXPECT_TRUE(can_read(hole_ - kMost, kMost));
  EXPECT_FALSE(can_write(hole_ - kMost, kMost));
  std::uint16_t word = 1;
  EXPECT_FALSE(store(hole_ - 2, word));
  EXPECT_TRUE(load(word, hole_ - 2));
}

// Nor does a copy that was left by a jump take them over.
TEST_F(FaultsTest, LeavesOtherFaultsToTheHandler) {
  static volatile bool jumped = false;
  if (sigsetjmp(beyond, 1) == 0) {
    *static_cast<volatile char*>(hole_) = 'x';
  } else {
    jumped = true;
  }
  EXPECT_TRUE(jumped);
  static char room[kMost];
  EXPECT_FALSE(copy(room, hole_ - 100, 200));
}

}  // namespace
}  // namespace ringroad::faults
