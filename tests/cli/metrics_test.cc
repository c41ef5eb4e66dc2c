// What the exporter writes: every byte that a process could put into it, and counters that never
// fall.

#include "cli/exporter/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "tests/cli/support.h"

namespace ringroad::cli::exporter {
namespace {

using stats::Segment;
using stats::StreamSlot;
using testing::HasSubstr;
using testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(LabelValue, IsEscapedAndAlwaysUtf8) {
  EXPECT_EQ(label_value("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
  EXPECT_EQ(label_value("\x1b[1m\x7f\t"), "?[1m??");
  EXPECT_EQ(label_value("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(label_value("\xFFx"), bad + "x");
  EXPECT_EQ(label_value("\xE2\x82"), bad + bad);                      // cut off
  EXPECT_EQ(label_value("\xC0\xAF"), bad + bad);                      // overlong
  EXPECT_EQ(label_value("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(label_value("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
}

TEST(AcceptedFormat, IsTheOneThatTheClientLikesBest) {
  for (const char* accept :
       {"application/openmetrics-text", "application/openmetrics-text; version=1.0.0",
        "text/plain;q=0.5 , application/openmetrics-text;version=1.0.0;q=0.6"}) {
    EXPECT_EQ(accepted_format(accept), Format::kOpenMetrics) << accept;
  }
  for (const char* accept :
       {"", "*/*", "text/plain", ",;,=;q", "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;q=0", "application/openmetrics-text;q=nonsense",
        "text/plain;q=0.9,application/openmetrics-text;q=0.1"}) {
    EXPECT_EQ(accepted_format(accept), Format::kPrometheus) << accept;
  }
}

TEST(Exposition, ACounterIsDescribedAsEachFormatWantsIt) {
  for (const Format format : {Format::kPrometheus, Format::kOpenMetrics}) {
    Exposition out(format, nullptr);
    out.family("x_bytes_total", Type::kCounter, "Help.");
    out.subject({{"pid", "1"}}, "");
    out.sample({{"carrier", "tcp"}}, std::uint64_t{18446744073709551615U});
    EXPECT_EQ(out.finish(),
              format == Format::kPrometheus
                  ? "# HELP x_bytes_total Help.\n# TYPE x_bytes_total counter\n"
                    "x_bytes_total{pid=\"1\",carrier=\"tcp\"} 18446744073709551615\n"
                  : "# HELP x_bytes Help.\n# TYPE x_bytes counter\n# UNIT x_bytes bytes\n"
                    "x_bytes_total{pid=\"1\",carrier=\"tcp\"} 18446744073709551615\n# EOF\n");
  }
}

TEST(Exposition, AHistogramsBucketsNeverFall) {
  Exposition out(Format::kPrometheus, nullptr);
  out.family("x_seconds", Type::kHistogram, "Help.");
  // Read one after the other, they need not fit.
  const std::array<Bucket, 2> buckets = {Bucket{0.001, 5}, Bucket{0.5, 4}};
  out.histogram({{"rule", "r"}}, buckets, 6, 1.25);
  EXPECT_EQ(out.finish(),
            "# HELP x_seconds Help.\n# TYPE x_seconds histogram\n"
            "x_seconds_bucket{rule=\"r\",le=\"0.001\"} 5\n"
            "x_seconds_bucket{rule=\"r\",le=\"0.5\"} 5\n"
            "x_seconds_bucket{rule=\"r\",le=\"+Inf\"} 6\n"
            "x_seconds_sum{rule=\"r\"} 1.25\nx_seconds_count{rule=\"r\"} 6\n");
}

TEST(Collector, CountersNeverFallWhileTheProcessLives) {
  const TempFolder folder;
  const auto segment = make_segment(folder, "mariadbd");
  Collector collector(folder.path(), kMostProcesses);
  segment->header().streams_opened = 7;
  EXPECT_THAT(collector.collect(Format::kPrometheus), HasSubstr("program=\"mariadbd\"} 7\n"));
  segment->header().streams_opened = 5;
  for (int i = 0; i < 3; ++i) {
    const std::string text = collector.collect(Format::kOpenMetrics);
    EXPECT_THAT(text, HasSubstr("ringroad_streams_opened_total{pid=\"" + std::to_string(getpid()) +
                                "\",program=\"mariadbd\"} 7\n"));
  }
  segment->header().streams_opened = 8;
  EXPECT_THAT(collector.collect(Format::kPrometheus), HasSubstr("program=\"mariadbd\"} 8\n"));
}

TEST(Collector, AnswersAreHistogramsByRuleAndCarrierOfStreamsGoneAndLive) {
  const TempFolder folder;
  const auto segment = make_segment(folder, "mariadbd");
  const std::uint8_t rule = segment->rule_index("galera");
  segment->rule_latencies(rule).answers[1].add(1000);
  StreamSlot* slot = add_stream(*segment, 1, "10.9.1.1", 23306, "10.9.0.1", 40000);
  Segment::begin(*slot);
  slot->rule_index = rule;
  Segment::end(*slot);
  segment->latencies(*slot).answers[1].add(2'000'000'000);
  segment->latencies(*slot).reads.add(300);
  Collector collector(folder.path(), kMostProcesses);
  const std::string text = collector.collect(Format::kPrometheus);
  const std::string of_rule =
      "{pid=\"" + std::to_string(getpid()) + "\",program=\"mariadbd\",rule=\"galera\"";
  const std::string channel = of_rule + ",carrier=\"channel\"";
  EXPECT_THAT(text, HasSubstr("ringroad_answer_seconds_bucket" + channel + ",le=\"5.12e-07\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ringroad_answer_seconds_bucket" + channel + ",le=\"1.024e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ringroad_answer_seconds_bucket" + channel + ",le=\"+Inf\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ringroad_answer_seconds_sum" + channel + "} 2.000001\n"));
  EXPECT_THAT(text, HasSubstr("ringroad_read_delay_seconds_count" + of_rule + "} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("ringroad_answer_seconds_bucket" + of_rule + ",carrier=\"tcp\"")));
}

TEST(Collector, AnotherFileOfTheSameNumberBeginsAnew) {
  const TempFolder folder;
  auto segment = make_segment(folder, "first");
  Collector collector(folder.path(), kMostProcesses);
  segment->header().streams_opened = 70;
  EXPECT_THAT(collector.collect(Format::kPrometheus), HasSubstr("program=\"first\"} 70\n"));
  const auto second = make_segment(folder, "first");
  second->header().streams_opened = 3;
  EXPECT_THAT(collector.collect(Format::kPrometheus), HasSubstr("program=\"first\"} 3\n"));
}

TEST(Collector, AProgramThatMakesUpRulesGetsAHandful) {
  const TempFolder folder;
  const auto segment = make_segment(folder, "liar\"\n\xFF");
  for (unsigned i = 0; i < 500; ++i) {
    StreamSlot* slot = add_stream(*segment, i, "10.9.1.1", 23306, "10.9.0.1", 40000);
    Segment::begin(*slot);
    std::snprintf(slot->rule, sizeof slot->rule, "rule-%u", i);
    Segment::end(*slot);
    slot->state = 200;
    slot->reason = static_cast<std::uint8_t>(i);
    slot->peer_reason = static_cast<std::uint8_t>(255 - i);
  }
  const std::string text = Collector(folder.path(), kMostProcesses).collect(Format::kPrometheus);
  EXPECT_EQ(count(text, "rule=\"rule-"), kMostRules * 3);
  EXPECT_THAT(text, HasSubstr("rule=\"(other rules)\",carrier=\"tcp\"} 436\n"));
  EXPECT_THAT(text, HasSubstr("program=\"liar\\\"\\n\xEF\xBF\xBD\""));
  EXPECT_LT(count(text, "\n"), 1000U);
  std::string lines = text;
  lines.pop_back();
  EXPECT_THAT(lines, Not(HasSubstr("\n\n")));
}

TEST(Collector, EveryReasonOfARefusalIsThereFromTheStart) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  segment->header().promotions_refused[static_cast<unsigned>(Reason::kMemlock)] = 4;
  const std::string text = Collector(folder.path(), kMostProcesses).collect(Format::kPrometheus);
  EXPECT_EQ(count(text, "ringroad_promotions_refused_total{"),
            static_cast<std::size_t>(Reason::kCount) - 1);
  EXPECT_THAT(text, HasSubstr("reason=\"memlock\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("reason=\"qp_error\"} 0\n"));
}

}  // namespace
}  // namespace ringroad::cli::exporter
