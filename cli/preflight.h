// Whether the library can be preloaded into a program: what the loader will find is looked at
// first, as a library that does not fit may end the program before its main().
#pragma once

#include <string>

#include "cli/rooted_file.h"

namespace ringroad::cli {

// What the files say of a program, of the loader that it asks for and of the libc that this loader
// would find.
struct ProgramFacts {
  // errno of looking at it. Then only `file` is set, where it was found, and what stat(2) tells of a file
  // that this user may start and not read.
  int error = 0;
  std::string file;  // the program that the loader sees: a script's interpreter
  bool is_elf = false;
  bool own_machine = false;   // same machine and word size as this command
  std::string loader;         // the dynamic loader that it names; empty: linked statically
  bool foreign_libc = false;  // that loader is not glibc's: musl's, most often
  bool go = false;            // made by the Go compiler
  bool set_user = false;      // the bits of the file, whichever user starts it
  bool set_group = false;
  bool capabilities = false;
  unsigned owner = 0;
  unsigned group = 0;
  // Empty: not found. Whether the program can be preloaded is then not known.
  std::string libc;          // the file that the loader finds as libc.so.6
  std::string libc_version;  // the newest that it defines
  std::string needed;        // the newest that the library needs of it
  // Empty: none is lacking. Else a version that the library needs and this file does not define.
  std::string lacks;
  std::string lacks_file;
};

// Why a library is not, or must not be, preloaded.
enum class Obstacle : unsigned char {
  kNone,
  kStatic,        // there is no loader
  kOtherMachine,  // the loader would print an error and leave it out
  kForeignLibc,   // its symbols would be missing
  kOldLibc,       // their versions would be
};

// `name` has a slash, or is looked for in PATH (below another root: in the usual folders). Scripts
// are judged by their interpreters, and `#!/usr/bin/env NAME` by NAME. `library`: the one to be
// preloaded, a path outside of the root; where it cannot be read, versions are not judged.
ProgramFacts inspect_program(const std::string& name, const Root& root, const std::string& library);

Obstacle obstacle_of(const ProgramFacts& facts) noexcept;
// The loader ends the program before it starts.
bool ends_program(Obstacle obstacle) noexcept;
// LD_PRELOAD must not name the library then: the loader would end the program, or complain.
bool must_be_left_out(Obstacle obstacle) noexcept;
// What stands in the way, without the remedy; empty for kNone.
std::string reason_of(const ProgramFacts& facts);
std::string remedy_of(const ProgramFacts& facts);
// With what the program gains privileges when this user starts it, so that the loader drops the
// preloaded library; empty: with nothing.
std::string privileges_of(const ProgramFacts& facts);
// "/lib64/libc.so.6 has up to GLIBC_2.36, the library needs GLIBC_2.17"; empty where either is not
// known.
std::string versions_of(const ProgramFacts& facts);

}  // namespace ringroad::cli
