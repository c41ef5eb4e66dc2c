// What a systemd service preloads besides the library, and where that is said.
//
//   Environment=       of the unit and its drop-ins, in systemd's order: the last one holds
//   EnvironmentFile=   before any Environment=: the last file that names the variable holds
//
// ringroad-generator's drop-in sets LD_PRELOAD, and so takes the place of what the unit or an earlier drop-in
// had there, or loses against a file such as /etc/default/mysql. One that is named later has the last word.
//
// Thread rule: one thread.
#pragma once

#include <string>

#include "cli/doctor/host.h"
#include "cli/doctor/unit.h"

namespace ringroad::cli {

// The generator's drop-in, in whatever folder.
inline constexpr const char* kGeneratedDropIn = "50-ringroad.conf";

struct UnitPreload {
  std::string value;   // the LD_PRELOAD of the service without the generator's
  bool stays = false;  // it was said after the generator's: the library is added to nothing
  std::string from;    // the file that said it; "" if none did
};

// `own_file`: the EnvironmentFile= that the generator's drop-in names; it is passed over. `unit`: with
// FragmentPath, DropInPaths and EnvironmentFiles.
UnitPreload read_unit_preload(doctor::Host& host, const doctor::Unit& unit, const std::string& own_file);

// The last LD_PRELOAD of "A=1 LD_PRELOAD=/x.so:/y.so 'B=2 3'", as Environment= and `systemctl show` have it.
// False: there is none.
bool find_preload(const std::string& environment, std::string& value);

}  // namespace ringroad::cli
