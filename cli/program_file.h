// How the kernel and env(1) find the file of a program, and the interpreter of a script.
#pragma once

#include <string>

#include "cli/rooted_file.h"

namespace ringroad::cli {

// The first line of a script.
struct ScriptLine {
  std::string interpreter;  // empty: the file is no script
  std::string argument;     // all the rest of the line: the kernel passes it as one
};

ScriptLine read_script_line(int fd);

// The program that env(1) starts when it is given the argument of a script's first line ("node",
// "-S node --x"); empty where that takes more than a look at the words.
std::string program_of_env(const std::string& argument);

// The file that execvp(name) would run: `name` itself when it has a slash, else the first
// executable in PATH; below another root, in the folders that PATH usually names. `error` is 0,
// ENOENT (nothing there) or EACCES (there, but not executable); the result is empty unless it is 0.
std::string find_program(const std::string& name, int& error, const Root& root = Root());

}  // namespace ringroad::cli
