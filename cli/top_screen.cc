#include "cli/top_screen.h"

#include <algorithm>
#include <cmath>

#include "cli/json_writer.h"
#include "cli/text.h"

namespace ringroad::cli {
namespace {

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kInverse = "\x1b[7m";
constexpr const char* kPlain = "\x1b[0m";

std::string rate_cell(double rate) {
  if (rate > 0 && rate < 9.95) {
    char text[16];
    std::snprintf(text, sizeof text, "%.1f", rate);
    return text;
  }
  return human_count(static_cast<std::uint64_t>(std::llround(std::max(rate, 0.0))));
}

std::string waiting_cell(double waiting) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", waiting);
  return text;
}

std::string reasons_cell(const TopRow& row) {
  std::string text = row.reason == Reason::kNone ? "" : reason_name(row.reason);
  if (row.peer_reason != Reason::kNone) text += std::string("/") + reason_name(row.peer_reason);
  return text;
}

Table table_of(TopBy by) {
  constexpr auto kToTheRight = Table::Align::kRight;
  std::vector<Table::Column> columns;
  if (by != TopBy::kRule) columns = {{"PID", kToTheRight}, {"PROGRAM"}};
  if (by == TopBy::kRule) columns = {{"RULE"}};
  if (by != TopBy::kStream) {
    columns.push_back({"STREAMS", kToTheRight});
    columns.push_back({"ON-CHANNEL", kToTheRight});
  }
  for (const char* title : {"TX/s", "RX/s", "TX-MSGS/s", "RX-MSGS/s", "STALLS/s", "WAITING"}) {
    columns.push_back({title, kToTheRight});
  }
  if (by == TopBy::kStream) {
    for (const char* title : {"CARRIER", "REASON", "LOCAL", "REMOTE", "RULE"}) {
      columns.push_back({title});
    }
  }
  if (by != TopBy::kRule) columns.push_back({"CONTAINER"});
  return Table(std::move(columns));
}

void add_row(Table& table, const TopRow& row, TopBy by) {
  std::vector<std::string> cells;
  if (by == TopBy::kRule) {
    cells = {printable(row.rule)};
  } else {
    cells = {std::to_string(row.pid), printable(row.program)};
  }
  if (by != TopBy::kStream) {
    cells.push_back(std::to_string(row.streams));
    cells.push_back(std::to_string(row.on_channel));
  }
  for (const double rate : {row.rates.tx_bytes, row.rates.rx_bytes, row.rates.tx_messages,
                            row.rates.rx_messages, row.rates.stalls}) {
    cells.push_back(rate_cell(rate));
  }
  cells.push_back(waiting_cell(row.rates.waiting));
  if (by == TopBy::kStream) {
    for (std::string cell : {std::string(carrier_name(row.carrier)), reasons_cell(row), row.local,
                             row.remote, printable(row.rule)}) {
      cells.push_back(std::move(cell));
    }
  }
  if (by != TopBy::kRule) cells.push_back(printable(row.container));
  table.add(std::move(cells));
}

std::string title_of(const TopReading& reading, const TopView& view) {
  std::string text = "ringroad top " + reading.time + "  by " + by_name(view.by) + ", sorted by " +
                     view.sort + (view.reverse ? " (reversed)" : "") + "  " +
                     counted(reading.processes, "process", "processes") + ", " +
                     counted(reading.streams, "stream") + ", " +
                     std::to_string(reading.on_channel) + " on channels";
  if (reading.skipped > 0) {
    text += "; " + counted(reading.skipped, "file") + " cannot be read: see ringroad ss";
  }
  return text;
}

std::string sum_line(const TopReading& reading) {
  if (reading.seconds <= 0) return "measuring ...";
  const Rates sum = sum_of(reading.rows);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", reading.seconds);
  return "TX " + rate_cell(sum.tx_bytes) + "/s  RX " + rate_cell(sum.rx_bytes) + "/s  messages " +
         rate_cell(sum.tx_messages) + "/s sent " + rate_cell(sum.rx_messages) +
         "/s received  stalls " + rate_cell(sum.stalls) + "/s  waiting " +
         waiting_cell(sum.waiting) + "  over " + seconds + " s";
}

const std::vector<std::string>& help_lines() {
  static const std::vector<std::string> lines = {
      "q, Ctrl-C    quit",
      "s, S         next, previous order",
      "r            reverse it",
      "b            by process, stream, rule",
      "p, t, u      by process, by stream, by rule",
      "Up Down j k  a line; PgUp PgDn space  a page; g  to the top",
      "h, ?         this, and back",
      "",
      "TX, RX: bytes a second. STALLS: sends that found no room in the ring. WAITING: how many",
      "senders waited for room at a time, on average; 1.00 is one of them all the time."};
  return lines;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

template <typename Keys>
std::string other(const Keys& keys, const std::string& now, bool forward) {
  const auto it = std::find(keys.begin(), keys.end(), now);
  const auto at = static_cast<std::size_t>(it - keys.begin());
  return keys[(at + (forward ? 1 : keys.size() - 1)) % keys.size()];
}

}  // namespace

std::string top_frame(const TopReading& reading, TopView& view, TerminalSize size) {
  // Where there is little room the table comes first, then the title, then the sums.
  const bool titled = size.rows >= 3;
  const bool summed = size.rows >= 5;
  const std::size_t room = size.rows - (titled ? 1 : 0) - (summed ? 1 : 0);
  std::vector<std::string> lines;
  if (titled) lines.push_back(title_of(reading, view));
  if (summed) lines.push_back(sum_line(reading));
  const std::size_t heading = lines.size();
  if (view.help) {
    for (const std::string& line : help_lines()) lines.push_back(line);
  } else {
    const std::size_t shown = room > 1 ? room - 1 : 0;
    const std::size_t most = reading.rows.size() > shown ? reading.rows.size() - shown : 0;
    view.first = std::min(view.first, most);
    Table table = table_of(view.by);
    const std::size_t end = std::min(view.first + shown, reading.rows.size());
    for (std::size_t i = view.first; i < end; ++i) add_row(table, reading.rows[i], view.by);
    for (std::string& line : lines_of(table.to_string())) lines.push_back(std::move(line));
    if (reading.rows.empty()) lines.push_back("no preloaded processes, or nothing that matches");
  }
  lines.resize(std::min(lines.size(), size.rows));
  std::string frame = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = cut(lines[i], size.columns);
    if (titled && i == 0) line = kBold + line + kPlain;
    if (i == heading && !view.help) line = kInverse + line + kPlain;
    // Told where to be, as not every terminal begins a line with '\n'.
    if (i > 0) frame += "\x1b[" + std::to_string(i + 1) + ";1H";
    frame += line + "\x1b[K";
  }
  return frame + "\x1b[J";
}

bool obey(const std::string& keys, TopView& view, std::size_t page) {
  const auto up = [&](std::size_t n) { view.first -= std::min(view.first, n); };
  const auto back_to_the_top = [&](TopBy by) {
    view.by = by;
    view.first = 0;
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    char key = keys[i];
    if (key == '\x1b') {
      // ESC [ A and the like; of what is not known, nothing.
      key = '\0';
      if (i + 1 < keys.size() && (keys[i + 1] == '[' || keys[i + 1] == 'O')) {
        std::size_t end = i + 2;
        while (end < keys.size() && (keys[end] < '@' || keys[end] > '~')) ++end;
        const std::string sequence = keys.substr(i + 2, end - i - 1);
        if (sequence == "A") key = 'k';
        if (sequence == "B") key = 'j';
        if (sequence == "5~") key = 'K';
        if (sequence == "6~") key = ' ';
        if (sequence == "H" || sequence == "1~") key = 'g';
        i = end;
      }
    }
    switch (key) {
      case 'q':
        return false;
      case 's':
        view.sort = other(top_sort_keys(), view.sort, true);
        break;
      case 'S':
        view.sort = other(top_sort_keys(), view.sort, false);
        break;
      case 'r':
        view.reverse = !view.reverse;
        break;
      case 'b':
        back_to_the_top(view.by == TopBy::kProcess  ? TopBy::kStream
                        : view.by == TopBy::kStream ? TopBy::kRule
                                                    : TopBy::kProcess);
        break;
      case 'p':
        back_to_the_top(TopBy::kProcess);
        break;
      case 't':
        back_to_the_top(TopBy::kStream);
        break;
      case 'u':
        back_to_the_top(TopBy::kRule);
        break;
      case 'h':
      case '?':
        view.help = !view.help;
        break;
      case 'k':
        up(1);
        break;
      case 'K':
        up(page);
        break;
      case 'j':
        view.first += 1;
        break;
      case ' ':
        view.first += page;
        break;
      case 'g':
        view.first = 0;
        break;
      default:
        break;
    }
  }
  return true;
}

std::string top_lines(const TopReading& reading, const TopView& view) {
  Table table = table_of(view.by);
  for (const TopRow& row : reading.rows) add_row(table, row, view.by);
  return title_of(reading, view) + "\n" + sum_line(reading) + "\n" + table.to_string() + "\n";
}

std::string top_json(const TopReading& reading, const TopView& view, double unix_time) {
  std::string text;
  JsonWriter json(text);
  json.begin_object()
      .member("time", unix_time)
      .member("seconds", reading.seconds)
      .member("by", by_name(view.by))
      .member("skipped", reading.skipped);
  json.key("rows").begin_array();
  for (const TopRow& row : reading.rows) {
    json.begin_object();
    if (view.by != TopBy::kRule) {
      json.member("pid", row.pid).member("program", row.program).member("container", row.container);
    }
    if (view.by != TopBy::kProcess) json.member("rule", row.rule);
    if (view.by == TopBy::kStream) {
      json.member("id", row.id)
          .member("local", row.local)
          .member("remote", row.remote)
          .member("state", state_name(row.state))
          .member("carrier", carrier_name(row.carrier))
          .member("reason", reason_name(row.reason))
          .member("peer_reason", reason_name(row.peer_reason));
    } else {
      json.member("streams", row.streams).member("on_channel", row.on_channel);
    }
    json.member("tx_bytes", row.rates.tx_bytes)
        .member("rx_bytes", row.rates.rx_bytes)
        .member("tx_messages", row.rates.tx_messages)
        .member("rx_messages", row.rates.rx_messages)
        .member("stalls", row.rates.stalls)
        .member("waiting", row.rates.waiting)
        .end_object();
  }
  json.end_array().end_object();
  return text + "\n";
}

}  // namespace ringroad::cli
