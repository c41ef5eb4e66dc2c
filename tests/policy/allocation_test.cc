// Memory may run out at any allocation; the host process must not notice.

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/policy/support.h"

namespace {

// Allocations of this thread until one fails; negative: none will.
thread_local long allocations_left = -1;

void* allocate(std::size_t size, std::size_t alignment) {
  if (allocations_left == 0) {
    throw std::bad_alloc();
  }
  if (allocations_left > 0) {
    --allocations_left;
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// Not inlined: GCC would take the aligned_alloc() and free() in them for mismatched pairs.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace ringroad::policy {
namespace {

// Loads `text` with ever more memory until nothing fails any more.
void starve(const std::string& text, bool valid) {
  int refusals = 0;
  for (long budget = 0;; ++budget) {
    ASSERT_LT(budget, 100000);
    allocations_left = budget;
    const LoadResult loaded = Policy::load_text(text, "policy.toml");
    const bool enough = allocations_left != 0;
    allocations_left = -1;
    if (enough) {
      EXPECT_EQ(static_cast<bool>(loaded), valid);
      EXPECT_EQ(loaded.errors.empty(), valid);
      EXPECT_GT(refusals, 2);
      return;
    }
    // The last allocation that the budget allows may have been the last one needed.
    if (!loaded && loaded.errors.empty()) {
      ++refusals;
    }
  }
}

TEST(Allocation, AValidPolicyIsRefusedQuietlyWhenMemoryRunsOutAnywhere) {
  starve(one_rule("name = \"a-name-too-long-for-a-small-string\"\nport = [\"1-2\", 3]\n"
                  "program = [\"mariadbd\", \"a-program-with-a-rather-long-name\"]\n"
                  "promote_after = { messages = 1, bytes = \"1KiB\" }\nring = \"4KiB\"\n"
                  "spin = \"1us\"\ndevice = \"mlx5_0\"\ntraffic_class = 1\nvia = \"shm\""),
         true);
}

TEST(Allocation, AnInvalidPolicyIsRefusedQuietlyWhenMemoryRunsOutAnywhere) {
  starve(one_rule("port = [\"2-1\", 0]\nsubnets = 3\nring = \"3KiB\"\nvia = 4"), false);
  starve(one_rule("comm = \"a-name-of-a-program\"\nunit = \"mariadb\"\ncgroup = \"a\"\n"
                  "label = \"a,b\""),
         false);
  starve(one_rule("via = rdma"), false);
  starve(one_rule("via = \"\"\"rdma\"\"\""), false);
}

TEST(Allocation, MatchingAllocatesNothing) {
  const auto policy = must_load(one_rule("port = 3306\nprogram = [\"a*b\", \"[m]ariadb?\"]\n"
                                      "comm = \"m*\"\nunit = \"m*\"\ncgroup = \"/s*\"\nlabel = \"a*\""));
  const Endpoint local = endpoint("10.0.0.1:1");
  const Endpoint remote = endpoint("[fd00::1]:3306");
  Process process("/usr/sbin/mariadbd");
  process.comm = "mariadbd";
  process.cgroup = "/system.slice/mariadb.service";
  process.labels = "tier=db,app=mysql";
  allocations_left = 0;
  const Settings* settings = policy->match(Role::kConnect, process, local, remote);
  allocations_left = -1;
  EXPECT_NE(settings, nullptr);
}

}  // namespace
}  // namespace ringroad::policy
