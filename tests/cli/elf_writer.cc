#include "tests/cli/elf_writer.h"

#include <cstddef>
#include <fstream>

namespace ringroad::cli {
namespace {

// Offsets in the file are addresses, too.
class Image {
 public:
  std::size_t end() const noexcept { return bytes_.size(); }
  template <typename T>
  std::size_t add(const T& record) {
    const std::size_t at = end();
    bytes_.append(reinterpret_cast<const char*>(&record), sizeof record);
    return at;
  }
  std::size_t add_text(const std::string& text) {
    const std::size_t at = end();
    bytes_.append(text.c_str(), text.size() + 1);
    return at;
  }
  template <typename T>
  void put(std::size_t at, const T& record) {
    bytes_.replace(at, sizeof record, reinterpret_cast<const char*>(&record), sizeof record);
  }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

std::size_t add_definitions(Image& image, const std::vector<std::string>& names,
                            const std::function<Elf64_Word(const std::string&)>& string) {
  const std::size_t begin = image.end();
  for (std::size_t i = 0; i <= names.size(); ++i) {
    Elf64_Verdef definition{};
    definition.vd_version = VER_DEF_CURRENT;
    definition.vd_flags = i == 0 ? VER_FLG_BASE : 0;  // the file's own comes first
    definition.vd_ndx = static_cast<Elf64_Half>(i + 1);
    definition.vd_cnt = 1;
    definition.vd_aux = sizeof definition;
    definition.vd_next = i == names.size() ? 0 : sizeof definition + sizeof(Elf64_Verdaux);
    image.add(definition);
    image.add(Elf64_Verdaux{string(i == 0 ? "itself.so" : names[i - 1]), 0});
  }
  return begin;
}

std::size_t add_needs(Image& image, const ElfContent& content,
                      const std::function<Elf64_Word(const std::string&)>& string) {
  const std::size_t begin = image.end();
  for (std::size_t i = 0; i < content.needs.size();) {
    std::size_t next = i;
    while (next < content.needs.size() && content.needs[next].file == content.needs[i].file) ++next;
    Elf64_Verneed need{};
    need.vn_version = VER_NEED_CURRENT;
    need.vn_cnt = static_cast<Elf64_Half>(next - i);
    need.vn_file = string(content.needs[i].file);
    need.vn_aux = sizeof need;
    const bool last = next == content.needs.size();
    need.vn_next =
        last ? 0 : static_cast<Elf64_Word>(sizeof need + (next - i) * sizeof(Elf64_Vernaux));
    image.add(need);
    for (; i < next; ++i) {
      Elf64_Vernaux entry{};
      entry.vna_flags = content.weak ? VER_FLG_WEAK : 0;
      entry.vna_name = string(content.needs[i].version);
      entry.vna_next = i + 1 == next ? 0 : sizeof entry;
      image.add(entry);
    }
  }
  return begin;
}

}  // namespace

std::string write_elf(const ElfContent& content, const std::function<void(ElfTables&)>& damage) {
  ElfTables tables;
  std::ifstream("/proc/self/exe", std::ios::binary)
      .read(reinterpret_cast<char*>(&tables.header), sizeof tables.header);
  const std::size_t most_segments = 3;
  Image image;
  image.add(tables.header);
  for (std::size_t i = 0; i < most_segments; ++i) image.add(Elf64_Phdr{});
  const std::size_t interpreter = image.add_text(content.interpreter);
  const std::size_t strings = image.add_text("");
  const auto string = [&](const std::string& text) {
    return static_cast<Elf64_Word>(image.add_text(text) - strings);
  };
  const auto entry = [&](Elf64_Sxword tag, std::size_t value) {
    Elf64_Dyn dynamic{};
    dynamic.d_tag = tag;
    dynamic.d_un.d_val = value;
    tables.dynamic.push_back(dynamic);
  };
  entry(DT_STRTAB, strings);
  if (!content.soname.empty()) entry(DT_SONAME, string(content.soname));
  if (!content.rpath.empty()) entry(DT_RPATH, string(content.rpath));
  if (!content.runpath.empty()) entry(DT_RUNPATH, string(content.runpath));
  for (const std::string& name : content.needed) entry(DT_NEEDED, string(name));
  // The strings come before the table that names them.
  std::vector<Elf64_Word> texts;
  std::size_t next = 0;
  const auto known = [&](const std::string&) { return texts[next++]; };
  if (!content.defines.empty()) {
    texts = {string("itself.so")};
    for (const std::string& name : content.defines) texts.push_back(string(name));
    entry(DT_VERDEF, add_definitions(image, content.defines, known));
    entry(DT_VERDEFNUM, content.defines.size() + 1);
  }
  if (!content.needs.empty()) {
    texts.clear();
    next = 0;
    std::string file;
    for (const VersionNeed& need : content.needs) {
      if (need.file != file) texts.push_back(string(need.file));
      file = need.file;
      texts.push_back(string(need.version));
    }
    entry(DT_VERNEED, add_needs(image, content, known));
  }
  entry(DT_NULL, 0);
  const std::size_t dynamic = image.end();
  const std::size_t size = dynamic + tables.dynamic.size() * sizeof(Elf64_Dyn);

  const auto segment = [&](Elf64_Word type, std::size_t at, std::size_t bytes) {
    Elf64_Phdr result{};
    result.p_type = type;
    result.p_offset = result.p_vaddr = at;
    result.p_filesz = result.p_memsz = bytes;
    tables.segments.push_back(result);
  };
  segment(PT_LOAD, 0, size);
  if (!content.interpreter.empty()) {
    segment(PT_INTERP, interpreter, content.interpreter.size() + 1);
  }
  segment(PT_DYNAMIC, dynamic, size - dynamic);
  tables.header.e_type = content.type;
  tables.header.e_phoff = sizeof tables.header;
  tables.header.e_phentsize = sizeof(Elf64_Phdr);
  tables.header.e_phnum = static_cast<Elf64_Half>(tables.segments.size());
  tables.header.e_shoff = tables.header.e_shnum = tables.header.e_shstrndx = 0;
  if (damage) damage(tables);
  image.put(0, tables.header);
  for (std::size_t i = 0; i < tables.segments.size(); ++i) {
    image.put(sizeof tables.header + i * sizeof(Elf64_Phdr), tables.segments[i]);
  }
  for (const Elf64_Dyn& record : tables.dynamic) image.add(record);
  return image.bytes();
}

}  // namespace ringroad::cli
