// What the compiler cannot know of a branch.
#pragma once

namespace ringroad {

// So seldom that all registers may be saved around a call there, for none to be saved otherwise.
[[gnu::always_inline]] inline bool hardly_ever(bool condition) noexcept {
  return __builtin_expect_with_probability(condition, false, 0.9999);
}

}  // namespace ringroad
