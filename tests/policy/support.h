// What the policy's tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <string_view>

#include "policy/policy.h"

namespace ringroad::policy {

// Of what is drawn at random, a sanitizer's build tries so many times less in the same time.
#ifdef __SANITIZE_ADDRESS__
inline constexpr int kSlowdown = 8;
#else
inline constexpr int kSlowdown = 1;
#endif

inline constexpr std::string_view kEverything = R"(subnet = ["0.0.0.0/0", "::/0"])";

// A file of one rule that has a subnet and the given lines. The rule's header is on line 2, its
// subnet on line 3 and the first given line on line 4.
inline std::string one_rule(std::string_view lines) {
  return "version = 1\n[[rule]]\n" + std::string(kEverything) + "\n" + std::string(lines) + "\n";
}

inline std::string all_of(const std::vector<Error>& errors, std::string_view severity = "error") {
  std::string text;
  for (const Error& error : errors) {
    text += to_string(error, severity) + "\n";
  }
  return text;
}

inline std::shared_ptr<const Policy> must_load(std::string_view text,
                                               std::string_view name = "policy.toml") {
  LoadResult loaded = Policy::load_text(text, name);
  EXPECT_TRUE(loaded) << all_of(loaded.errors) << "in\n" << text;
  if (!loaded) {
    loaded = Policy::load({});
  }
  return loaded.policy;
}

inline Endpoint endpoint(std::string_view text) {
  const std::optional<Endpoint> parsed = Endpoint::parse(text);
  EXPECT_TRUE(parsed.has_value()) << text;
  return parsed.value_or(Endpoint{});
}

// A different run each time, repeatable by POLICY_TEST_SEED.
inline std::uint32_t test_seed() {
  const char* given = std::getenv("POLICY_TEST_SEED");
  const std::uint32_t seed = given != nullptr
                                 ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))
                                 : std::random_device{}();
  std::cout << "POLICY_TEST_SEED=" << seed << std::endl;
  return seed;
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}

  // From 0 to below `bound`.
  std::size_t below(std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(engine_);
  }
  bool one_in(std::size_t n) { return below(n) == 0; }

  template <typename Items>
  const auto& pick(const Items& items) {
    return items[below(std::size(items))];
  }

 private:
  std::mt19937 engine_;
};

}  // namespace ringroad::policy
