#include "policy/criteria.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstddef>

namespace ringroad::policy {
namespace {

constexpr std::size_t kLongestName = 63;
constexpr std::size_t kLongestDevice = 63;  // IBV_SYSFS_NAME_MAX is 64 with the final zero
constexpr std::int64_t kLargestPort = 65535;
constexpr std::size_t kLongestComm = 15;  // TASK_COMM_LEN is 16 with the final zero
constexpr std::string_view kCgroupMount = "/sys/fs/cgroup/";

template <typename Number>
std::optional<Number> whole_number(std::string_view text) noexcept {
  Number number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) {
    return std::nullopt;
  }
  return number;
}

std::string without_spaces(std::string_view text) {
  std::string result(text);
  result.erase(std::remove(result.begin(), result.end(), ' '), result.end());
  return result;
}

// 255.255.255.0 is 24; none if the set bits are not all in front.
std::optional<unsigned> length_of_netmask(std::string_view text) noexcept {
  const std::optional<Address> mask = Address::parse(text);
  if (!mask || !mask->is_v4()) {
    return std::nullopt;
  }
  unsigned length = 0;
  while (length < mask->bits() && mask->bit(length)) {
    ++length;
  }
  return *mask == Prefix::of(*mask, length).addr ? std::optional(length) : std::nullopt;
}

bool is_word(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

std::string as_word(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kLongestName)) {
    if (is_word(c)) {
      result += c;
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  while (result.ends_with('-')) {
    result.pop_back();
  }
  return result;
}

// What is compared is at most as long as the name of a file.
bool check_length(std::string_view glob, std::string_view key, Complaint& complaint) {
  if (glob.size() <= NAME_MAX && glob.find('\0') == std::string_view::npos) return true;
  complaint = {"no " + std::string(key) + " can have such a name",
               "it has at most " + std::to_string(NAME_MAX) + " bytes, and no zero byte"};
  return false;
}

}  // namespace

std::optional<Prefix> parse_subnet(std::string_view text, Complaint& complaint) {
  const std::size_t slash = text.find('/');
  const std::optional<Address> address = Address::parse(text.substr(0, slash));
  if (!address) {
    complaint.message = in_quotes(text) + " is not a subnet";
    complaint.remedy = "subnets are numeric, such as \"192.168.100.0/24\" or \"fd00:100::/64\"";
    return std::nullopt;
  }
  if (slash == std::string_view::npos) {
    complaint.message = in_quotes(text) + " has no prefix length";
    complaint.remedy = "write " + in_quotes(Prefix{*address, address->bits()}.to_string()) +
                       " for this address alone";
    return std::nullopt;
  }

  // "::ffff:10.0.0.0/104" counts the bits of the IPv6 spelling.
  const bool mapped = address->is_v4() && text.find(':') < slash;
  const unsigned mapped_bits = mapped ? 96U : 0U;
  const unsigned longest = address->bits() + mapped_bits;
  const std::string_view length_text = text.substr(slash + 1);
  const std::optional<unsigned> length = whole_number<unsigned>(length_text);
  if (!length) {
    const std::optional<unsigned> netmask = length_of_netmask(length_text);
    complaint.message =
        in_quotes(length_text) + " in " + in_quotes(text) + " is not a prefix length";
    complaint.remedy = netmask && !mapped
                           ? "write " + in_quotes(Prefix::of(*address, *netmask).to_string())
                           : "it is a number from 0 to " + std::to_string(longest);
    return std::nullopt;
  }
  if (*length > longest) {
    complaint.message = "prefix length " + std::to_string(*length) + " in " + in_quotes(text) +
                        " is more than " + std::to_string(longest);
    complaint.remedy = "an " + std::string(longest == 32U ? "IPv4" : "IPv6") + " address has " +
                       std::to_string(longest) + " bits";
    return std::nullopt;
  }
  if (*length < mapped_bits) {
    complaint.message = in_quotes(text) + " mixes IPv4 and IPv6 addresses";
    complaint.remedy = "an IPv4 subnet is written as \"10.0.0.0/8\"";
    return std::nullopt;
  }
  const Prefix prefix = Prefix::of(*address, *length - mapped_bits);
  if (prefix.addr != *address) {
    complaint.message = in_quotes(text) + " has bits set after its prefix";
    complaint.remedy = "write " + in_quotes(prefix.to_string()) + " for the subnet or " +
                       in_quotes(Prefix{*address, address->bits()}.to_string()) +
                       " for the address";
    return std::nullopt;
  }
  return prefix;
}

std::optional<PortRange> parse_ports(std::string_view text, Complaint& complaint) {
  const std::size_t dash = text.find('-');
  const std::optional<std::int64_t> first = whole_number<std::int64_t>(text.substr(0, dash));
  const std::optional<std::int64_t> last =
      dash == std::string_view::npos ? first : whole_number<std::int64_t>(text.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < 0) {
    Complaint unused;
    const std::string compact = without_spaces(text);
    const bool only_spaces =
        compact.size() != text.size() && parse_ports(compact, unused).has_value();
    complaint.message = in_quotes(text) + " is not a port";
    complaint.remedy = only_spaces ? "write " + in_quotes(compact)
                                   : "ports are numbers, such as \"3306\" or \"4567-4568\"";
    return std::nullopt;
  }
  const std::optional<PortRange> low = port_from_number(*first, complaint);
  const std::optional<PortRange> high = port_from_number(*last, complaint);
  if (!low || !high) {
    return std::nullopt;
  }
  const PortRange range{low->first, high->first};
  if (range.first > range.last) {
    complaint.message = "port range " + in_quotes(text) + " runs backwards";
    complaint.remedy = "write " + in_quotes(PortRange{range.last, range.first}.to_string());
    return std::nullopt;
  }
  return range;
}

std::optional<PortRange> port_from_number(std::int64_t number, Complaint& complaint) {
  if (number < 1 || number > kLargestPort) {
    complaint.message = "port " + std::to_string(number) + " does not exist";
    complaint.remedy = "ports are 1 to " + std::to_string(kLargestPort);
    return std::nullopt;
  }
  const auto port = static_cast<std::uint16_t>(number);
  return PortRange{port, port};
}

bool check_glob(std::string_view glob, Complaint& complaint) {
  if (glob.empty()) {
    complaint.message = "an empty program matches nothing";
    complaint.remedy = "leave \"program\" out to match every program";
    return false;
  }
  const std::size_t slash = glob.rfind('/');
  if (slash != std::string_view::npos) {
    const std::string_view last = glob.substr(slash + 1);
    complaint.message = "program " + in_quotes(glob) + " is a path";
    complaint.remedy = "programs are compared by their base name" +
                       (last.empty() ? std::string() : ": write " + in_quotes(last));
    return false;
  }
  if (glob.size() > NAME_MAX || glob.find('\0') != std::string_view::npos) {
    complaint.message = "no program can have such a name";
    complaint.remedy = "a base name has at most " + std::to_string(NAME_MAX) + " bytes";
    return false;
  }
  return true;
}

bool check_comm(std::string_view glob, Complaint& complaint) {
  if (glob.empty()) {
    complaint = {"an empty comm matches nothing", "leave \"comm\" out to match every process"};
    return false;
  }
  if (is_literal(glob) && glob.size() > kLongestComm) {
    complaint = {"comm " + in_quotes(glob) + " is longer than the " + std::to_string(kLongestComm) +
                     " bytes that the kernel keeps",
                 "write " + in_quotes(glob.substr(0, kLongestComm))};
    return false;
  }
  return check_length(glob, "comm", complaint);
}

bool check_unit(std::string_view glob, Complaint& complaint) {
  if (glob.empty()) {
    complaint = {"an empty unit matches nothing", "leave \"unit\" out to match every process"};
    return false;
  }
  if (glob.find('/') != std::string_view::npos) {
    complaint = {"unit " + in_quotes(glob) + " is a path",
                 "write the unit's name, such as \"mariadb.service\", or use \"cgroup\""};
    return false;
  }
  const bool is_open = std::string_view("*?]").find(glob.back()) != std::string_view::npos;
  if (!is_open && !glob.ends_with(".service") && !glob.ends_with(".scope") && !glob.ends_with(".slice")) {
    complaint = {in_quotes(glob) + " is no service, scope or slice, and no process is in another unit",
                 "write " + in_quotes(std::string(glob.substr(0, glob.rfind('.'))) + ".service")};
    return false;
  }
  return check_length(glob, "unit", complaint);
}

bool check_cgroup(std::string_view glob, Complaint& complaint) {
  const std::string text = "cgroup " + in_quotes(glob);
  std::string better;
  std::string_view rest = glob.starts_with(kCgroupMount) ? glob.substr(kCgroupMount.size()) : glob;
  for (auto part = take_part(rest, "/"); !part.empty(); part = take_part(rest, "/")) {
    if (!check_length(part, "cgroup", complaint)) return false;
    better += "/" + std::string(part);
  }
  if (better.empty()) {
    complaint = {text + " is that of every process", "leave \"cgroup\" out"};
    return false;
  }
  if (better == glob) return true;
  complaint = {text + (glob.starts_with(kCgroupMount) ? " is a path in the file system"
                                                      : " is not a path as /proc/PID/cgroup has it"),
               "write " + in_quotes(better)};
  return false;
}

bool check_label(std::string_view glob, Complaint& complaint) {
  if (glob.empty()) {
    complaint = {"an empty label matches nothing", "leave \"label\" out to match every process"};
    return false;
  }
  if (glob.find_first_of(kLabelSeparators) != std::string_view::npos) {
    complaint = {"label " + in_quotes(glob) + " has a comma or a blank, which separate labels",
                 R"(write each label by itself: label = ["app=mysql", "tier=db"])"};
    return false;
  }
  return check_length(glob, "label", complaint);
}

bool check_name(std::string_view name, Complaint& complaint) {
  if (!name.empty() && name.size() <= kLongestName &&
      std::all_of(name.begin(), name.end(), is_word)) {
    return true;
  }
  const std::string better = as_word(name);
  complaint.message = in_quotes(name) + " cannot be the name of a rule";
  complaint.remedy = "use 1 to " + std::to_string(kLongestName) +
                     " letters, digits, '.', '_' and '-'" +
                     (better.empty() ? std::string() : ", such as " + in_quotes(better));
  return false;
}

bool check_device(std::string_view device, Complaint& complaint) {
  const bool printable = std::all_of(device.begin(), device.end(),
                                     [](char c) { return c > ' ' && c <= '~' && c != '/'; });
  if (!device.empty() && device.size() <= kLongestDevice && printable) {
    return true;
  }
  complaint.message = in_quotes(device) + " cannot be the name of an RDMA device";
  complaint.remedy = "\"rdma link\" lists them; leave \"device\" out to choose it by route";
  return false;
}

}  // namespace ringroad::policy
