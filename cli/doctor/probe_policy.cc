#include "cli/doctor/probe_policy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/library_file.h"

namespace ringroad::cli::doctor {
namespace {

std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

// A rule without a name is called FILE:LINE, which is none.
std::string name_of(const policy::Rule& rule) {
  std::string name = rule.settings.name.substr(0, 60);
  for (char& c : name) c = c == ':' ? '-' : c;
  return name;
}

}  // namespace

bool is_for_rdma(const policy::Rule& rule) noexcept {
  return rule.settings.via == policy::Via::kRdma || rule.settings.via == policy::Via::kAuto;
}

bool is_unconditional(const policy::Rule& rule) noexcept {
  return rule.ports.empty() && !rule.asks_for_process() && rule.roles == policy::kAnyRole;
}

std::vector<const policy::Rule*> probe_rules(const policy::Policy& policy) {
  std::vector<const policy::Rule*> rules;
  for (std::size_t i = 0; i < policy.rule_count(); ++i) {
    const policy::Rule& rule = policy.conditions(i);
    if (is_for_rdma(rule) || is_unconditional(rule)) rules.push_back(&rule);
  }
  return rules;
}

std::string probe_policy_text(const std::vector<const policy::Rule*>& rules, std::uint16_t port) {
  std::string text = "version = 1\n";
  for (const policy::Rule* rule : rules) {
    const policy::Settings& settings = rule->settings;
    std::string subnets;
    for (const policy::Prefix& subnet : rule->subnets) {
      subnets += (subnets.empty() ? "" : ", ") + in_quotes(subnet.to_string());
    }
    text += "\n[[rule]]\nname = " + in_quotes(name_of(*rule)) + "\nsubnet = [" + subnets +
            "]\nport = " + std::to_string(port) + "\nvia = ";
    if (!is_for_rdma(*rule)) {
      text += "\"tcp\"\n";
      continue;
    }
    text += "\"rdma\"\n";
    if (!settings.device.empty()) text += "device = " + in_quotes(settings.device) + "\n";
    if (settings.traffic_class) {
      text += "traffic_class = " + std::to_string(*settings.traffic_class) + "\n";
    }
    if (!settings.key_file.empty()) text += "key_file = " + in_quotes(settings.key_file) + "\n";
    // The larger message has to fit.
    const std::uint32_t ring = std::max(settings.ring_bytes, policy::kDefaultRingBytes);
    text += "ring = \"" + std::to_string(ring) + "B\"\n";
    text += "spin = \"" + std::to_string(settings.spin.count()) + "ns\"\n";
    text += "detect = \"" + std::to_string(settings.detect.count()) + "ns\"\n";
    text += "promote_after = { messages = 1000000000 }\n";
  }
  return text;
}

ProbeEnvironment::ProbeEnvironment(const std::string& library, const std::string& policy) {
  std::string looked_at;
  const std::string file = library.empty() ? find_library(looked_at) : library;
  if (file.empty()) {
    why_ = "no libringroad.so at " + looked_at;
    return;
  }
  why_ = library_problem(file);
  if (!why_.empty()) {
    why_ = file + ": " + why_;
    return;
  }
  // Not closed by exec: the program that it is for reads it by this number.
  fd_ = memfd_create("ringroad-doctor-policy", 0);
  if (fd_ < 0 || write(fd_, policy.data(), policy.size()) != static_cast<ssize_t>(policy.size())) {
    why_ = std::string("memfd: ") + strerrordesc_np(errno);
    return;
  }
  variables_ = {"LD_PRELOAD=" + file, "RINGROAD_POLICY=/proc/self/fd/" + std::to_string(fd_),
                "RINGROAD_DISABLE=0"};
  if (std::getenv("RINGROAD_LOG") == nullptr) variables_.emplace_back("RINGROAD_LOG=off");
}

ProbeEnvironment::~ProbeEnvironment() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace ringroad::cli::doctor
