#include "cli/doctor/program_facts.h"

#include <cerrno>
#include <nlohmann/json.hpp>

namespace ringroad::cli::doctor {

using nlohmann::json;

std::string to_text(const ProgramFacts& facts) {
  return json({{"error", facts.error},
               {"file", facts.file},
               {"is_elf", facts.is_elf},
               {"own_machine", facts.own_machine},
               {"loader", facts.loader},
               {"foreign_libc", facts.foreign_libc},
               {"go", facts.go},
               {"set_user", facts.set_user},
               {"set_group", facts.set_group},
               {"capabilities", facts.capabilities},
               {"owner", facts.owner},
               {"group", facts.group},
               {"libc", facts.libc},
               {"libc_version", facts.libc_version},
               {"needed", facts.needed},
               {"lacks", facts.lacks},
               {"lacks_file", facts.lacks_file}})
             .dump(2, ' ', false, json::error_handler_t::replace) +
         "\n";
}

ProgramFacts program_facts_from_text(const std::string& text) {
  ProgramFacts facts;
  try {
    const json object = json::parse(text);
    facts.error = object.value("error", 0);
    facts.file = object.value("file", std::string());
    facts.is_elf = object.value("is_elf", false);
    facts.own_machine = object.value("own_machine", false);
    facts.loader = object.value("loader", std::string());
    // A record of an older release tells musl by this name alone.
    const bool musl = facts.loader.find("musl") != std::string::npos;
    facts.foreign_libc = object.value("foreign_libc", musl);
    facts.go = object.value("go", false);
    facts.set_user = object.value("set_user", false);
    facts.set_group = object.value("set_group", false);
    facts.capabilities = object.value("capabilities", false);
    facts.owner = object.value("owner", 0U);
    facts.group = object.value("group", 0U);
    facts.libc = object.value("libc", std::string());
    facts.libc_version = object.value("libc_version", std::string());
    facts.needed = object.value("needed", std::string());
    facts.lacks = object.value("lacks", std::string());
    facts.lacks_file = object.value("lacks_file", std::string());
  } catch (const json::exception&) {
    facts = {};
    facts.error = EINVAL;
  }
  return facts;
}

}  // namespace ringroad::cli::doctor
