// What the file of a program, and of the interpreter that its first line names, says about
// preloading.
#pragma once

#include <string>

namespace ringroad::cli::doctor {

struct ProgramFacts {
  int error = 0;     // errno of looking at it; nothing else is set then
  std::string file;  // the program that the loader sees: a script's interpreter
  bool is_elf = false;
  bool own_machine = false;  // same machine and word size as this command
  std::string loader;        // the dynamic loader that it names; empty: linked statically
  bool go = false;           // made by the Go compiler
  bool set_user = false;     // the bits of the file, whoever starts it
  bool set_group = false;
  bool capabilities = false;
  unsigned owner = 0;
  unsigned group = 0;
};

// `path` with a slash, or a name to look for in PATH.
ProgramFacts inspect_program(const std::string& path);

// As a line of a file, and back; what cannot be read gives EINVAL as its error.
std::string to_text(const ProgramFacts& facts);
ProgramFacts program_facts_from_text(const std::string& text);

}  // namespace ringroad::cli::doctor
