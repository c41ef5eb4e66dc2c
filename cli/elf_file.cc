#include "cli/elf_file.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace ringroad::cli {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kOwnMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kOwnMachine = EM_AARCH64;
#endif

// The kernel runs no program with more bytes of program headers.
constexpr std::size_t kMostSegments = 65536 / sizeof(Elf64_Phdr);
constexpr std::size_t kMostDynamic = 4096;   // entries; a program with many libraries has 200
constexpr std::size_t kMostVersions = 4096;  // in all; glibc defines 50, and needs 5
constexpr std::size_t kMostText = PATH_MAX;  // of one string
constexpr std::size_t kMostSections = 4096;
constexpr std::size_t kMostSectionNames = 1U << 20;

class Reader {
 public:
  explicit Reader(int fd) noexcept : fd_(fd) {}

  // True: all `size` bytes were there. pread(2) itself refuses offsets that no file has.
  bool bytes(std::uint64_t offset, void* out, std::size_t size) const noexcept {
    auto* to = static_cast<char*>(out);
    while (size > 0) {
      const ssize_t n = pread(fd_, to, size, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      to += n;
      offset += static_cast<std::uint64_t>(n);
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }

  template <typename T>
  bool record(std::uint64_t offset, T& out) const noexcept {
    return bytes(offset, &out, sizeof out);
  }

  // Up to its zero; empty where there is none within the bound.
  std::string text(std::uint64_t offset) const {
    std::string result;
    char block[256];
    while (result.size() < kMostText) {
      const ssize_t n = pread(fd_, block, sizeof block, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return {};
      const auto size = static_cast<std::size_t>(n);
      const std::size_t length = strnlen(block, size);
      result.append(block, length);
      if (length < size) return result;
      offset += size;
    }
    return {};
  }

 private:
  const int fd_;
};

// The tables that the dynamic segment names by their addresses.
class Dynamic {
 public:
  Dynamic(const Reader& file, const std::vector<Elf64_Phdr>& segments)
      : file_(file), segments_(segments) {
    for (const Elf64_Phdr& segment : segments) {
      if (segment.p_type != PT_DYNAMIC) continue;
      const std::size_t count =
          std::min<std::uint64_t>(kMostDynamic, segment.p_filesz / sizeof(Elf64_Dyn));
      for (std::size_t i = 0; i < count; ++i) {
        Elf64_Dyn entry;
        if (!file_.record(segment.p_offset + i * sizeof entry, entry)) break;
        if (entry.d_tag == DT_NULL) break;
        entries_.push_back(entry);
      }
      break;  // as the loader, which takes the first
    }
    strings_ = offset_of(value(DT_STRTAB));
  }

  void fill(ElfFile& out) const {
    if (!strings_) return;
    for (const Elf64_Dyn& entry : entries_) {
      if (entry.d_tag == DT_NEEDED) out.needed.push_back(string(entry.d_un.d_val));
      if (entry.d_tag == DT_SONAME) out.soname = string(entry.d_un.d_val);
      if (entry.d_tag == DT_RPATH) out.rpath = string(entry.d_un.d_val);
      if (entry.d_tag == DT_RUNPATH) out.runpath = string(entry.d_un.d_val);
    }
    std::size_t budget = kMostVersions;
    read_definitions(out.defines, budget);
    read_needs(out.needs, budget);
  }

 private:
  std::optional<std::uint64_t> value(Elf64_Sxword tag) const noexcept {
    for (const Elf64_Dyn& entry : entries_) {
      if (entry.d_tag == tag) return entry.d_un.d_val;
    }
    return std::nullopt;
  }

  std::optional<std::uint64_t> offset_of(std::optional<std::uint64_t> address) const noexcept {
    if (!address) return std::nullopt;
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type == PT_LOAD && *address >= segment.p_vaddr &&
          *address - segment.p_vaddr < segment.p_filesz) {
        return *address - segment.p_vaddr + segment.p_offset;
      }
    }
    return std::nullopt;
  }

  std::string string(std::uint64_t at) const { return file_.text(*strings_ + at); }

  void read_definitions(std::vector<std::string>& out, std::size_t& budget) const {
    std::optional<std::uint64_t> at = offset_of(value(DT_VERDEF));
    while (at && budget > 0) {
      --budget;
      Elf64_Verdef definition;
      Elf64_Verdaux name;
      if (!file_.record(*at, definition)) return;
      // The one of the file itself names no version.
      if ((definition.vd_flags & VER_FLG_BASE) == 0 &&
          file_.record(*at + definition.vd_aux, name)) {
        out.push_back(string(name.vda_name));
      }
      if (definition.vd_next == 0) return;
      *at += definition.vd_next;
    }
  }

  void read_needs(std::vector<VersionNeed>& out, std::size_t& budget) const {
    std::optional<std::uint64_t> at = offset_of(value(DT_VERNEED));
    while (at && budget > 0) {
      --budget;
      Elf64_Verneed need;
      if (!file_.record(*at, need)) return;
      const std::string file = string(need.vn_file);
      std::uint64_t entry_at = *at + need.vn_aux;
      while (budget > 0) {
        --budget;
        Elf64_Vernaux entry;
        if (!file_.record(entry_at, entry)) return;
        if ((entry.vna_flags & VER_FLG_WEAK) == 0) out.push_back({file, string(entry.vna_name)});
        if (entry.vna_next == 0) break;
        entry_at += entry.vna_next;
      }
      if (need.vn_next == 0) return;
      *at += need.vn_next;
    }
  }

  const Reader& file_;
  const std::vector<Elf64_Phdr>& segments_;
  std::vector<Elf64_Dyn> entries_;
  std::optional<std::uint64_t> strings_;
};

// The Go linker leaves these sections also in stripped programs.
bool made_by_go(const Reader& file, const Elf64_Ehdr& header) {
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) return false;
  Elf64_Shdr section;
  const auto at = [&](std::uint64_t index) {
    return file.record(header.e_shoff + index * sizeof section, section);
  };
  if (!at(header.e_shstrndx) || section.sh_size > kMostSectionNames) return false;
  std::string names(section.sh_size, '\0');
  if (!file.bytes(section.sh_offset, names.data(), names.size())) return false;
  const std::size_t count = std::min<std::size_t>(header.e_shnum, kMostSections);
  for (std::size_t i = 0; i < count && at(i); ++i) {
    if (section.sh_name >= names.size()) continue;
    const std::string_view name = names.c_str() + section.sh_name;
    if (name == ".go.buildinfo" || name == ".note.go.buildid" || name == ".gopclntab") return true;
  }
  return false;
}

}  // namespace

ElfFile read_elf(int fd) {
  ElfFile result;
  const Reader file(fd);
  Elf64_Ehdr header;
  if (!file.record(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return result;
  result.is_elf = true;
  result.own_machine = header.e_machine == kOwnMachine &&
                       header.e_ident[EI_CLASS] == ELFCLASS64 &&
                       header.e_ident[EI_DATA] == ELFDATA2LSB;
  // Beyond the identification, other word sizes are laid out differently.
  if (!result.own_machine || header.e_phentsize != sizeof(Elf64_Phdr)) return result;
  result.position_independent = header.e_type == ET_DYN;
  std::vector<Elf64_Phdr> segments;
  for (std::size_t i = 0; i < header.e_phnum && i < kMostSegments; ++i) {
    Elf64_Phdr segment;
    if (!file.record(header.e_phoff + i * sizeof segment, segment)) break;
    segments.push_back(segment);
    if (segment.p_type != PT_INTERP || result.has_interpreter) continue;
    result.has_interpreter = true;
    if (segment.p_filesz <= PATH_MAX) result.interpreter = file.text(segment.p_offset);
  }
  Dynamic(file, segments).fill(result);
  result.go = made_by_go(file, header);
  return result;
}

bool version_less(const std::string& a, const std::string& b) noexcept {
  return strverscmp(a.c_str(), b.c_str()) < 0;
}

}  // namespace ringroad::cli
