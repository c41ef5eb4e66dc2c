#include "cli/stream_filter.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "cli/text.h"
#include "policy/prefix.h"

namespace ringroad::cli {
namespace {

// Deep enough for a person who writes one by hand.
constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxWords = 10'000;

struct Wrong {
  std::string why;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string in_quotes(std::string_view text) { return "\"" + printable(text) + "\""; }

// What else there would have been.
template <typename Names>
std::string listed(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

// ---- Words

bool is_operator_sign(char c) { return c == '=' || c == '!' || c == '<' || c == '>'; }

std::vector<std::string> words_of(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (const std::string& text : arguments) {
    for (std::size_t at = 0; at < text.size();) {
      const char c = text[at];
      std::size_t end = at + 1;
      if (c == ' ' || c == '\t' || c == '\n') {
        at = end;
        continue;
      }
      if (is_operator_sign(c)) {
        while (end < text.size() && text[end] == '=') ++end;
      } else if (c == '&' || c == '|') {
        while (end < text.size() && text[end] == c) ++end;
      } else if (c != '(' && c != ')') {
        end = text.find_first_of(" \t\n()=!<>&|", at);
        // A pattern may hold [!a-z].
        if (end != std::string::npos && text[end] == '!' && text[end - 1] == '[') {
          end = text.find_first_of(" \t\n()=<>&|", at);
        }
        end = std::min(end, text.size());
      }
      words.push_back(text.substr(at, end - at));
      at = end;
    }
  }
  return words;
}

// ---- Numbers and comparisons

using Compare = bool (*)(std::uint64_t, std::uint64_t);

const std::pair<const char*, Compare> kOperators[] = {
    {"=", [](auto a, auto b) { return a == b; }},  {"==", [](auto a, auto b) { return a == b; }},
    {"eq", [](auto a, auto b) { return a == b; }}, {"!=", [](auto a, auto b) { return a != b; }},
    {"ne", [](auto a, auto b) { return a != b; }}, {"<", [](auto a, auto b) { return a < b; }},
    {"lt", [](auto a, auto b) { return a < b; }},  {"<=", [](auto a, auto b) { return a <= b; }},
    {"le", [](auto a, auto b) { return a <= b; }}, {">", [](auto a, auto b) { return a > b; }},
    {"gt", [](auto a, auto b) { return a > b; }},  {">=", [](auto a, auto b) { return a >= b; }},
    {"ge", [](auto a, auto b) { return a >= b; }}};

Compare operator_of(std::string_view word) {
  for (const auto& [name, compare] : kOperators) {
    if (word == name) return compare;
  }
  return nullptr;
}

// 10, 64K, 1.5M is none: powers of 1024, as they are shown.
std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.empty()) return value;
  constexpr std::string_view kUnits = "kmgt";
  const std::size_t power = kUnits.find(lower(unit));
  if (unit.size() != 1 || power == std::string_view::npos) return std::nullopt;
  const unsigned shift = 10U * (static_cast<unsigned>(power) + 1);
  if (value > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
  return value << shift;
}

std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return port;
}

using Field = std::uint64_t (*)(const ProcessReport&, const StreamReport&);
using P = ProcessReport;
using S = StreamReport;

const std::pair<const char*, Field> kFields[] = {
    {"sport", [](const P&, const S& s) -> std::uint64_t { return s.local.port; }},
    {"dport", [](const P&, const S& s) -> std::uint64_t { return s.remote.port; }},
    {"pid", [](const P& p, const S&) { return static_cast<std::uint64_t>(p.pid); }},
    {"fd", [](const P&, const S& s) { return static_cast<std::uint64_t>(std::max(s.fd, 0)); }},
    {"tx", [](const P&, const S& s) { return s.traffic.sum().tx_bytes; }},
    {"rx", [](const P&, const S& s) { return s.traffic.sum().rx_bytes; }},
    {"tx-msgs", [](const P&, const S& s) { return s.traffic.sum().tx_messages; }},
    {"rx-msgs", [](const P&, const S& s) { return s.traffic.sum().rx_messages; }},
    {"stalls", [](const P&, const S& s) { return s.measures.stalls; }},
    {"promotions", [](const P&, const S& s) { return s.measures.promotions; }},
    {"resumptions", [](const P&, const S& s) { return s.measures.resumptions; }}};

// ---- Names

using Text = std::string (*)(const ProcessReport&, const StreamReport&);

const std::pair<const char*, Text> kPatterns[] = {
    {"program", [](const P& p, const S&) { return p.program; }},
    {"rule", [](const P&, const S& s) { return s.rule; }},
    {"container", [](const P& p, const S&) { return p.container; }},
    {"device", [](const P&, const S& s) { return std::string(s.channel.device); }}};

template <typename Value, typename Name>
Value value_named(const std::string& word, const char* what, Value count, Name name) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) {
    names.emplace_back(name(static_cast<Value>(i)));
    if (lower(names.back()) == lower(word)) return static_cast<Value>(i);
  }
  throw Wrong{in_quotes(word) + " is no " + what + "; there are " + listed(names)};
}

State state_named(const std::string& word) {
  return value_named(word, "state", State::kCount,
                     [](State state) { return lower(state_name(state)); });
}

Reason reason_named(const std::string& word) {
  return value_named(word, "reason", Reason::kCount, reason_name);
}

Carrier carrier_named(const std::string& word) {
  constexpr auto kAll = static_cast<Carrier>(static_cast<unsigned>(Carrier::kRdma) + 1);
  return value_named(word, "carrier", kAll, carrier_name);
}

// ---- Addresses

struct Net {
  std::optional<policy::Prefix> prefix;  // none: every address
  std::optional<std::uint16_t> port;

  bool holds(const Endpoint& endpoint) const {
    if (port && *port != endpoint.port) return false;
    return !prefix || prefix->contains(endpoint.addr);
  }
};

// 10.9.0.1, 10.9.0.0/16, 10.9.0.1:3306, fd00::/64, [fd00::1]:3306, :3306, *:3306
Net net_of(const std::string& word) {
  const Wrong wrong{in_quotes(word) +
                    " is no address; write 10.9.0.1, 10.9.0.0/16, 10.9.0.1:3306, fd00::/64, "
                    "[fd00::1]:3306 or :3306"};
  Net net;
  std::string address = word;
  const bool bracket = word.starts_with('[');
  const std::size_t colon = word.rfind(':');
  const bool one_colon = colon != std::string::npos && word.find(':') == colon;
  if (bracket || one_colon) {
    const std::size_t close = bracket ? word.find(']') : std::string::npos;
    if (bracket && close == std::string::npos) throw wrong;
    std::string rest = bracket ? word.substr(close + 1) : word.substr(colon);
    address = bracket ? word.substr(1, close - 1) : word.substr(0, colon);
    if (bracket && rest.starts_with('/')) {
      const std::size_t end = rest.find(':');
      address += rest.substr(0, end);
      rest = end == std::string::npos ? "" : rest.substr(end);
    }
    if (!rest.empty() && rest != ":*") {
      net.port = port_of(std::string_view(rest).substr(1));
      if (!rest.starts_with(':') || !net.port) throw wrong;
    }
  }
  if ((address.empty() && net.port) || address == "*") return net;
  const std::size_t slash = address.find('/');
  const std::optional<Address> first = Address::parse(address.substr(0, slash));
  if (!first) throw wrong;
  unsigned length = first->bits();
  if (slash != std::string::npos) {
    // "::ffff:10.9.0.0/112" counts the bits of the IPv6 spelling.
    const unsigned mapped_bits = first->is_v4() && address.find(':') < slash ? 96U : 0U;
    const std::optional<std::uint16_t> given = port_of(std::string_view(address).substr(slash + 1));
    if (!given || *given < mapped_bits || *given - mapped_bits > length) throw wrong;
    length = *given - mapped_bits;
  }
  net.prefix = policy::Prefix::of(*first, length);
  return net;
}

// ---- The expression

class Parser {
 public:
  explicit Parser(std::vector<std::string> words) : words_(std::move(words)) {}

  StreamFilter all() {
    StreamFilter result = any_of();
    if (at_ < words_.size()) throw Wrong{in_quotes(words_[at_]) + " has no \"(\" before it"};
    return result;
  }

 private:
  bool next_is(std::initializer_list<const char*> names) const {
    return at_ < words_.size() && std::any_of(names.begin(), names.end(), [&](const char* name) {
             return lower(words_[at_]) == name;
           });
  }
  bool take(std::initializer_list<const char*> names) {
    const bool is = next_is(names);
    if (is) ++at_;
    return is;
  }
  std::string value(const std::string& of, const char* what) {
    if (at_ == words_.size()) throw Wrong{"after " + in_quotes(of) + " " + what + " is missing"};
    return words_[at_++];
  }

  StreamFilter any_of() {
    StreamFilter result = each_of();
    while (take({"or", "|", "||"})) {
      result = [a = std::move(result), b = each_of()](const P& p, const S& s) {
        return a(p, s) || b(p, s);
      };
    }
    return result;
  }

  StreamFilter each_of() {
    StreamFilter result = one();
    while (at_ < words_.size() && !next_is({"or", "|", "||", ")"})) {
      take({"and", "&", "&&"});
      result = [a = std::move(result), b = one()](const P& p, const S& s) {
        return a(p, s) && b(p, s);
      };
    }
    return result;
  }

  StreamFilter one() {
    if (++depth_ > kMaxDepth) throw Wrong{"the filter is nested too deeply"};
    StreamFilter result;
    if (take({"not", "!"})) {
      result = [a = one()](const P& p, const S& s) { return !a(p, s); };
    } else if (take({"("})) {
      result = any_of();
      if (!take({")"})) throw Wrong{"a \")\" is missing at the end"};
    } else {
      result = condition();
    }
    --depth_;
    return result;
  }

  StreamFilter condition() {
    if (at_ == words_.size()) {
      throw Wrong{at_ == 0 ? "the filter is empty"
                           : "after " + in_quotes(words_.back()) + " a condition is missing"};
    }
    const std::string name = words_[at_++];
    const std::string key = lower(name);
    if (key == "state") {
      return equals(
          name, "a state", [](const P&, const S& s) { return s.state; }, state_named);
    }
    if (key == "carrier") {
      return equals(
          name, "a carrier", [](const P&, const S& s) { return s.carrier(); }, carrier_named);
    }
    if (key == "reason") {
      return equals(
          name, "a reason", [](const P&, const S& s) { return s.reason; }, reason_named);
    }
    if (key == "peer-reason") {
      return equals(
          name, "a reason", [](const P&, const S& s) { return s.peer_reason; }, reason_named);
    }
    if (key == "role") return role(name);
    if (key == "src" || key == "dst") return address(name, key == "src");
    for (const auto& [pattern, text] : kPatterns) {
      if (key == pattern) return matches(name, text);
    }
    for (const auto& [field, number] : kFields) {
      if (key == field) return compares(name, number);
    }
    throw Wrong{in_quotes(name) +
                " is no condition; there are state, carrier, reason, peer-reason, role, "
                "src, dst, " +
                names_of(kPatterns) + ", " + names_of(kFields) + ", and: and, or, not, ( )"};
  }

  template <typename Pairs>
  static std::string names_of(const Pairs& pairs) {
    std::vector<const char*> names;
    for (const auto& pair : pairs) names.push_back(pair.first);
    return listed(names);
  }

  // "=" and "!=" may stand before a name. True: it is not to be that.
  bool negated() {
    if (take({"!=", "ne"})) return true;
    take({"=", "==", "eq"});
    return false;
  }

  template <typename Get, typename Named>
  StreamFilter equals(const std::string& name, const char* what, Get get, Named named) {
    const bool no = negated();
    return [get, no, wanted = named(value(name, what))](const P& p, const S& s) {
      return (get(p, s) == wanted) != no;
    };
  }

  StreamFilter role(const std::string& name) {
    const bool no = negated();
    const std::string wanted = value(name, "connect or accept");
    if (lower(wanted) != "connect" && lower(wanted) != "accept") {
      throw Wrong{in_quotes(wanted) + " is no role; there are connect, accept"};
    }
    const Role asked = (lower(wanted) == to_string(Role::kAccept)) != no ? Role::kAccept : Role::kConnect;
    return [asked](const P&, const S& s) { return s.role == asked; };
  }

  StreamFilter address(const std::string& name, bool local) {
    const bool no = negated();
    return [net = net_of(value(name, "an address")), local, no](const P&, const S& s) {
      return net.holds(local ? s.local : s.remote) != no;
    };
  }

  StreamFilter matches(const std::string& name, Text text) {
    const bool no = negated();
    return [text, no, pattern = value(name, "a name or pattern")](const P& p, const S& s) {
      return (fnmatch(pattern.c_str(), text(p, s).c_str(), 0) == 0) != no;
    };
  }

  StreamFilter compares(const std::string& name, Field field) {
    Compare compare = kOperators[0].second;
    if (at_ < words_.size()) {
      if (const Compare given = operator_of(lower(words_[at_]))) {
        compare = given;
        ++at_;
      }
    }
    const std::string word = value(name, "a number");
    const bool is_port = lower(name) == "sport" || lower(name) == "dport";
    const std::string_view digits =
        is_port && word.starts_with(':') ? std::string_view(word).substr(1) : word;
    std::optional<std::uint64_t> number = number_of(digits);
    if (is_port) number = port_of(digits);
    if (!number) {
      throw Wrong{
          in_quotes(word) +
          (is_port ? " is no port; write :3306 or 3306" : " is no number; write 4096, 64K or 1M") +
          ", after one of = != < <= > >="};
    }
    return [field, compare, wanted = *number](const P& p, const S& s) {
      return compare(field(p, s), wanted);
    };
  }

  std::vector<std::string> words_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<StreamFilter> parse_filter(const std::vector<std::string>& words, std::string& why) {
  std::vector<std::string> all = words_of(words);
  if (words.empty()) return [](const ProcessReport&, const StreamReport&) { return true; };
  if (all.size() > kMaxWords) {
    why = "the filter is too long: more than " + std::to_string(kMaxWords) + " words";
    return std::nullopt;
  }
  try {
    return Parser(std::move(all)).all();
  } catch (const Wrong& wrong) {
    why = wrong.why;
    return std::nullopt;
  }
}

const char* const kFilterHelp =
    "Filter: conditions, joined by and, or, not, ( ); and is meant where nothing stands between "
    "two.\n"
    "  state NAME, carrier tcp|shm|rdma, reason NAME, peer-reason NAME, role connect|accept\n"
    "  src ADDRESS, dst ADDRESS     10.9.0.1, 10.9.0.0/16, 10.9.0.1:3306, fd00::/64, "
    "[fd00::1]:3306, "
    ":3306\n"
    "  program, rule, device, container NAME   may be a pattern: 'maria*'\n"
    "  sport, dport OP PORT         OP is = != < <= > >=, or eq ne lt le gt ge; sport = :3306\n"
    "  pid, fd, tx, rx, tx-msgs, rx-msgs, stalls, promotions, resumptions OP NUMBER    rx > 1M\n"
    "  Quote what the shell would take for itself: ringroad ss 'rx > 1M and not state "
    "on_channel'\n";

}  // namespace ringroad::cli
