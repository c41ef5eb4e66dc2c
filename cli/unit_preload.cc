#include "cli/unit_preload.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

namespace ringroad::cli {
namespace {

constexpr std::string_view kName = "LD_PRELOAD=";

// Lines of a unit file or an environment file, continued ones in one.
std::vector<std::string> logical_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  bool goes_on = false;
  for (std::string line; std::getline(in, line);) {
    const bool continues = !line.empty() && line.back() == '\\';
    if (continues) line.back() = ' ';
    if (goes_on) {
      lines.back() += line;
    } else {
      lines.push_back(doctor::trimmed(line));
    }
    goes_on = continues;
  }
  return lines;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool is_comment(const std::string& line) { return line.empty() || line[0] == '#' || line[0] == ';'; }

// What a unit file leaves of the value that those before it have said.
void take_unit_file(const std::string& path, const std::string& text, UnitPreload& preload,
                    bool after_the_generators) {
  constexpr std::string_view kSetting = "Environment=";
  bool in_service = false;
  for (const std::string& line : logical_lines(text)) {
    if (is_comment(line)) continue;
    if (line[0] == '[') in_service = line == "[Service]";
    if (!in_service || !line.starts_with(kSetting)) continue;
    const std::string said = doctor::trimmed(line.substr(kSetting.size()));
    std::string value;
    if (!said.empty() && !find_preload(said, value)) continue;
    preload.value = value;  // an empty Environment= forgets all
    preload.stays = after_the_generators && !said.empty();
    preload.from = said.empty() ? "" : path;
  }
}

bool take_environment_file(const std::string& text, std::string& value) {
  bool found = false;
  for (const std::string& line : logical_lines(text)) {
    if (is_comment(line) || !line.starts_with(kName)) continue;
    value = line.substr(kName.size());
    const char quote = value.empty() ? ' ' : value.front();
    if (quote == '"' || quote == '\'') value = value.substr(1, value.find(quote, 1) - 1);
    found = true;
  }
  return found;
}

// The files that a pattern of EnvironmentFile= means, in the order of glob(3), which systemd asks. A path
// without a pattern is itself.
std::vector<std::string> files_like(doctor::Host& host, const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) return {pattern};
  std::vector<std::string> found = {""};
  std::istringstream parts(pattern);
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty()) continue;
    std::vector<std::string> below;
    for (const std::string& folder : found) {
      if (part.find_first_of("*?[") == std::string::npos) {
        below.push_back(folder + "/" + part);
        continue;
      }
      for (const std::string& name : host.list(folder.empty() ? "/" : folder).names) {
        if (fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) below.push_back(folder + "/" + name);
      }
    }
    found = std::move(below);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool find_preload(const std::string& environment, std::string& value) {
  bool found = false;
  for (std::size_t at = 0; (at = environment.find(kName, at)) != std::string::npos;) {
    const char before = at == 0 ? ' ' : environment[at - 1];
    at += kName.size();
    if (before != ' ' && before != '"' && before != '\'') continue;
    value = environment.substr(at, environment.find(before, at) - at);
    found = true;
  }
  return found;
}

UnitPreload read_unit_preload(doctor::Host& host, const doctor::Unit& unit, const std::string& own_file) {
  UnitPreload preload;
  bool after_the_generators = false;
  for (const std::string& path : words_of(unit["FragmentPath"] + " " + unit["DropInPaths"])) {
    if (doctor::last_part(path) == kGeneratedDropIn) {
      after_the_generators = true;
    } else {
      take_unit_file(path, host.text(path), preload, after_the_generators);
    }
  }
  // "/etc/default/mysql (ignore_errors=yes); /run/ringroad/mysql.env (ignore_errors=yes)"
  for (const std::string& path : words_of(unit["EnvironmentFiles"])) {
    if (path[0] != '/') continue;
    for (const std::string& file : files_like(host, path)) {
      if (file == own_file || !take_environment_file(host.text(file), preload.value)) continue;
      preload.stays = false;
      preload.from = file;
    }
  }
  return preload;
}

}  // namespace ringroad::cli
