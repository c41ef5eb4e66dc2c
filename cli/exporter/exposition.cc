#include "cli/exporter/exposition.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "cli/text.h"

namespace ringroad::cli::exporter {
namespace {

constexpr std::string_view kTotal = "_total";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::isnan(value)) return "NaN";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

void append_labels(std::string& to, Labels labels) {
  for (const auto& [name, value] : labels) {
    if (!to.empty()) to += ',';
    to.append(name) += "=\"" + label_value(value) + "\"";
  }
}

std::string_view trimmed(std::string_view text) noexcept {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Cuts what stands before the next `separator` off `text`.
std::string_view take_until(std::string_view& text, char separator) noexcept {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view taken = trimmed(text.substr(0, at));
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

}  // namespace

const char* content_type(Format format) noexcept {
  return format == Format::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::uint64_t History::not_less(std::string key, std::uint64_t value) {
  const auto known = before_.find(key);
  if (known != before_.end()) value = std::max(value, known->second);
  now_.insert_or_assign(std::move(key), value);
  return value;
}

void History::turn_page() {
  before_ = std::move(now_);
  now_.clear();
}

std::string label_value(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0) {
      result += kReplacement;
    } else if (character == "\n") {
      result += "\\n";
    } else if (character == "\\" || character == "\"") {
      (result += '\\') += character;
    } else if (static_cast<unsigned char>(character.front()) < ' ' || character == "\x7f") {
      result += '?';
    } else {
      result += character;
    }
    text.remove_prefix(character.size());
  }
  return result;
}

void Exposition::family(std::string_view name, Type type, std::string_view help) {
  name_ = name;
  type_ = type;
  if (type == Type::kCounter) name_.resize(name_.size() - kTotal.size());
  // The older format knows no family: a counter is described under the name that its sample has.
  const std::string described =
      type == Type::kCounter && format_ == Format::kPrometheus ? std::string(name) : name_;
  const char* type_name = type == Type::kCounter ? "counter"
                          : type == Type::kGauge ? "gauge"
                                                 : "histogram";
  text_ += "# HELP " + described + " ";
  text_.append(help) += "\n# TYPE " + described + " " + type_name + "\n";
  if (format_ == Format::kOpenMetrics) {
    for (const char* unit : {"bytes", "seconds"}) {
      if (name_.ends_with(std::string("_") + unit)) {
        text_ += "# UNIT " + described + " " + unit + "\n";
      }
    }
  }
}

void Exposition::subject(Labels labels, std::string identity) {
  subject_.clear();
  append_labels(subject_, labels);
  identity_ = std::move(identity);
}

void Exposition::line(std::string_view suffix, Labels labels, std::string_view value) {
  std::string all = subject_;
  append_labels(all, labels);
  text_ += name_;
  text_ += suffix;
  if (!all.empty()) text_ += "{" + all + "}";
  text_ += ' ';
  text_.append(value) += '\n';
}

std::uint64_t Exposition::monotonic(std::string_view suffix, Labels labels, std::uint64_t value) {
  if (history_ == nullptr || identity_.empty()) return value;
  std::string key = identity_ + " " + name_;
  key += suffix;
  append_labels(key, labels);
  return history_->not_less(std::move(key), value);
}

void Exposition::sample(Labels labels, std::uint64_t value) {
  const std::string_view suffix = type_ == Type::kCounter ? kTotal : "";
  if (type_ == Type::kCounter) value = monotonic(suffix, labels, value);
  line(suffix, labels, std::to_string(value));
}

void Exposition::sample(Labels labels, double value) {
  line(type_ == Type::kCounter ? kTotal : "", labels, number(value));
}

void Exposition::histogram(Labels labels, std::span<const Bucket> buckets, std::uint64_t count,
                           double sum) {
  const std::string subject = subject_;
  append_labels(subject_, labels);
  // Each bucket holds those before it, also where they were read at different moments.
  std::uint64_t least = 0;
  const auto bucket = [&](const std::string& bound, std::uint64_t value) {
    least = std::max(least, monotonic("_bucket", {{"le", bound}}, value));
    line("_bucket", {{"le", bound}}, std::to_string(least));
  };
  for (const Bucket& each : buckets) bucket(number(each.upper_bound), each.cumulative);
  bucket("+Inf", count);
  line("_sum", {}, number(sum));
  line("_count", {}, std::to_string(least));
  subject_ = subject;
}

std::string Exposition::finish() {
  if (format_ == Format::kOpenMetrics) text_ += "# EOF\n";
  if (history_ != nullptr) history_->turn_page();
  return std::move(text_);
}

Format accepted_format(std::string_view accept) noexcept {
  double open_metrics = 0;
  double text = 0;
  while (!accept.empty()) {
    std::string_view range = take_until(accept, ',');
    const std::string_view media = take_until(range, ';');
    double quality = 1;
    bool known_version = true;
    while (!range.empty()) {
      std::string_view value = take_until(range, ';');
      const std::string_view name = take_until(value, '=');
      if (name == "q") {
        quality = 0;
        std::from_chars(value.data(), value.data() + value.size(), quality);
      }
      if (name == "version") known_version = value == "1.0.0";
    }
    if (media == "application/openmetrics-text") {
      if (known_version) open_metrics = std::max(open_metrics, quality);
    } else if (media == "text/plain" || media == "text/*" || media == "*/*") {
      text = std::max(text, quality);
    }
  }
  return open_metrics > 0 && open_metrics >= text ? Format::kOpenMetrics : Format::kPrometheus;
}

}  // namespace ringroad::cli::exporter
