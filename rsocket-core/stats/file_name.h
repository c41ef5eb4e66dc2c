// The name of a process' file in the runtime directory, which processes of several pid namespaces may share:
// "4711", and outside the initial pid namespace "7-4026532179", with the inode number of /proc/PID/ns/pid.
// Older libraries wrote "7" there, too. What stands beside a file begins with its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace ringroad::stats {

// PROC_PID_INIT_INO of the kernel: the same on every host and at every start.
inline constexpr std::uint64_t kInitialPidNamespace = 0xEFFFFFFC;

struct FileName {
  std::uint32_t pid = 0;
  std::uint64_t pid_namespace = 0;  // 0: the name has none

  // Of a process; a namespace of 0 is not known.
  static constexpr FileName of(std::uint32_t pid, std::uint64_t pid_namespace) noexcept {
    return {pid, pid_namespace == kInitialPidNamespace ? 0 : pid_namespace};
  }
  // What `text` begins with; `end` is behind it. A pid of 0: no such name.
  static FileName at(const char* text, const char*& end) noexcept {
    FileName name;
    end = text;
    std::uint64_t number = 0;
    if (!take_number(end, number) || number > INT32_MAX) return {};
    name.pid = static_cast<std::uint32_t>(number);
    const char* behind = end + 1;
    if (*end == '-' && take_number(behind, name.pid_namespace)) end = behind;
    return name;
  }

  static constexpr std::size_t kBytes = 40;
  void write(char (&text)[kBytes]) const noexcept {
    if (pid_namespace == 0) {
      std::snprintf(text, sizeof text, "%u", pid);
    } else {
      std::snprintf(text, sizeof text, "%u-%llu", pid, static_cast<unsigned long long>(pid_namespace));
    }
  }

 private:
  // Without a zero in front, so that a number has one spelling.
  static bool take_number(const char*& at, std::uint64_t& number) noexcept {
    constexpr int kMostDigits = 19;
    if (*at < '1' || *at > '9') return false;
    const char* digit = at;
    std::uint64_t value = 0;
    for (; *digit >= '0' && *digit <= '9'; ++digit) {
      if (digit - at == kMostDigits) return false;
      value = 10 * value + static_cast<std::uint64_t>(*digit - '0');
    }
    at = digit;
    number = value;
    return true;
  }
};

}  // namespace ringroad::stats
