// What the file of a program says about whether a library can be preloaded into it.
#pragma once

#include <string>

namespace ringroad::cli {

// The parts of an ELF file that decide about preloading; all false for any other file, and for one
// that cannot be read.
struct ElfFacts {
  bool is_elf = false;
  bool own_machine = false;           // same machine and word size as this command
  bool position_independent = false;  // a shared library, or a program linked like one
  bool has_interpreter = false;       // names a dynamic loader
};

ElfFacts inspect_elf(const std::string& path);

// The interpreter that a script's first line (#!) names; empty for any other file.
std::string script_interpreter(const std::string& path);

// The file that execvp(name) would run: `name` itself when it has a slash, else the first
// executable in PATH. `error` is 0, ENOENT (nothing there) or EACCES (there, but not executable);
// the result is empty unless it is 0.
std::string find_program(const std::string& name, int& error);

// Why a library would not be preloaded into this program, as a sentence for a warning that names
// the file; empty when it would. Scripts are judged by their interpreters.
std::string preload_obstacle(const std::string& path);

}  // namespace ringroad::cli
