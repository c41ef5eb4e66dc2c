// Writes metrics as text: Prometheus' format 0.0.4, or OpenMetrics 1.0.0.
//
// Facts about the formats: prometheus.io/docs/instrumenting/exposition_formats and
// the OpenMetrics specification 1.0.0, "Text format".
//
// Thread rule: one thread at a time. May throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace ringroad::cli::exporter {

enum class Format : std::uint8_t { kPrometheus, kOpenMetrics };

// The Content-Type that goes with it.
const char* content_type(Format format) noexcept;

enum class Type : std::uint8_t { kCounter, kGauge, kHistogram };

using Label = std::pair<std::string_view, std::string_view>;
using Labels = std::initializer_list<Label>;

// Where a histogram's bucket ends, and how many values are in it or below.
struct Bucket {
  double upper_bound;  // without the one at infinity
  std::uint64_t cumulative;
};

// What each counter was when it was told last. A counter is put together from many parts that are
// read one after the other while streams come and go, so that the sum may fall; what is told does
// not.
class History {
 public:
  // The larger of `value` and what was kept under `key`, which is kept.
  std::uint64_t not_less(std::string key, std::uint64_t value);
  // Forgets what was not asked for since the last time.
  void turn_page();

 private:
  std::unordered_map<std::string, std::uint64_t> before_;
  std::unordered_map<std::string, std::uint64_t> now_;
};

class Exposition {
 public:
  // `history` may be null, and is kept.
  Exposition(Format format, History* history) noexcept : format_(format), history_(history) {}

  // Begins a metric; its samples follow. A counter's name ends in "_total".
  void family(std::string_view name, Type type, std::string_view help);
  // What the labels of the next samples begin with, and the key of their history; empty: none.
  void subject(Labels labels, std::string identity);

  void sample(std::uint64_t value) { sample({}, value); }
  void sample(Labels labels, std::uint64_t value);
  void sample(Labels labels, double value);
  // `sum` of all values, in the metric's unit.
  void histogram(Labels labels, std::span<const Bucket> buckets, std::uint64_t count, double sum);

  // The whole text; nothing can be added any more.
  std::string finish();

 private:
  void line(std::string_view suffix, Labels labels, std::string_view value);
  std::uint64_t monotonic(std::string_view suffix, Labels labels, std::uint64_t value);

  Format format_;
  History* history_;
  std::string text_;
  std::string name_;
  Type type_ = Type::kGauge;
  std::string subject_;
  std::string identity_;
};

// As a label's value: escaped, and what is not UTF-8 replaced, because one wrong byte makes a
// server refuse the whole text.
std::string label_value(std::string_view text);

// The format that an Accept header asks for.
Format accepted_format(std::string_view accept) noexcept;

}  // namespace ringroad::cli::exporter
