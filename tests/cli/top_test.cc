// What `ringroad top` makes of two readings, and how it fits into a terminal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/top_rates.h"
#include "cli/top_screen.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kSecond = 1'000'000'000;

StreamReport stream(std::uint64_t id, std::uint64_t tx_bytes, std::uint64_t messages) {
  StreamReport result;
  result.id = id;
  result.rule = "demo";
  result.local = endpoint("10.9.0.1", 3306);
  result.remote = endpoint("10.9.0.2", static_cast<std::uint16_t>(40000 + id));
  result.traffic.channel = {tx_bytes, 0, messages, 0};
  result.state = State::kOnChannel;
  result.channel.carrier = Carrier::kRdma;
  return result;
}

TopSample sample(std::int64_t ns, std::vector<StreamReport> streams) {
  ProcessReport process;
  process.pid = 7;
  process.start_ticks = 1;
  process.program = "mariadbd";
  process.alive = true;
  process.streams = std::move(streams);
  RuleReport rule;
  rule.name = "demo";
  for (const StreamReport& one : process.streams) rule.traffic += one.traffic;
  process.rules = {rule};
  TopSample result;
  result.snapshot.processes = {process};
  result.monotonic_ns = ns;
  return result;
}

TEST(TopRates, AreTheGrowthThroughTheTime) {
  const TopSample before = sample(kSecond, {stream(1, 100, 1), stream(2, 0, 0)});
  const TopSample now = sample(3 * kSecond, {stream(1, 2100, 11), stream(2, 0, 0)});
  for (const TopBy by : {TopBy::kProcess, TopBy::kRule}) {
    const auto rows = top_rows(before, now, by, {});
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].streams, 2U);
    EXPECT_EQ(rows[0].on_channel, 2U);
    EXPECT_DOUBLE_EQ(rows[0].rates.tx_bytes, 1000);
    EXPECT_DOUBLE_EQ(rows[0].rates.tx_messages, 5);
  }
  const auto rows = top_rows(before, now, TopBy::kStream, {});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_DOUBLE_EQ(rows[0].rates.tx_bytes, 1000);
  EXPECT_DOUBLE_EQ(rows[1].rates.tx_bytes, 0);
}

TEST(TopRates, AStreamThatIsNewBeganWithNothing) {
  const auto rows =
      top_rows(sample(kSecond, {}), sample(2 * kSecond, {stream(1, 500, 5)}), TopBy::kStream, {});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_DOUBLE_EQ(rows[0].rates.tx_bytes, 500);
}

TEST(TopRates, AnotherProcessOfTheSameNumberIsNotComparedWithTheFirst) {
  const TopSample before = sample(kSecond, {stream(1, 400, 1)});
  TopSample now = sample(2 * kSecond, {stream(1, 500, 5)});
  now.snapshot.processes[0].start_ticks = 2;
  EXPECT_DOUBLE_EQ(top_rows(before, now, TopBy::kProcess, {})[0].rates.tx_bytes, 500);
}

TEST(TopRates, ACounterThatFellAndNoTimeAtAllAreNoRate) {
  const TopSample before = sample(kSecond, {stream(1, 400, 1)});
  EXPECT_DOUBLE_EQ(top_rows(before, sample(2 * kSecond, {stream(1, 1, 0)}), TopBy::kStream, {})[0]
                       .rates.tx_bytes,
                   0);
  EXPECT_DOUBLE_EQ(
      top_rows(before, sample(kSecond, {stream(1, 900, 9)}), TopBy::kStream, {})[0].rates.tx_bytes,
      0);
}

TEST(TopRates, AWaitThatHasNotEndedCountsWhileItLasts) {
  StreamReport waiting = stream(1, 0, 0);
  const TopSample before = sample(10 * kSecond, {waiting});
  waiting.stalled_since_ns = 11 * kSecond;
  for (const TopBy by : {TopBy::kProcess, TopBy::kStream, TopBy::kRule}) {
    EXPECT_DOUBLE_EQ(top_rows(before, sample(12 * kSecond, {waiting}), by, {})[0].rates.waiting,
                     0.5);
  }
  const TopSample later = sample(12 * kSecond, {waiting});
  EXPECT_DOUBLE_EQ(
      top_rows(later, sample(13 * kSecond, {waiting}), TopBy::kStream, {})[0].rates.waiting, 1);
  TopSample dead = sample(12 * kSecond, {waiting});
  dead.snapshot.processes[0].alive = false;
  EXPECT_DOUBLE_EQ(top_rows(before, dead, TopBy::kStream, {})[0].rates.waiting, 0);
}

TEST(TopRates, AFilterChoosesWhoseRatesAreAddedUp) {
  const StreamFilter first = [](const ProcessReport&, const StreamReport& s) { return s.id == 1; };
  const TopSample before = sample(kSecond, {stream(1, 0, 0), stream(2, 0, 0)});
  const TopSample now = sample(2 * kSecond, {stream(1, 10, 1), stream(2, 500, 1)});
  for (const TopBy by : {TopBy::kProcess, TopBy::kStream, TopBy::kRule}) {
    const auto rows = top_rows(before, now, by, first);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_DOUBLE_EQ(rows[0].rates.tx_bytes, 10);
  }
}

TEST(TopRates, AreSortedAsAsked) {
  const TopSample before = sample(kSecond, {});
  const TopSample now =
      sample(2 * kSecond, {stream(1, 10, 9), stream(2, 500, 1), stream(3, 50, 5)});
  const auto order = [&](const char* key, bool reverse) {
    auto rows = top_rows(before, now, TopBy::kStream, {});
    sort_rows(rows, key, reverse);
    std::string ids;
    for (const TopRow& row : rows) ids += std::to_string(row.id);
    return ids;
  };
  EXPECT_EQ(order("bytes", false), "231");
  EXPECT_EQ(order("tx", true), "132");
  EXPECT_EQ(order("msgs", false), "132");
  EXPECT_EQ(order("peer", false), "123");
  for (const std::string& key : top_sort_keys()) EXPECT_EQ(order(key.c_str(), false).size(), 3U);
}

TopReading reading_of(std::size_t streams) {
  std::vector<StreamReport> all;
  for (std::size_t i = 0; i < streams; ++i) all.push_back(stream(i, 100 * i, 1));
  TopReading reading;
  reading.rows = top_rows(sample(kSecond, {}), sample(2 * kSecond, all), TopBy::kStream, {});
  reading.seconds = 1;
  reading.streams = streams;
  return reading;
}

// What the frame leaves on a terminal: its lines, without what steers it.
std::vector<std::string> screen_of(const std::string& frame) {
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < frame.size(); ++i) {
    if (frame[i] != '\x1b') {
      lines.back() += frame[i];
      continue;
    }
    const std::size_t end = frame.find_first_of("HKJmhl", i);
    if (frame[end] == 'H' && i > 0) lines.emplace_back();
    i = end;
  }
  return lines;
}

TEST(TopFrame, FitsIntoEveryTerminal) {
  for (const std::size_t streams : {0U, 1U, 100U}) {
    const TopReading reading = reading_of(streams);
    for (const bool help : {false, true}) {
      for (std::size_t rows = 1; rows < 40; ++rows) {
        for (const std::size_t columns : {1U, 7U, 80U, 300U}) {
          TopView view;
          view.by = TopBy::kStream;
          view.help = help;
          view.first = 1000;
          const std::vector<std::string> lines =
              screen_of(top_frame(reading, view, TerminalSize{rows, columns}));
          EXPECT_LE(lines.size(), rows);
          for (const std::string& line : lines) EXPECT_LE(line.size(), columns);
        }
      }
    }
  }
}

TEST(TopFrame, TheLastRowsCanBeReachedAndNothingBehindThem) {
  const TopReading reading = reading_of(100);
  TopView view;
  view.by = TopBy::kStream;
  view.first = 1'000'000;
  const auto lines = screen_of(top_frame(reading, view, TerminalSize{10, 300}));
  ASSERT_EQ(lines.size(), 10U);
  EXPECT_THAT(lines.back(), HasSubstr("10.9.0.2:40099"));
  EXPECT_EQ(view.first, 93U);
  EXPECT_TRUE(obey("k", view, 7));
  EXPECT_EQ(view.first, 92U);
  EXPECT_TRUE(obey("\x1b[5~", view, 7));
  EXPECT_EQ(view.first, 85U);
  EXPECT_TRUE(obey("g\x1b[A", view, 7));
  EXPECT_EQ(view.first, 0U);
}

TEST(TopFrame, NothingFromAProcessSteersTheTerminal) {
  TopReading reading = reading_of(1);
  reading.rows[0].program =
      "a\x1b[2Jb\xc2\x9b"
      "2Jc";
  reading.rows[0].rule = "x\ny";
  TopView view;
  for (const TopBy by : {TopBy::kStream, TopBy::kProcess, TopBy::kRule}) {
    view.by = by;
    for (const std::string& text :
         {top_lines(reading, view), top_frame(reading, view, TerminalSize{24, 300})}) {
      EXPECT_THAT(text, Not(HasSubstr("a\x1b")));
      EXPECT_THAT(text, Not(HasSubstr("\xc2\x9b")));
      EXPECT_THAT(text, Not(HasSubstr("x\ny")));
    }
  }
}

TEST(TopKeys, UnknownAndHalfOnesDoNothing) {
  TopView view;
  for (const char* keys : {"\x1b", "\x1b[", "\x1b[9", "\x1b[99;5~", "\x1bO", "x\xff\x01", ""}) {
    EXPECT_TRUE(obey(keys, view, 10));
  }
  EXPECT_EQ(view.first, 0U);
  EXPECT_EQ(view.sort, TopView{}.sort);
  EXPECT_FALSE(obey("jq", view, 10));
}

TEST(TopJson, IsOneLineWithExactNumbers) {
  TopView view;
  view.by = TopBy::kStream;
  const std::string text = top_json(reading_of(2), view, 1.5);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const json document = json::parse(text);
  EXPECT_EQ(document["rows"].size(), 2U);
  EXPECT_EQ(document["rows"][1]["tx_bytes"], 100);
  EXPECT_EQ(document["rows"][1]["carrier"], "rdma");
  EXPECT_EQ(document["time"], 1.5);
}

}  // namespace
}  // namespace ringroad::cli
