// What the compiler cannot know of a branch.
#pragma once

// Of a variable: it is this object's own, and read without a look into the global offset table.
#define RR_HIDDEN __attribute__((visibility("hidden")))

// Behind a label: what goes there does so hardly ever. clang has no such attribute.
#if defined(__clang__)
#define RR_COLD_LABEL
#else
#define RR_COLD_LABEL __attribute__((cold))
#endif

namespace ringroad {

// So seldom that all registers may be saved around a call there, for none to be saved otherwise.
[[gnu::always_inline]] inline bool hardly_ever(bool condition) noexcept {
  return __builtin_expect_with_probability(condition, false, 0.9999);
}

// So often that what follows stands before what does not. Not around a try_lock(): clang's analysis does not
// see through it, but through __builtin_expect().
[[gnu::always_inline]] inline bool mostly(bool condition) noexcept {
  return __builtin_expect(condition, true);
}

// Has `kept` stand in memory from here on. Over a call that is rarely followed by a use of it that is less
// work than registers, which would have to be saved first.
template <typename T>
[[gnu::always_inline]] inline void keep_in_memory(T& kept) noexcept {
  asm("" : "+m"(kept));
}

// What processors move between memory and caches, and between each other.
inline constexpr unsigned long kLineBytes = 64;

// A line that is soon written to, or read. Nothing is read by this: the address may be anything.
[[gnu::always_inline]] inline void prefetch(unsigned long address) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}
[[gnu::always_inline]] inline void prefetch_to_write(const void* address) noexcept {
#if defined(__x86_64__)
  asm("prefetchw %0" : : "m"(*static_cast<const char*>(address)));  // does nothing where it is not known
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace ringroad
